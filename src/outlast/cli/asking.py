"""Asking the person at the terminal before something is done that cannot be taken back."""

from __future__ import annotations

import sys
from typing import Any

import click

from . import show

__all__ = ["confirm", "is_asked", "pick"]


def is_asked() -> bool:
    """Say whether somebody is there to be asked."""
    return sys.stdin.isatty()


def confirm(told: str, question: str, otherwise: str) -> None:
    """Tell what would happen and ask; anything but a yes ends the command, saying `otherwise`."""
    if not is_asked():
        raise click.UsageError(f"{told} Nobody is there to be asked: add --yes.")
    for line in told.splitlines():  # a note is one line
        show.note(line)
    if not click.confirm(question, err=True):
        show.note(otherwise)
        raise click.exceptions.Exit(1)


def pick(question: str, answers: list[str], default: str) -> str:
    """Ask for one of several answers; its beginning is enough."""
    picked: str = click.prompt(question, type=_Answer(answers), default=default, err=True, prompt_suffix=" ")
    return picked


class _Answer(click.Choice[str]):
    """One of several words, of which no two begin alike."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        given = str(value).strip().lower()
        meant = [choice for choice in self.choices if given and choice.startswith(given)]
        return super().convert(meant[0] if len(meant) == 1 else value, param, ctx)
