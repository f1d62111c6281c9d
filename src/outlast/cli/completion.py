"""`outlast completion`: completing commands, addresses and keys in a shell."""

from __future__ import annotations

import logging

import click
from click.shell_completion import CompletionItem, get_completion_class

from ..errors import OutlastError
from ..requests import ListScopes, ScopePage
from ..store import Store
from ..values import Scope, TaskScope, asset_scope, item_scope, parse_task
from .addresses import by_position
from .opening import opened, state_of
from .options import Command

__all__ = ["complete_words", "completion"]

#: Scopes looked at for one completion, at most: a person is waiting.
MOST = 1000


@click.command(cls=Command, short_help="Print the script that completes commands in your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets a shell complete commands, options, addresses and keys.

    \b
    eval "$(outlast completion bash)"                                    # in ~/.bashrc
    eval "$(outlast completion zsh)"                                     # in ~/.zshrc
    outlast completion fish > ~/.config/fish/completions/outlast.fish
    """
    from . import COMPLETE_VARIABLE, outlast

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(outlast, {}, "outlast", COMPLETE_VARIABLE).source())


def complete_words(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the addresses, or the keys of the scope given, that begin with what is typed; nothing where in doubt."""
    logging.getLogger("outlast").disabled = True  # a warning would land in the middle of the line
    given = list(ctx.params.get("given") or ())
    asset, uri = ctx.params.get("asset"), ctx.params.get("asset_uri")
    try:
        with opened(ctx.params.get("url"), create=False) as store:
            if asset is None and uri is None and not given:
                return [CompletionItem(name) for name in _addresses(store, incomplete)]
            if asset is None and uri is None:
                scope: Scope = item_scope(parse_task(given[0]), ctx.params.get("item"))
            else:
                scope = asset_scope(asset, uri)
            return [CompletionItem(key) for key in state_of(store, scope).keys(incomplete)[:MOST]]
    except OutlastError:
        return []


def _addresses(store: Store, incomplete: str) -> list[str]:
    """Return addresses that begin so; ids typed in full narrow the search."""
    dag_id, run_id, *_ = [*incomplete.split("/")[:-1], None, None]
    page: ScopePage = store.backend.send(ListScopes(dag_id, run_id, limit=MOST))
    found = {by_position(info.scope) for info in page.scopes if isinstance(info.scope, TaskScope)}
    return sorted(name for name in found if name.startswith(incomplete))
