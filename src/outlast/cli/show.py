"""What commands print: tables for people, documents for programs, and masks over secrets."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import msgspec

from .. import codec
from ..config import Config
from ..finding import matches
from ..values import AssetScope, Entry, JsonValue, Scope, Version, Writer

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "MASK",
    "Column",
    "age",
    "count",
    "cut",
    "diagnosis",
    "document",
    "entry_document",
    "hides",
    "is_secret",
    "note",
    "scope_document",
    "table",
    "value_text",
    "version_document",
    "visible",
    "when",
    "writer_document",
]

MASK = "***"
#: Characters of a value in a table, at most; `get` shows all of it.
VALUE_WIDTH = 60


# --- For programs ----------------------------------------------------------------------------------------


def document(value: Any) -> None:
    """Print one JSON document on one line, UTF-8; values keep their exact JSON text."""
    click.echo(msgspec.json.encode(value))


def scope_document(scope: Scope) -> dict[str, Any]:
    """Return a scope for a program: its address as one word, and its parts."""
    if isinstance(scope, AssetScope):
        return {"kind": "asset", "name": scope.name, "uri": scope.uri}
    return {
        "kind": "task",
        "address": str(scope),
        "dag_id": scope.dag_id,
        "run_id": scope.run_id,
        "task_id": scope.task_id,
        "map_index": scope.map_index,
        "item": scope.item,
    }


def entry_document(entry: Entry, hidden: bool) -> dict[str, Any]:
    """Return an entry for a program; a hidden value is null and `masked` true."""
    return {
        "key": entry.key,
        "value": None if hidden else entry.value,
        "masked": hidden,
        "bytes": len(codec.dump(entry.value)),
        "revision": entry.revision,
        "updated_at": entry.updated_at,
        "expires_at": entry.expires_at,
        "writer": writer_document(entry.writer),
    }


def version_document(version: Version, hidden: bool) -> dict[str, Any]:
    """Return one version of a key for a program; a hidden value is null and `masked` true."""
    return {
        "key": version.key,
        "value": None if hidden else version.value,
        "masked": hidden,
        "deleted": version.deleted,
        "revision": version.revision,
        "at": version.at,
        "writer": writer_document(version.writer),
    }


def writer_document(writer: Writer) -> dict[str, Any]:
    """Return who wrote for a program."""
    scope = None if writer.scope is None else str(writer.scope)
    return {"kind": writer.kind, "attempt": writer.attempt, "name": writer.name, "scope": scope}


# --- For people --------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of a table: its title, whether it holds numbers, and what a narrow terminal does to it."""

    title: str
    number: bool = False
    narrow: Literal["fold", "cut", "keep"] = "fold"


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under titles, fitted to the terminal if there is one."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells)
    else:
        _plain_table(columns, cells)


def _plain_table(columns: Sequence[Column], rows: list[list[str]]) -> None:
    lines = [[column.title for column in columns], *rows]
    widths = [max(_width(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        padded = [_pad(cell, width, column.number) for cell, width, column in zip(line, widths, columns, strict=True)]
        click.echo("  ".join(padded).rstrip())


def _pad(cell: str, width: int, number: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if number else cell + blanks


def _width(text: str) -> int:
    """Return how many places a text takes; a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _rich_table(columns: Sequence[Column], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        keep = column.number or column.narrow == "keep"
        shown.add_column(column.title, justify="right" if column.number else "left", no_wrap=keep, overflow="fold")
    for row in rows:
        cells = zip(columns, row, strict=True)
        shown.add_row(*[_cut_by_rich(Text(cell)) if column.narrow == "cut" else Text(cell) for column, cell in cells])
    Console(file=sys.stdout, highlight=False).print(shown)


def _cut_by_rich(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def visible(text: str) -> str:
    """Return a text with what a terminal would obey, or not show, escaped as JSON does it."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def value_text(value: JsonValue, hidden: bool = False) -> str:
    """Return a value as JSON text, or the mask."""
    return MASK if hidden else codec.dump(value, allow_none=True).decode()


def cut(text: str, width: int = VALUE_WIDTH) -> str:
    """Return a text shortened to fit in a table."""
    return text if len(text) <= width else text[: width - 1] + "…"


def when(moment: datetime | None, absent: str = "") -> str:
    """Return a moment to the second, in UTC."""
    return absent if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def age(moment: datetime | None, absent: str = "") -> str:
    """Return a moment for a table: to the second in UTC, or on a terminal, which has little room, how far off it is."""
    if moment is None or not sys.stdout.isatty():
        return when(moment, absent)
    seconds = int((moment - datetime.now(UTC)).total_seconds())
    size, unit = next((known for known in _UNITS if known[0] <= abs(seconds)), (1, "s"))
    amount = f"{round(abs(seconds) / size)} {unit}"
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 key, 2 keys."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def note(text: str) -> None:
    """Tell a person something beside the output, on standard error."""
    click.echo(visible(text), err=True)


def is_secret(config: Config, key: str, reveal: bool) -> bool:
    """Say whether a key's value is to be masked (`[state_store] secret_keys`)."""
    return not reveal and any(matches(key, pattern) for pattern in config.state_store.secret_keys)


def hides(place: Any, key: str, value: Any, reveal: bool) -> bool:
    """Say whether a value of a store (or a state in it) is masked: by a setting here, or by the server it came from."""
    masked_there = value == MASK and getattr(place.backend, "reveals", None) is False
    return is_secret(place.config, key, reveal) or masked_there


def line(text: str) -> None:
    """Print a line for people."""
    click.echo(visible(text))


def diagnosis(facts: Mapping[str, str], problems: Sequence[str]) -> None:
    """Print what was found out, a fact a line, and what is wrong with it."""
    width = max(map(len, facts))
    for name, fact in facts.items():
        line(f"{name:{width}}  {fact}")
    for problem in problems:
        line(f"PROBLEM: {problem}")
    if not problems:
        line("All is well.")


def value(stored: JsonValue, hidden: bool, raw: bool) -> None:
    """Print one value: exactly its JSON (on a terminal with what it would obey escaped), or a raw text."""
    if raw and isinstance(stored, str) and not hidden:
        click.echo(stored.encode())
    elif sys.stdout.isatty():
        line(value_text(stored, hidden))
    else:
        click.echo(value_text(stored, hidden).encode())
