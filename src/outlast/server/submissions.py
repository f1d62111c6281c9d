"""Submissions of jobs to other systems whose outcome is not recorded: what their intents look like, which are open."""

from __future__ import annotations

from typing import Final

import msgspec

from ..backends import Backend
from ..errors import NotFound
from ..requests import Find, FindPage, Found, FoundRow, Read
from ..run_requests import GetRun, RunDetail, TaskRow
from ..values import TaskScope

__all__ = ["Submission", "is_found_uncertain", "open_submissions"]

#: What the key of an intent ends with; before that it is the key of the job's id.
ENDING: Final = ".intent"
#: Intents looked at, at most.
MOST: Final = 500
#: Microseconds for which a submission may be under way where nothing says whether its attempt still runs.
UNDER_WAY: Final = 60 * 1_000_000
#: States in which it does not matter any more whether there is a job.
_SETTLED: Final = frozenset({"success", "skipped"})


class _Intent(msgspec.Struct, frozen=True):
    """What is stored before a job is submitted, and how often its outcome was found to be uncertain since."""

    token: str
    uncertain: int = 0


class Submission(msgspec.Struct, frozen=True):
    """A job that may or may not have been started; `state` is that of its task instance, None where there is no run."""

    scope: TaskScope
    key: str
    state: str | None


def is_found_uncertain(name: str, text: str) -> bool:
    """Say whether a value that is written is an intent of which an attempt has found the outcome uncertain."""
    intent = _intent(name, text)
    return intent is not None and intent.uncertain > 0


def open_submissions(backend: Backend, now: int) -> tuple[list[Submission], bool]:
    """Return the submissions without a recorded job that nobody is about to record; and whether that is all."""
    page: FindPage = backend.send(Find(ending=ENDING, limit=MOST))
    found = [_open(backend, each, now) for each in page.rows if _intent(each.row.name, each.row.text or "")]
    return [each for each in found if each is not None], page.after is None


def _intent(name: str, text: str) -> _Intent | None:
    if not name.endswith(ENDING):
        return None
    try:
        return msgspec.json.decode(text, type=_Intent)
    except msgspec.DecodeError:
        return None


def _open(backend: Backend, found: FoundRow, now: int) -> Submission | None:
    scope, row = found.scope, found.row
    assert isinstance(scope, TaskScope)
    key = row.name.removesuffix(ENDING)
    job: Found = backend.send(Read(scope, (key,), texts=False))
    if job.rows:  # stored since by somebody else, and then it decides
        return None
    task = _task(backend, scope)
    if task is None:
        return Submission(scope, key, None) if now - row.updated_at > UNDER_WAY else None
    is_under_way = task.state == "running" and task.lease_until >= now and row.writer.attempt == task.attempt
    return None if is_under_way or task.state in _SETTLED else Submission(scope, key, task.state)


def _task(backend: Backend, scope: TaskScope) -> TaskRow | None:
    try:
        detail: RunDetail = backend.send(GetRun(scope.dag_id, scope.run_id, scope.task_id))
    except NotFound:
        return None
    return next((task for task in detail.tasks if task.scope == scope), None)
