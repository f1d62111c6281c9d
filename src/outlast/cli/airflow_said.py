"""What the commands of `outlast airflow` print: the way of a transfer, and what it and a sweep have come to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from . import show
from .options import Mistake

if TYPE_CHECKING:
    from ..integrations.airflow.payload_sweep import Findings
    from ..integrations.airflow.transfer import Outcome

__all__ = ["Progress", "end_sweep", "end_transfer", "listed"]

#: Lines of a list that are shown to people; documents have them all.
SHOWN = 20


class Progress:
    """One line that a terminal rewrites while entries are moved; otherwise a line every thousand."""

    def __init__(self, done: str) -> None:
        self.done, self.told = done, 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)

    def tell(self, outcome: Outcome) -> None:
        number = outcome.written + outcome.same + len(outcome.left) + len(outcome.skipped)
        entries = show.count(number, "entry", "entries")
        if sys.stderr.isatty():
            click.echo(f"\r{entries}, {outcome.written:,} {self.done} …", nl=False, err=True)
        elif number - self.told >= 1000:
            self.told = number
            show.note(f"{entries}, {outcome.written:,} {self.done}")


def end_transfer(outcome: Outcome, target: str, as_json: bool) -> None:
    """Print what has become of a transfer, and end: with exit status 65 where something was not taken over."""
    if as_json:
        told = {"written": outcome.written, "same": outcome.same, "skipped": outcome.skipped}
        show.document({**told, "replaced": outcome.replaced, "left": outcome.left})
    else:
        for what in outcome.replaced:
            show.line(f"replaced: {what}: it had another value")
        for what in outcome.left:
            show.line(
                f"left as it is: {what}: it has changed in Airflow since it was exported; --overwrite-newer replaces it"
            )
        for skipped in outcome.skipped:
            show.line(f"not taken over: {skipped.what}: {skipped.why}")
        entries = show.count(outcome.written, "entry", "entries")
        replaced = f" ({len(outcome.replaced):,} replaced)" if outcome.replaced else ""
        left = f", {len(outcome.left):,} changed there since and left" if outcome.left else ""
        show.line(
            f"{entries} written to {target}{replaced}, {outcome.same:,} there already{left}, "
            f"{len(outcome.skipped):,} not taken over"
        )
    raise click.exceptions.Exit(Mistake.exit_code if outcome.skipped else 0)


def end_sweep(found: Findings, failed: list[str], delete: bool, drop_lost: bool, as_json: bool) -> None:
    """Print what a sweep has found, and end: with exit status 65 where something is lost, unreadable or left over."""
    lost = [row.name for row in found.lost]
    if as_json:
        expired = [row.name for row, _ in found.expired]
        told = {"deleted": delete, "orphans": found.orphans, "expired": expired, "lost": lost}
        unsure = {"unreadable": found.unreadable, "withheld": found.withheld}
        show.document({**told, **unsure, "young": found.young, "kept": found.kept, "failed": failed})
    else:
        verb = "Removed" if delete else "Would remove"
        listed(f"{verb} {show.count(len(found.orphans), 'value')} that nothing refers to", found.orphans)
        names = [row.name for row, _ in found.expired]
        listed(f"{verb} {show.count(len(names), 'row')} past their time, with their values", names)
        listed(f"{show.count(len(lost), 'row')} whose value is lost{' removed' if delete and drop_lost else ''}", lost)
        unreadable = f"{show.count(len(found.unreadable), 'row')} that cannot be read"
        listed(f"{unreadable}, left with {show.count(found.withheld, 'value')} that may be theirs", found.unreadable)
        kept, young = show.count(found.kept, "value"), f"{found.young:,} {_are(found.young)} too young to say"
        show.line(f"{kept} {_are(found.kept)} referred to, {young}.")
        for problem in failed:
            show.line(f"PROBLEM: {problem}")
    is_left = found.unreadable or (lost and not (delete and drop_lost))
    raise click.exceptions.Exit(Mistake.exit_code if failed or is_left else 0)


def listed(title: str, names: list[str]) -> None:
    """Print the beginning of a list under its title; nothing for an empty one."""
    if names:
        show.line(f"{title}:")
        for name in names[:SHOWN]:
            show.line(f"  {name}")
        if len(names) > SHOWN:
            show.line(f"  and {len(names) - SHOWN:,} more")


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
