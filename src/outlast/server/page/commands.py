"""What is seen here, as something to type elsewhere: curl, the command line, Python."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from ..outlast_shapes import ScopeShape

__all__ = ["Command", "command_line", "curl", "python", "python_scope", "scope_words", "state_commands", "text"]


class Command(msgspec.Struct, frozen=True):
    """A text to copy, and what it is for."""

    name: str
    text: str


def command_line(verb: str, *names: str, store: str, options: Sequence[str] = ()) -> str:
    """Return a command as a shell takes it; options come first where a name could be taken for one."""
    more = [*options, "--store", store]
    words = [*more, "--", *names] if any(name.startswith("-") for name in names) else [*names, *more]
    return shlex.join(["outlast", *verb.split(), *words])


def text(string: str) -> str:
    """Return a string as a program has it, and as the page's scripts write it."""
    return msgspec.json.encode(string).decode()


def curl(url: str) -> Command:
    """Return the request that answers what a view shows."""
    return Command("curl", f'curl -H "Authorization: Bearer $OUTLAST_TOKEN" {shlex.quote(url)}')


def python(server: str, line: str) -> Command:
    """Return a program of one line in the block of a connected store."""
    more = "import datetime\n\n" if "datetime." in line else ""
    return Command("Python", f"{more}import outlast\n\nwith outlast.connect({text(server)}) as store:\n    {line}")


def state_commands(scope: ScopeShape, url: str, server: str, key: str | None = None) -> list[Command]:
    """Return how to read a scope's state, or one key of it, without this page."""
    names, options = scope_words(scope)
    verb, last = ("state ls", []) if key is None else ("state get", [key])
    line = command_line(verb, *names, *last, store=server, options=options)
    what = "items()" if key is None else f"get({text(key)})"
    return [
        curl(url),
        Command("Command line", line),
        python(server, f"print({python_scope(scope)}.{what})"),
    ]


def scope_words(scope: ScopeShape) -> tuple[list[str], list[str]]:
    """Return how the command line is told of a scope: names, and options."""
    if scope.kind == "asset":
        return [], ["--asset", scope.name] if scope.name is not None else ["--asset-uri", str(scope.uri)]
    return [_address(scope)], []


def _address(scope: ScopeShape) -> str:
    place = f"{scope.dag_id}/{scope.run_id}/{scope.task_id}"
    return place if scope.map_index in (None, -1) else f"{place}/{scope.map_index}"


def python_scope(scope: ScopeShape) -> str:
    """Return the expression that is a scope's state in a program."""
    if scope.kind == "asset":
        name = text(scope.name) if scope.name is not None else f"uri={text(str(scope.uri))}"
        return f"store.asset({name})"
    return f"store.task({text(_address(scope))})"
