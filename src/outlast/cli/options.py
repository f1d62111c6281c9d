"""Options and arguments that several commands share, and reading what people write in them."""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from ..errors import OutlastError
from ..values import NEVER_EXPIRE, Cursor, Scope, asset_scope, item_scope, parse_task

__all__ = [
    "Command",
    "Commands",
    "Mistake",
    "NobodyToAsk",
    "Place",
    "as_json",
    "as_mistake",
    "at_place",
    "at_scope",
    "cursor_text",
    "duration",
    "refuse_unknown",
    "retention",
    "reveal",
    "revision_number",
    "revision_or_absent",
    "words",
]

F = TypeVar("F", bound=Callable[..., Any])


class Mistake(click.ClickException):
    """What was asked for cannot be done as asked; the message says why."""

    exit_code = 65

    def show(self, file: Any = None) -> None:
        click.echo(f"outlast: {self.message}", file=file, err=file is None)


class NobodyToAsk(Mistake):
    """A question needs an answer and there is no terminal to ask on."""

    exit_code = 2


@contextmanager
def as_mistake() -> Iterator[None]:
    """Take a ValueError or TypeError of a call made with a person's words for that person's mistake."""
    try:
        yield
    except OutlastError:
        raise
    except (ValueError, TypeError) as error:
        raise Mistake(str(error)) from error


class Command(click.Command):
    """A command that refuses an option given twice, of which one would be lost, unless it says that it may be."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            _refuse_twice(order)
        return super().parse_args(ctx, args)


def _refuse_twice(given: Sequence[click.Parameter]) -> None:
    single = [param for param in given if isinstance(param, click.Option) and _is_single(param)]
    for param, number in Counter(single).items():
        if number > 1 and param.secondary_opts:
            raise click.UsageError(f"{param.opts[0]} and {param.secondary_opts[0]} exclude each other; give one, once")
        if number > 1:
            raise click.UsageError(f"{max(param.opts, key=len)} is given {number} times; give it once")


def _is_single(option: click.Option) -> bool:
    """Say whether an option means something else the second time it is given."""
    return not (option.multiple or option.count or (option.is_flag and not option.secondary_opts))


class Commands(click.Group):
    """A group that lists its commands when none is given, and names the nearest when there is none of that name."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            refuse_unknown(self, ctx, args[0])
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)


def refuse_unknown(group: click.Group, ctx: click.Context, name: str) -> None:
    """Refuse the name of no command, saying which is nearest; what begins as an option does is left to click."""
    if ctx.resilient_parsing or not name[:1].isalnum():
        return
    known = group.list_commands(ctx)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
    ctx.fail(f"No such command {name!r}. {hint}")


# --- What people write -------------------------------------------------------------------------------------

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(?:\d{1,9}(?:\.\d{1,6})?[smhdw])+", re.ASCII)
_PART = re.compile(r"([\d.]+)([smhdw])", re.ASCII)


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """Read a span of time: 90s, 15m, 12h, 7d, 2w, or several of them (1d12h)."""
    return None if value is None else _span(value, "")


def retention(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """Read a span of time, or `never`."""
    if value == "never":
        return NEVER_EXPIRE
    return None if value is None else _span(value, ", or never")


def _span(text: str, also: str) -> timedelta:
    if not _SPAN.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is not a span of time; write for instance 90s, 15m, 12h, 7d, 2w or 1d12h{also}"
        )
    parts = _PART.findall(text)
    try:
        return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta())
    except OverflowError:
        raise click.BadParameter(f"{text!r} is longer than outlast can count; write a shorter one{also}") from None


def revision_or_absent(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """Read a revision, or `absent` for a key that must not be there."""
    return value if value is None or value == "absent" else revision_number(value, ", or absent")


def revision_number(text: str, also: str = "") -> int:
    """Read a revision."""
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is not a revision; write a number that `ls` or `history` shows{also}")
    return int(text)


def cursor_text(ctx: click.Context, param: click.Parameter, value: str | None) -> Cursor | None:
    """Read a place in a scope's life, as a watch prints it."""
    try:
        return None if value is None else Cursor.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


# --- Which store, which scope ------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """What the options say about where: the store's URL, an asset where no task is meant, an item of a mapped task."""

    url: str | None
    asset: str | None = None
    asset_uri: str | None = None
    item: str | None = None

    @property
    def of_asset(self) -> bool:
        return self.asset is not None or self.asset_uri is not None

    def scope_and(self, given: Sequence[str], *names: str, more: bool = False) -> tuple[Scope, list[str]]:
        """Split a command's words into the scope (the first one, unless an asset is meant) and the rest.

        `names` are what the rest consists of; with `more` the last of them may come several times.
        """
        wanted = names if self.of_asset else ("ADDRESS", *names)
        if len(given) < len(wanted) or (len(given) > len(wanted) and not more):
            raise click.UsageError(_wrong_count(given, wanted, self.of_asset))
        if self.of_asset and self.item is not None:
            raise click.UsageError("--item is an item of a mapped task; an asset has none")
        if self.of_asset:
            return asset_scope(self.asset, self.asset_uri), list(given)
        return item_scope(parse_task(given[0]), self.item), list(given[1:])


def _wrong_count(given: Sequence[str], wanted: Sequence[str], of_asset: bool) -> str:
    strange = next((word for word in given if word.startswith("--")), None)
    if strange is not None:
        return f"No such option: {strange}"
    place = "the asset's option stands for the address" if of_asset else "ADDRESS is DAG/RUN/TASK or DAG/RUN/TASK/INDEX"
    return f"this needs {' '.join(wanted) or 'no argument'}; {place}. Given: {' '.join(given) or 'nothing'}"


_STORE = click.option(
    "--store", "url", metavar="URL", help="The store, a file or a URL; by default what `outlast doctor` says."
)
_ASSET = click.option("--asset", metavar="NAME", help="Mean the asset of this name instead of a task.")
_ITEM = click.option(
    "--item", metavar="KEY", help="Mean the item of this key, by the task's `map_key`, instead of one at an INDEX."
)
_ASSET_URI = click.option("--asset-uri", metavar="URI", help="Mean the asset of this URI instead of a task.")


def at_place(command: F) -> F:
    """Give a command `--store`, handed to it as a `Place`."""

    @functools.wraps(command)
    def with_place(*args: Any, url: str | None, **kwargs: Any) -> Any:
        return command(*args, place=Place(url), **kwargs)

    return _STORE(with_place)  # type: ignore[return-value]


def at_scope(command: F) -> F:
    """Give a command `--item`, `--asset`, `--asset-uri` and `--store`, handed to it as a `Place`."""

    @functools.wraps(command)
    def with_place(
        *args: Any, url: str | None, asset: str | None, asset_uri: str | None, item: str | None, **kwargs: Any
    ) -> Any:
        return command(*args, place=Place(url, asset, asset_uri, item), **kwargs)

    return _ITEM(_ASSET(_ASSET_URI(_STORE(with_place))))  # type: ignore[return-value]


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
reveal = click.option("--reveal", is_flag=True, help="Show values that `[state_store] secret_keys` would mask.")


def words(shown: str) -> Callable[[F], F]:
    """Give a command its words (an address, keys, …), completed from the store."""
    return click.argument("given", metavar=shown, nargs=-1, shell_complete=_complete)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from .completion import complete_words

    return complete_words(ctx, incomplete)
