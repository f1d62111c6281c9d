"""`outlast tasks clear`: have task instances run again, with or without what they had stored."""

from __future__ import annotations

from typing import Any

import click

from .. import codec
from ..errors import InvalidKey
from ..run_requests import RunRow, TaskRow, Touched
from ..store import Store
from ..values import Entry, JsonValue
from . import show
from .addresses import by_position, parse_instance, tasks_argument
from .asking import confirm, is_asked
from .opening import opened, state_of
from .options import Place, as_json, at_place
from .person import person
from .run_views import is_held, resume_line, run_name

__all__ = ["clear"]

#: Task instances listed before a question; the others are counted.
_SHOWN = 20
#: Keys told of one task instance.
_KEYS = 6


@click.command(short_help="Have task instances run again.")
@tasks_argument
@at_place
@click.option("--downstream", is_flag=True, help="Also everything that waits for them, at any distance.")
@click.option(
    "--keep-state/--discard-state",
    "keep",
    default=None,
    help="Keep what they stored, or remove it; default: asked on a terminal, else `[state_store] discard_on_clear`.",
)
@click.option("--force", is_flag=True, help="Also instances of a mapped task that run; they are stopped first.")
@click.option("--dry-run", is_flag=True, help="Only say what would be cleared.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def clear(
    place: Place,
    addresses: tuple[str, ...],
    downstream: bool,
    keep: bool | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Have task instances of a run run again, all in one step. Without INDEX every instance of a mapped task is meant.

    What they have stored is kept, unless you choose otherwise: so a task finds the job it had submitted, or goes on
    after the last item done. Discarding begins from the start. Retries are counted anew and results go. Tasks
    below that were skipped or gave up because of them are cleared as well. An attempt that runs is stopped.

    \b
    outlast tasks clear nightly/2026-11-29/ingest
    outlast tasks clear nightly/2026-11-29/load/3 nightly/2026-11-29/load/4 --discard-state
    outlast tasks clear nightly/2026-11-29/ingest --downstream --dry-run
    """
    dag_id, run_id, chosen = _chosen(addresses)
    with opened(place.url, create=False) as store:
        verbs = store.runs_as(person())
        would = verbs.clear(dag_id, run_id, chosen, downstream=downstream, dry_run=True)
        stored = {task.scope: state_of(store, task.scope).entries() for task in would.tasks}
        discard = None if keep is None else not keep
        if not (yes or dry_run or as_json) and is_asked():
            _tell(store, would, stored)
            discard = _ask(store, would, stored, discard)
        likely = store.config.state_store.discard_on_clear if discard is None else discard
        if dry_run:
            _show_dry(store, would, stored, likely, as_json)
            return
        touched = verbs.clear(dag_id, run_id, chosen, discard=discard, downstream=downstream, force=force)
        _show_cleared(
            touched, sum(map(len, stored.values())), likely, is_held(touched.run, store.clock()), place, as_json
        )


def _chosen(addresses: tuple[str, ...]) -> tuple[str, str, list[str | tuple[str, int]]]:
    """Return the run, and the tasks (or task and index) of it that are meant."""
    scopes = [parse_instance(address) for address in addresses]
    runs = {(scope.dag_id, scope.run_id) for scope in scopes}
    if len(runs) > 1:
        raise InvalidKey("these task instances are of different runs; clear one run after the other")
    dag_id, run_id = runs.pop()
    return dag_id, run_id, [s.task_id if s.map_index < 0 else (s.task_id, s.map_index) for s in scopes]


# --- Asking --------------------------------------------------------------------------------------------------


def _tell(store: Store, would: Touched, stored: dict[Any, list[Entry]]) -> None:
    """Say what would be cleared, how much of it runs, and what each has stored."""
    show.note(f"{run_name(would.run)}: {_what(would.tasks)} would run again:")
    for task in would.tasks[:_SHOWN]:
        keys = _keys_text(store, stored[task.scope])
        show.note(f"  {task.scope} ({task.state}){'' if keys is None else f', has stored {keys}'}")
    if len(would.tasks) > _SHOWN:
        show.note(f"  … and {len(would.tasks) - _SHOWN} more")


def _what(tasks: tuple[TaskRow, ...]) -> str:
    running = sum(task.state == "running" for task in tasks)
    stops = f", {running} of them running now, which would be stopped" if running else ""
    return f"{show.count(len(tasks), 'task instance')}{stops}"


def _keys_text(store: Store, entries: list[Entry]) -> str | None:
    """Return the keys with their sizes, None for none."""
    if not entries:
        return None
    shown = ", ".join(f"{entry.key} ({_bytes(entry)} bytes)" for entry in entries[:_KEYS])
    return shown + (f" and {show.count(len(entries) - _KEYS, 'more key')}" if len(entries) > _KEYS else "")


def _bytes(entry: Entry) -> int:
    return len(codec.dump(entry.value))


def _ask(store: Store, would: Touched, stored: dict[Any, list[Entry]], discard: bool | None) -> bool | None:
    """Ask whether to go on and, where it matters and is not said yet, what to do with the state."""
    if discard is not None or not any(stored.values()):
        _confirm(discard)
        return discard
    entries = next(entries for entries in stored.values() if entries)
    show.note(f"keep:    the next attempt {_next_with(store, entries)}")
    show.note(f"discard: the next attempt {_next_without(entries)}")
    default = "discard" if store.config.state_store.discard_on_clear else "keep"
    choice = click.Choice(["keep", "discard", "stop"])
    answer = click.prompt("Their state:", type=choice, default=default, err=True, prompt_suffix=" ")
    if answer == "stop":
        show.note("nothing was cleared")
        raise click.exceptions.Exit(1)
    return bool(answer == "discard")


def _confirm(discard: bool | None) -> None:
    told = {None: "None of them has stored anything.", True: "Their state is discarded.", False: "Their state is kept."}
    confirm(told[discard], "Clear them?", "nothing was cleared")


def _next_with(store: Store, entries: list[Entry]) -> str:
    """Say what an attempt finds that has these entries, as far as their keys tell."""
    found = {entry.key: entry for entry in entries if not show.is_secret(store.config, entry.key, reveal=False)}
    job = found.get("remote_job_id")
    if job is not None:
        return f"finds job {show.cut(show.value_text(job.value))} and asks whether it still runs"
    done = next((_done(entry.value) for entry in found.values() if _done(entry.value) is not None), None)
    if done is not None:
        return f"goes on after item {done:,}"
    keys = ", ".join(entry.key for entry in entries[:_KEYS])
    return f"finds {keys}{' and more' if len(entries) > _KEYS else ''}, and goes on from there"


def _done(value: JsonValue) -> int | None:
    """Return how many items a checkpoint's mark, or a progress, says are done."""
    match value:
        case {"done": int(done)}:
            return done
    return None


def _next_without(entries: list[Entry]) -> str:
    if any(entry.key == "remote_job_id" for entry in entries):
        return "submits its job anew, even if the old one is still running"
    return "begins from the start, as if none had run before"


# --- What was done -------------------------------------------------------------------------------------------


def _show_dry(store: Store, would: Touched, stored: dict[Any, list[Entry]], discard: bool, as_json: bool) -> None:
    keys = sum(map(len, stored.values()))
    if as_json:
        show.document(_document(would, discard, keys, True, None))
        return
    show.line(f"would clear {_what(would.tasks)}; {_state_text(keys, discard)}")
    for task in would.tasks:
        text = _keys_text(store, stored[task.scope])
        show.line(f"{task.scope} ({task.state}){'' if text is None else f', has stored {text}'}")


def _show_cleared(touched: Touched, keys: int, discard: bool, held: bool, place: Place, as_json: bool) -> None:
    run = touched.run
    go_on = None if held else resume_line(run, place.url)
    if as_json:
        show.document(_document(touched, discard, keys, False, go_on))
        return
    show.line(f"cleared {show.count(len(touched.tasks), 'task instance')}; {_state_text(keys, discard)}")
    for task in touched.tasks if len(touched.tasks) <= _SHOWN else ():
        show.line(f"  {task.scope}")
    show.line(_going_on(run) if go_on is None else f"to run them: {go_on}")


def _going_on(run: RunRow) -> str:
    assert run.holder is not None
    return f"the run's runner (process {run.holder.pid} on {run.holder.host}) goes on with them"


def _state_text(keys: int, discard: bool) -> str:
    if not keys:
        return "they have stored nothing"
    return f"{show.count(keys, 'key')} {'discarded' if discard else 'kept'}"


def _document(touched: Touched, discard: bool, keys: int, dry_run: bool, go_on: str | None) -> dict[str, Any]:
    return {
        "run": run_name(touched.run),
        "dry_run": dry_run,
        "cleared": [by_position(task.scope) for task in touched.tasks],
        "keys": keys,
        "discarded": discard,
        "go_on": go_on,
    }
