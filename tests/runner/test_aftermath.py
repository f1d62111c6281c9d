"""What is done for attempts that are over: their jobs cancelled and their callbacks called, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.config import Config, RunnerSettings, StateStoreSettings
from outlast.people_requests import CancelRun
from outlast.runner.aftermath import Aftermath, job_of, launch
from outlast.runner.logs import log_path
from support.running import PRELUDE
from support.runs import ANN, Desk

DAG = """
from outlast import BaseOperator
from outlast.dags.resumable import JobNotFound, ResumableJobMixin

def failed(context):
    mark(f"failed {context['ti'].try_number} {context['exception']} {context['task_state_store'].get('remote_job_id')}")

class Query(ResumableJobMixin, BaseOperator):
    find_job_grace = 0.1
    status_retry_for = 0

    def __init__(self, *, of=None, **kwargs):
        super().__init__(**kwargs)
        self.of = of

    def execute(self, context):
        return self.execute_resumable(context)

    def submit_job(self, context): ...

    def find_job(self, token, context):
        return "found" if token == "t" else None

    def get_job_status(self, external_id, context):
        if external_id == "stuck":
            forever()
        return "over" if external_id == "over" else "running"

    def is_job_active(self, status):
        return status == "running"

    def is_job_succeeded(self, status):
        return False

    def poll_until_complete(self, external_id, context): ...
    def get_job_result(self, external_id, context): ...

    def cancel_job(self, external_id, context):
        mark(f"cancelled {external_id} of {self.of}")
        print("cancelling", flush=True)
        if external_id == "broken":
            raise ConnectionError("no network")
        if external_id == "writes":
            context["task_state_store"].set("seen", True)

with DAG("nightly"):
    @task
    def source():
        return "x"

    @task(on_failure_callback=failed)
    def plain(): ...

    Query(task_id="query", of=source(), on_failure_callback=failed)
    plain()
"""


class Ground:
    """A run made by hand whose query has been begun once, and its aftermath."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "nightly.py"
        self.file.write_text(PRELUDE + DAG)
        config = Config(
            state_store=StateStoreSettings(durability="process"), runner=RunnerSettings(logs_dir=str(folder / "logs"))
        )
        self.store = outlast.connect(folder / "s.db", config=config)
        self.desk = Desk(self.store.backend)
        self.desk.start("source", ("query", "source"), "plain", file=str(self.file))
        self.desk.ran("source", result='"x"')
        self.desk.begin("query")

    def end(self, task_id: str = "query", **what: Any) -> tuple[int, float]:
        """Start an aftermath and wait for it; return its exit status and the seconds it took."""
        began = time.monotonic()
        job = job_of(self.store, self.desk.run, self.desk.task(task_id))
        status = launch(Aftermath(job, 1, "it was killed", **what)).wait(30)
        return status, time.monotonic() - began

    @property
    def marks(self) -> list[str]:
        path = self.folder / "marks"
        return path.read_text().splitlines() if path.exists() else []

    def log(self, task_id: str = "query") -> str:
        return Path(log_path(str(self.folder / "logs"), self.desk.scope(task_id), 1)).read_text()


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.store.close()


def stored(ground: Ground, key: str, value: Any) -> None:
    ground.store.task("nightly/r1/query").set(key, value)


def test_the_job_of_a_dead_attempt_is_cancelled_and_its_callback_called(ground: Ground) -> None:
    stored(ground, "remote_job_id", 0)
    ground.desk.report(ground.desk.fence("query"), "crashed", error="killed")
    assert ground.end(cancel=True, callback="on_failure_callback")[0] == 0
    assert ground.marks == ["cancelled 0 of x", "failed 1 it was killed 0"]
    assert ground.log() == "cancelling\noutlast: job 0 was cancelled\n"


def test_the_log_is_added_to(ground: Ground) -> None:
    path = Path(log_path(str(ground.folder / "logs"), ground.desk.scope("query"), 1))
    path.parent.mkdir(parents=True)
    path.write_text("what the attempt said\n")
    ground.end(cancel=True)
    assert ground.log() == "what the attempt said\noutlast: no job is stored\n"


def test_a_job_that_is_over_is_left_alone(ground: Ground) -> None:
    stored(ground, "remote_job_id", "over")
    assert ground.end(cancel=True)[0] == 0
    assert ground.marks == []


@pytest.mark.parametrize(("wanted", "marks"), [("False", []), ("True", ["cancelled 7 of x"])])
def test_after_the_last_attempt_the_job_is_cancelled_where_that_is_wanted(
    ground: Ground, wanted: str, marks: list[str]
) -> None:
    text = ground.file.read_text()
    ground.file.write_text(text.replace("of=source(),", f"of=source(), cancel_on_final_failure={wanted},"))
    stored(ground, "remote_job_id", 7)
    assert ground.end(cancel=True, final=True)[0] == 0
    assert ground.marks == marks


def test_a_job_whose_id_was_not_stored_is_found_by_its_token(ground: Ground) -> None:
    stored(ground, "remote_job_id.intent", {"token": "t"})
    assert ground.end(cancel=True)[0] == 0
    assert ground.marks == ["cancelled found of x"]


def test_a_cancelled_run_can_still_be_read_but_not_written(ground: Ground) -> None:
    stored(ground, "remote_job_id", "writes")
    ground.desk.send(CancelRun("nightly", "r1", ANN))
    assert ground.end(cancel=True)[0] == 1
    assert ground.marks == ["cancelled writes of x"]
    assert "StaleAttempt" in ground.log()
    assert ground.store.task("nightly/r1/query").keys() == ["remote_job_id"]


def test_an_attempt_that_no_newer_one_has_followed_may_write(ground: Ground) -> None:
    stored(ground, "remote_job_id", "writes")
    ground.desk.report(ground.desk.fence("query"), "failed")
    assert ground.end(cancel=True)[0] == 0
    assert ground.store.task("nightly/r1/query").get("seen") is True


def test_a_job_that_cannot_be_cancelled_is_told_and_the_callback_called_all_the_same(ground: Ground) -> None:
    stored(ground, "remote_job_id", "broken")
    assert ground.end(cancel=True, callback="on_failure_callback")[0] == 1
    assert ground.marks == ["cancelled broken of x", "failed 1 it was killed broken"]
    assert "job 'broken' was NOT cancelled: ConnectionError: no network" in ground.log()
    assert "ConnectionError: no network" in ground.log()


def test_it_ends_within_its_limit_and_says_where_it_was(ground: Ground) -> None:
    stored(ground, "remote_job_id", "stuck")
    status, seconds = ground.end(cancel=True, limit=0.7)
    assert status == 1
    assert seconds < 10
    assert "get_job_status" in ground.log()


def test_a_task_without_a_job_has_its_callback_called(ground: Ground) -> None:
    ground.desk.ran("plain", "crashed", error="killed")
    assert ground.end("plain", cancel=True, callback="on_failure_callback")[0] == 0
    assert ground.marks == ["failed 1 it was killed None"]


def test_a_file_that_cannot_be_loaded_any_more_is_told(ground: Ground) -> None:
    ground.file.write_text("nonsense(")
    assert ground.end(cancel=True)[0] == 1
    assert "nightly.py:1" in ground.log()
    assert "Traceback" not in ground.log()
