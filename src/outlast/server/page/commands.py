"""What is seen here, as something to type elsewhere: curl, the command line, Python."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from ..outlast_shapes import ScopeShape

__all__ = ["Command", "command_line", "curl", "state_commands"]


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


def state_commands(scope: ScopeShape, url: str, server: str, key: str | None = None) -> list[Command]:
    """Return how to read a scope's state, or one key of it, without this page."""
    verb, last = ("ls", []) if key is None else ("get", [key])
    what = "items()" if key is None else f"get({key!r})"
    return [
        curl(url),
        Command("Command line", command_line("outlast", "state", verb, *_words(scope), *last, "--store", server)),
        Command("Python", f"import outlast\n\nwith outlast.connect({server!r}) as store:\n    {_python(scope, what)}"),
    ]


def _words(scope: ScopeShape) -> Sequence[str]:
    if scope.kind == "asset":
        return ["--asset", scope.name] if scope.name is not None else ["--asset-uri", str(scope.uri)]
    return [_address(scope)]


def _address(scope: ScopeShape) -> str:
    place = f"{scope.dag_id}/{scope.run_id}/{scope.task_id}"
    return place if scope.map_index in (None, -1) else f"{place}/{scope.map_index}"


def _python(scope: ScopeShape, what: str) -> str:
    if scope.kind == "asset":
        name = repr(scope.name) if scope.name is not None else f"uri={scope.uri!r}"
        return f"print(store.asset({name}).{what})"
    return f"print(store.task({_address(scope)!r}).{what})"
