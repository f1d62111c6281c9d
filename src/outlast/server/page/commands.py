"""What is seen here, as something to type elsewhere: curl, the command line, Python."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from ..outlast_shapes import ScopeShape

__all__ = ["Command", "address_words", "command_line", "curl", "python", "python_scope", "state_commands"]


class Command(msgspec.Struct, frozen=True):
    """A text to copy, and what it is for."""

    name: str
    text: str


def command_line(*words: str) -> str:
    """Return words as a shell takes them."""
    return shlex.join(words)


def curl(url: str) -> Command:
    """Return the request that answers what a view shows."""
    return Command("curl", f'curl -H "Authorization: Bearer $OUTLAST_TOKEN" {shlex.quote(url)}')


def python(server: str, line: str) -> Command:
    """Return a program of one line in the block of a connected store."""
    more = "import datetime\n\n" if "datetime." in line else ""
    return Command("Python", f"{more}import outlast\n\nwith outlast.connect({server!r}) as store:\n    {line}")


def state_commands(scope: ScopeShape, url: str, server: str, key: str | None = None) -> list[Command]:
    """Return how to read a scope's state, or one key of it, without this page."""
    verb, last = ("ls", []) if key is None else ("get", [key])
    line = command_line("outlast", "state", verb, *address_words(scope), *last, "--store", server)
    what = "items()" if key is None else f"get({key!r})"
    return [
        curl(url),
        Command("Command line", line),
        python(server, f"print({python_scope(scope)}.{what})"),
    ]


def address_words(scope: ScopeShape) -> Sequence[str]:
    """Return how the command line is told of a scope."""
    if scope.kind == "asset":
        return ["--asset", scope.name] if scope.name is not None else ["--asset-uri", str(scope.uri)]
    return [_address(scope)]


def _address(scope: ScopeShape) -> str:
    place = f"{scope.dag_id}/{scope.run_id}/{scope.task_id}"
    return place if scope.map_index in (None, -1) else f"{place}/{scope.map_index}"


def python_scope(scope: ScopeShape) -> str:
    """Return the expression that is a scope's state in a program."""
    if scope.kind == "asset":
        name = repr(scope.name) if scope.name is not None else f"uri={scope.uri!r}"
        return f"store.asset({name})"
    return f"store.task({_address(scope)!r})"
