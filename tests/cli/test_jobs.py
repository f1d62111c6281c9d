"""Jobs that tasks have submitted elsewhere: forgotten by a clear only with a word, cancelled, or said to go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.run_requests import TaskSpec
from support.runs import Desk

from .conftest import Told

Call = Callable[..., Told]

FILE = """
from pathlib import Path
from outlast import DAG, BaseOperator, ResumableJobMixin, task

print("the file is read")
HERE = Path(__file__).parent

class Query(ResumableJobMixin, BaseOperator):
    def execute(self, context): ...
    def submit_job(self, context): ...
    def get_job_status(self, external_id, context):
        return "RUNNING"
    def is_job_active(self, status):
        return status == "RUNNING"
    def is_job_succeeded(self, status): ...
    def poll_until_complete(self, external_id, context): ...
    def get_job_result(self, external_id, context): ...

class Train(Query):
    external_id_key = "training"

    def cancel_job(self, external_id, context):
        if external_id == "stuck":
            raise ConnectionError("no network")
        (HERE / f"cancelled {external_id}").touch()

with DAG("nightly"):
    Train(task_id="train")
    Query(task_id="query")

    @task
    def plain(): ...

    plain()
"""

FORGOTTEN = "of nightly/r1/train was forgotten, not cancelled: if it runs, it goes on and is yours to end."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "nightly.py").write_text(FILE)
    return tmp_path / "nightly.py"


@pytest.fixture
def desk(store: outlast.Store, file: Path) -> Desk:
    """A run of which every task runs, and whose runner is gone."""
    made = Desk(store.backend)
    made.start("train", "query", "plain", file=str(file))
    for task in ("train", "query", "plain"):
        made.begin(task)
    return made


# --- Cleared -----------------------------------------------------------------------------------------------------


def test_a_job_that_a_clear_forgets_is_told(call: Call, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state")
    assert (told.status, told.err) == (0, "")
    assert f'job "j-1" {FORGOTTEN}' in told.lines


def test_a_job_is_told_before_it_is_forgotten(call: Call, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state", "--dry-run")
    assert told.lines[-1] == (
        'job "j-1" of nightly/r1/train would be forgotten, not cancelled: if it runs, it goes on. '
        "To end it first: --cancel-job, or outlast tasks cancel nightly/r1/train"
    )
    found = call("tasks", "clear", "nightly/r1/train", "--discard-state", "--json").json
    assert found["forgotten"] == [{"address": "nightly/r1/train", "job": 'job "j-1"'}]


def test_what_has_ended_cannot_be_cancelled_first(call: Call, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    desk.report(desk.fence("train"), "failed", error="x")
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state", "--dry-run")
    assert told.lines[-1].endswith("To end it first: --cancel-job")


@pytest.mark.parametrize("task", ["query", "plain"])
def test_the_usual_key_is_a_job_whatever_the_task(call: Call, store: outlast.Store, desk: Desk, task: str) -> None:
    store.task(f"nightly/r1/{task}").set("remote_job_id", 0)
    assert (
        f"job 0 of nightly/r1/{task} was forgotten"
        in call("tasks", "clear", f"nightly/r1/{task}", "--discard-state").out
    )


def test_a_job_whose_id_was_not_stored_yet(call: Call, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/train").set("training.intent", {"token": "t-1"})
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state")
    assert f"the job with token t-1 (if it was started) {FORGOTTEN}" in told.lines


def test_without_the_file_the_usual_key_counts(call: Call, store: outlast.Store, desk: Desk, file: Path) -> None:
    file.unlink()
    store.task("nightly/r1/train").set_many({"remote_job_id": "j-1", "training": "j-2"})
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state")
    assert f'job "j-1" {FORGOTTEN}' in told.lines
    assert "j-2" not in told.out


def test_no_word_where_no_job_is_forgotten(call: Call, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    assert "forgotten" not in call("tasks", "clear", "nightly/r1/train", "--keep-state").out
    desk.begin("train")
    desk.report(desk.fence("train"), "success")
    assert "forgotten" not in call("tasks", "clear", "nightly/r1/train", "--discard-state").out


def test_a_job_is_cancelled_before_it_is_forgotten(
    call: Call, store: outlast.Store, desk: Desk, tmp_path: Path
) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state", "--cancel-job")
    assert (told.status, told.err) == (0, 'job "j-1" of nightly/r1/train does not run any more\n')
    assert (tmp_path / "cancelled j-1").exists()
    assert "forgotten" not in told.out
    assert desk.states()["train"] == "waiting"
    assert store.task("nightly/r1/train").keys() == []


def test_a_job_of_a_failed_task_is_cancelled_as_well(
    call: Call, store: outlast.Store, desk: Desk, tmp_path: Path
) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    desk.report(desk.fence("train"), "failed", error="x")
    assert call("tasks", "clear", "nightly/r1/train", "--keep-state", "--cancel-job").status == 0
    assert (tmp_path / "cancelled j-1").exists()
    assert store.task("nightly/r1/train").get("training") == "j-1"


def test_nothing_is_cleared_where_a_job_cannot_be_cancelled(call: Call, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/train").set("training", "stuck")
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state", "--cancel-job")
    assert (told.status, told.out) == (1, "")
    first, last = told.err.splitlines()
    assert first.startswith('job "stuck" of nightly/r1/train was NOT cancelled: ConnectionError: no network; see ')
    assert last == "nothing was cleared; cancelled meanwhile: nightly/r1/train"
    assert desk.states()["train"] == "cancelled"
    assert store.task("nightly/r1/train").get("training") == "stuck"


def test_on_a_terminal_a_job_is_told_before_the_question(terminal: Any, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    window = terminal("tasks", "clear", "nightly/r1/train", "--discard-state")
    window.expect("Clear them? [y/N]")
    assert 'job "j-1" of nightly/r1/train would be forgotten, not cancelled' in " ".join(window.seen.split())
    window.type("n\n")
    assert window.end().status == 1


@pytest.mark.parametrize(("answer", "left"), [("k", ["training"]), ("KEEP", ["training"]), ("d", []), ("dis", [])])
def test_the_beginning_of_an_answer_is_enough(
    terminal: Any, store: outlast.Store, desk: Desk, answer: str, left: list[str]
) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    window = terminal("tasks", "clear", "nightly/r1/train")
    window.expect("(keep, discard, stop) [keep]")
    assert 'keep:    the next attempt finds job "j-1" and asks whether it still runs' in window.seen
    window.type("x\n")
    window.expect("is not one of")
    window.type(f"{answer}\n")
    assert window.end().status == 0
    assert store.task("nightly/r1/train").keys() == left


# --- Cancelled -----------------------------------------------------------------------------------------------------


def test_a_job_is_cancelled_with_its_task(call: Call, store: outlast.Store, desk: Desk, tmp_path: Path) -> None:
    store.task("nightly/r1/train").set("training", "j-1")
    told = call("tasks", "cancel", "nightly/r1/train", "--yes", "--json")
    assert (told.json["state"], told.json["not_cancelled"]) == ("cancelled", [])
    assert (tmp_path / "cancelled j-1").exists()


NOT_CANCELLED = [
    ("train", {"training": "stuck"}, 'job "stuck"', "ConnectionError: no network"),
    ("query", {"remote_job_id": "j-2"}, 'job "j-2"', "Query has no cancel_job"),
    ("plain", {"remote_job_id": 0}, "job 0", "plain is no resumable job, so outlast cannot cancel what it has started"),
]


@pytest.mark.parametrize(("task", "stored", "job", "reason"), NOT_CANCELLED)
def test_a_job_that_was_not_cancelled_is_told(
    call: Call, store: outlast.Store, desk: Desk, task: str, stored: dict[str, Any], job: str, reason: str
) -> None:
    store.task(f"nightly/r1/{task}").set_many(stored)
    told = call("tasks", "cancel", f"nightly/r1/{task}", "--yes")
    assert told.status == 0
    line = told.lines[1]
    assert line.startswith(f"{job} of nightly/r1/{task} was NOT cancelled: {reason}; see ")
    assert line.endswith(f"/nightly/r1/{task}/attempt-1.log")


def test_a_run_tells_of_every_job_it_could_not_cancel(call: Call, store: outlast.Store, desk: Desk) -> None:
    for task, stored, _, _ in NOT_CANCELLED:
        store.task(f"nightly/r1/{task}").set_many(stored)
    found = call("runs", "cancel", "nightly/r1", "--yes", "--json").json["not_cancelled"]
    assert [(left["address"], left["job"], left["reason"]) for left in found] == [
        (f"nightly/r1/{task}", job, reason) for task, _, job, reason in NOT_CANCELLED
    ]


def test_without_its_code_no_job_is_cancelled(call: Call, store: outlast.Store, desk: Desk, file: Path) -> None:
    file.unlink()
    store.task("nightly/r1/train").set("page", 1)
    told = call("tasks", "cancel", "nightly/r1/train", "--yes")
    assert told.lines[1].startswith(
        f"the job of nightly/r1/train, if it has one, was NOT cancelled: there is no file {file}"
    )


def test_a_secret_id_is_masked(call: Call, store: outlast.Store, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "training*")
    store.task("nightly/r1/train").set("training", "stuck")
    told = call("tasks", "cancel", "nightly/r1/train", "--yes")
    assert told.lines[1].startswith("job *** of nightly/r1/train was NOT cancelled")
    assert "stuck" not in told.out + told.err


@pytest.mark.parametrize(
    ("task", "stored", "told"),
    [
        ("train", {}, "nightly/r1/train is running. A job it has submitted is cancelled with it.\n"),
        (
            "query",
            {"remote_job_id": "j-2"},
            'nightly/r1/query is running. Job "j-2" of nightly/r1/query goes on: Query has no cancel_job.\n',
        ),
        ("query", {}, "nightly/r1/query is running.\n"),
        ("plain", {"page": 1}, "nightly/r1/plain is running.\n"),
    ],
)
def test_a_cancel_promises_what_it_can_do(
    terminal: Any, store: outlast.Store, desk: Desk, task: str, stored: dict[str, Any], told: str
) -> None:
    for key, value in stored.items():
        store.task(f"nightly/r1/{task}").set(key, value)
    window = terminal("tasks", "cancel", f"nightly/r1/{task}")
    window.expect("Cancel it? [y/N]")
    assert window.seen.startswith(told + "Cancel it?")
    window.type("n\n")
    window.end()


def test_a_cancel_says_when_it_is_not_known(terminal: Any, store: outlast.Store, desk: Desk, file: Path) -> None:
    file.unlink()
    for command, place in (("tasks", "nightly/r1/train"), ("runs", "nightly/r1")):
        window = terminal(command, "cancel", place)
        window.expect("Cancel it? [y/N]")
        assert "Whether a job can be cancelled is not known: there is no file" in " ".join(window.seen.split())
        window.type("n\n")
        window.end()


def test_a_run_promises_what_can_be_done(terminal: Any, store: outlast.Store, desk: Desk) -> None:
    store.task("nightly/r1/query").set("remote_job_id", "j-2")
    window = terminal("runs", "cancel", "nightly/r1")
    window.expect("Cancel it? [y/N]")
    said = " ".join(window.seen.split())
    assert "3 of 3 task instances have not ended, 3 of them run. Jobs of train are cancelled." in said
    assert 'Job "j-2" of nightly/r1/query goes on: Query has no cancel_job.' in said
    window.type("n\n")
    window.end()


def test_a_clear_that_is_refused_has_cancelled_nothing(
    call: Call, store: outlast.Store, file: Path, tmp_path: Path
) -> None:
    """Contract 6.6: every index of a mapped task, while one runs."""
    desk = Desk(store.backend)
    desk.start(TaskSpec("train", 0), TaskSpec("train", 1), file=str(file))
    desk.begin("train", 0)
    desk.begin("train", 1)
    store.task("nightly/r1/train/0").set("training", "j-0")
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state", "--cancel-job")
    assert told.status != 0
    assert "the mapped task instance nightly/r1/train/0 is running, and 1 more; " in told.err
    assert told.err.splitlines()[0] == "nothing was cleared" or "cancelled meanwhile" not in told.err
    assert desk.states() == {"train/0": "running", "train/1": "running"}
    assert not (tmp_path / "cancelled j-0").exists()


def test_a_clear_that_stops_half_way_says_what_it_has_cancelled(
    call: Call, store: outlast.Store, file: Path, tmp_path: Path
) -> None:
    desk = Desk(store.backend)
    desk.start(TaskSpec("train", 0), TaskSpec("train", 1), file=str(file))
    for index, job in enumerate(["j-0", "stuck"]):
        desk.begin("train", index)
        store.task(f"nightly/r1/train/{index}").set("training", job)
    told = call("tasks", "clear", "nightly/r1/train", "--discard-state", "--cancel-job", "--force")
    assert told.status == 1
    assert told.err.splitlines()[-1] == (
        "nothing was cleared; cancelled meanwhile: nightly/r1/train/0, nightly/r1/train/1; "
        'jobs that do not run any more: job "j-0" of nightly/r1/train/0'
    )
    assert desk.states() == {"train/0": "cancelled", "train/1": "cancelled"}
    assert (tmp_path / "cancelled j-0").exists()
