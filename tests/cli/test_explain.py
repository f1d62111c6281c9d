"""`outlast tasks explain`: what the next attempt would do, as the job's system and the store tell; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import outlast
from outlast.deferral_requests import Deferral
from outlast.run_requests import ProcessRef, Resolve
from outlast.runner import processes
from support.runs import Desk

from .conftest import Told

Call = Callable[..., Told]

LONG = 10.0**9  # seconds: a lease that holds although the store's clock stands still

FILE = """
import sys
from pathlib import Path
from outlast import DAG, BaseOperator, task
from outlast.dags.resumable import JobNotFound, ResumableJobMixin

print("the file is read")
HERE = Path(__file__).parent

class Query(ResumableJobMixin, BaseOperator):
    def __init__(self, *, of=None, **kwargs):
        super().__init__(**kwargs)
        self.of = of

    def execute(self, context):
        return self.execute_resumable(context)

    def submit_job(self, context):
        (HERE / "submitted").touch()

    def get_job_status(self, external_id, context):
        context["task_state_store"].set("status seen", external_id)
        print("asked")
        if external_id == "gone":
            raise JobNotFound(external_id)
        if external_id == "down":
            raise ConnectionError("no network")
        return {"a": "RUNNING", "b": "DONE"}.get(external_id, "FAILED")

    def is_job_active(self, status):
        return status == "RUNNING"

    def is_job_succeeded(self, status):
        return status == "DONE"

    def poll_until_complete(self, external_id, context): ...
    def get_job_result(self, external_id, context): ...

class Findable(Query):
    def find_job(self, token, context):
        return {"t": "a"}.get(token)

class Careful(Query):
    on_uncertain = "fail"

with DAG("nightly"):
    @task(retries=3)
    def source(): ...

    @task
    def lots(n): ...

    Query(task_id="query", of=source(), retries=2)
    Findable(task_id="findable")
    Careful(task_id="careful")
    lots.expand(n=[1, 2])
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "nightly.py").write_text(FILE)
    return tmp_path / "nightly.py"


@pytest.fixture
def desk(store: outlast.Store, file: Path) -> Desk:
    """A run whose source has ended, so that everything else may begin."""
    made = Desk(store.backend)
    made.start("source", ("query", "source"), "findable", "careful", file=str(file), holder=processes.me(), lease=LONG)
    made.ran("source", result='"x"')
    return made


@pytest.fixture
def whole(place: str) -> Callable[[], Any]:
    """Return everything that is in the store's file."""

    def rows() -> Any:
        connection = apsw.Connection(place)
        try:
            names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
            return {name: list(connection.execute(f'select * from "{name}"')) for name in names}
        finally:
            connection.close()

    return rows


def explained(call: Call, task_id: str = "query", *more: str) -> dict[str, Any]:
    told = call("tasks", "explain", f"nightly/r1/{task_id}", "--json", *more)
    assert told.status == 0, told.err
    document: dict[str, Any] = told.json
    return document


# --- Jobs --------------------------------------------------------------------------------------------------------

JOBS = [
    ("query", {}, "fresh_submit", "submits a job"),
    ("query", {"remote_job_id": "a"}, "reconnect", "waits for job 'a', which is RUNNING"),
    ("query", {"remote_job_id": "b"}, "already_succeeded", "returns the result of job 'b' at once"),
    ("query", {"remote_job_id": 0}, "terminal_resubmit", "submits another job: job 0 is FAILED"),
    ("query", {"remote_job_id": "gone"}, "terminal_resubmit", "submits another job: job 'gone' is gone"),
    (
        "query",
        {"remote_job_id.intent": {"token": "t"}},
        "uncertain",
        "submits its job again with the same token t; it may be a second one",
    ),
    (
        "careful",
        {"remote_job_id.intent": {"token": "t"}},
        "uncertain",
        "fails for good: nobody can tell whether its job was started",
    ),
    ("findable", {"remote_job_id.intent": {"token": "t"}}, "reconnect", "waits for job 'a', which is RUNNING"),
    (
        "findable",
        {"remote_job_id.intent": {"token": "u"}},
        "find_then_submit",
        "looks for its job once more, and then submits it again with the same token u",
    ),
]


@pytest.mark.parametrize(("task_id", "stored", "kind", "would"), JOBS, ids=[f"{j[0]}-{j[2]}-{j[1]}" for j in JOBS])
def test_what_would_become_of_a_job(
    call: Call,
    store: outlast.Store,
    desk: Desk,
    whole: Callable[[], Any],
    file: Path,
    task_id: str,
    stored: dict[str, Any],
    kind: str,
    would: str,
) -> None:
    desk.ran(task_id, "crashed", error="killed", crash_retries=9)
    for key, value in stored.items():
        store.task(f"nightly/r1/{task_id}").set(key, value)
    before = whole()
    found = explained(call, task_id)
    assert (found["decision"]["kind"], found["would"]) == (kind, would)
    assert found["keys"] == sorted(stored)
    told = call("tasks", "explain", f"nightly/r1/{task_id}")
    assert f"it would:      {would}" in told.out
    assert whole() == before
    assert not (file.parent / "submitted").exists()


def test_for_people(call: Call, store: outlast.Store, desk: Desk) -> None:
    desk.ran("query", "failed", error="ValueError: bad page", retries=2, retry_at=0)
    store.task("nightly/r1/query").set("remote_job_id", "a")
    told = call("tasks", "explain", "nightly/r1/query")
    assert told.lines == [
        "task:          nightly/r1/query",
        "state:         up_for_retry",
        "next:          attempt 2 begins at 1970-01-01T00:00:00Z",
        "it would:      waits for job 'a', which is RUNNING",
        "because:       job 'a' is RUNNING",
        "retries left:  1",
        "restarts left: 3 after a death of its process",
        "has stored:    remote_job_id",
        "error:         ValueError: bad page",
    ]
    assert told.err.splitlines() == ["the file is read", "asked"]


def test_a_system_that_does_not_answer(call: Call, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/query").set("remote_job_id", "down")
    found = explained(call)
    assert found["decision"] is None
    assert found["problem"] == "the job's system cannot be asked: ConnectionError('no network')"
    assert "it submits nothing" in found["would"]


def test_an_id_that_is_secret_is_masked(
    call: Call, store: outlast.Store, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "remote_*")
    store.task("nightly/r1/query").set("remote_job_id", "a")
    told = call("tasks", "explain", "nightly/r1/query")
    assert "'a'" not in told.out
    assert "waits for job '***', which is RUNNING" in told.out


# --- Tasks without a job, and what has to be first -----------------------------------------------------------------


def test_a_task_that_has_stored_nothing(call: Call, desk: Desk) -> None:
    found = explained(call, "source")
    assert found["next"] == "none: it has succeeded, and runs again only when it is cleared"
    assert found["would"] == "begins from the start: nothing is stored"
    assert (found["retries_left"], found["restarts_left"]) == (3, 3)
    assert found["decision"] is None


def test_a_checkpoint_and_other_keys(call: Call, store: outlast.Store, desk: Desk) -> None:
    state = store.task("nightly/r1/source")
    state.set("phase", "load")
    assert explained(call, "source")["would"] == "finds 1 key and does with them what its code says"
    state.set("progress", {"done": 4100, "total": 9000})
    assert explained(call, "source")["would"] == "goes on after item 4,100, if it uses the checkpoint"


def test_what_has_to_be_first(call: Call, store: outlast.Store, desk: Desk) -> None:
    assert explained(call)["next"] == "attempt 1 begins once source has ended as its rule wants"
    assert explained(call, "careful")["next"] == "attempt 1 begins at once"
    desk.begin("query", lease=LONG)
    assert explained(call)["next"] == "attempt 1 is running; the next one begins if it fails or dies"
    desk.report(desk.fence("query"), "deferred", deferral=Deferral("a.B", "{}", "done"))
    assert explained(call)["next"] == "attempt 1 waits for its trigger, and goes on with done()"


def test_a_run_that_nobody_runs(call: Call, store: outlast.Store, file: Path) -> None:
    desk = Desk(store.backend)
    desk.start("source", file=str(file), holder=ProcessRef(processes.me().host, 1, "never"), lease=LONG)
    desk.begin("source", lease=LONG)
    told = call("tasks", "explain", "nightly/r1/source")
    assert "state:         running (runner gone)" in told.out
    assert told.err.endswith(f"no runner has the run; to go on: outlast run {file} --run-id r1\n")


def test_an_ended_task_is_run_again_by_clearing_it(call: Call, desk: Desk) -> None:
    told = call("tasks", "explain", "nightly/r1/source")
    assert told.lines == [
        "task:          nightly/r1/source",
        "state:         success",
        "next:          none: it has succeeded, and runs again only when it is cleared",
        "once cleared:  begins from the start: nothing is stored",
    ]
    assert told.err.endswith("to run it again: outlast tasks clear nightly/r1/source\n")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda desk: desk.ran("query", "failed", error="x"), "it has failed for good, and runs again only"),
        (
            lambda desk: desk.send(Resolve(desk.scope("query"), "upstream_failed")),
            "it has ended as upstream_failed, and",
        ),
    ],
)
def test_how_it_has_ended(call: Call, desk: Desk, end: Callable[[Desk], Any], said: str) -> None:
    end(desk)
    assert explained(call)["next"].startswith(f"none: {said}")


def test_another_file(call: Call, store: outlast.Store, desk: Desk, file: Path, tmp_path: Path) -> None:
    store.task("nightly/r1/query").set("remote_job_id", "a")
    other = file.rename(tmp_path / "elsewhere.py")
    found = explained(call)
    assert found["problem"].startswith(f"there is no file {file}")
    assert (found["decision"], found["retries_left"]) == (None, None)
    assert found["would"] == "finds 1 key and does with them what its code says"
    assert explained(call, "query", "--file", str(other))["decision"]["kind"] == "reconnect"


def test_a_task_that_is_not_there(call: Call, desk: Desk) -> None:
    told = call("tasks", "explain", "nightly/r1/quarry")
    assert (told.status, told.err) == (4, "outlast: run nightly/r1 has no task quarry; did you mean query?\n")
