"""`outlast state`: look at and change what tasks and assets have stored."""

from __future__ import annotations

import click

from .options import Commands
from .state_changing import clear, restore, rm, set_value
from .state_reading import find, get, history, ls, watch

__all__ = ["state"]


@click.group(cls=Commands)
def state() -> None:
    """Look at and change what tasks and assets have stored.

    A task instance has an ADDRESS, DAG/RUN/TASK, or DAG/RUN/TASK/INDEX where it is mapped; an asset is meant by
    --asset NAME or --asset-uri URI instead.

    \b
    outlast state ls                                          every scope
    outlast state ls nightly/2026-11-29/ingest                its keys
    outlast state get nightly/2026-11-29/ingest page          one value, as JSON
    outlast state set nightly/2026-11-29/ingest page 41       change it
    outlast state history nightly/2026-11-29/ingest page      what it was, and who wrote it
    outlast state find --key progress --where '$.done < 100'  across scopes
    """


for command in (ls, get, set_value, rm, clear, history, restore, watch, find):
    state.add_command(command)
