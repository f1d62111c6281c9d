"""Asking the person at the terminal before something is done that cannot be taken back."""

from __future__ import annotations

import sys

import click

from . import show

__all__ = ["confirm", "is_asked"]


def is_asked() -> bool:
    """Say whether somebody is there to be asked."""
    return sys.stdin.isatty()


def confirm(told: str, question: str, otherwise: str) -> None:
    """Tell what would happen and ask; anything but a yes ends the command, saying `otherwise`."""
    if not is_asked():
        raise click.UsageError(f"{told} Nobody is there to be asked: add --yes.")
    show.note(told)
    if not click.confirm(question, err=True):
        show.note(otherwise)
        raise click.exceptions.Exit(1)
