"""What people do behind a server to the jobs of attempts that are over: with their own tokens, an editor's included."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from outlast.run_requests import NoteAftermath
from support.remote import Remote
from support.running import PROGRAM
from support.runs import Desk

pytestmark = pytest.mark.http

DAG_FILE = """
from outlast import BaseOperator, ResumableJobMixin

class Job(ResumableJobMixin, BaseOperator):
    def execute(self, context): ...
    def submit_job(self, context): ...
    def get_job_status(self, external_id, context):
        return "running"
    def is_job_active(self, status):
        return True
    def is_job_succeeded(self, status): ...
    def poll_until_complete(self, external_id, context): ...
    def get_job_result(self, external_id, context): ...
    def cancel_job(self, external_id, context):
        mark(f"cancel {external_id}")

class Other(Job):
    external_id_key = "secret_id"

with DAG("d"):
    Job(task_id="job")
    Other(task_id="other")
"""


@pytest.fixture
def remote() -> Iterator[Remote]:
    place = Remote()
    yield place
    place.close()


@pytest.fixture
def desk(remote: Remote) -> Desk:
    """A run that failed, its jobs still running, and its runner gone."""
    remote.dag(DAG_FILE)
    made = Desk(remote.store.backend, "d", "r")
    made.start("job", "other", file=str(remote.folder / "d.py"))
    for task_id, key in (("job", "remote_job_id"), ("other", "secret_id")):
        made.begin(task_id)
        remote.store.task(made.scope(task_id)).set(key, "job-1")
        made.report(made.fence(task_id), "failed")
    made.release("failed")
    return made


def call(
    remote: Remote, role: Any, *arguments: str, dags: tuple[str, ...] = ("*",)
) -> subprocess.CompletedProcess[str]:
    """Call the command line as somebody with a token of that role."""
    env = remote.env | {"OUTLAST_TOKEN": remote.token(role, dags)}
    command = [*PROGRAM, *arguments, "--store", remote.server.url]
    return subprocess.run(command, env=env, cwd=remote.folder, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize(("role", "dags"), [("editor", ("d",)), ("admin", ("*",))])
def test_an_editor_cancels_the_job_of_an_attempt_that_has_ended(
    remote: Remote, desk: Desk, role: Any, dags: tuple[str, ...]
) -> None:
    desk.send(NoteAftermath(desk.scope("job"), 1))  # a runner has tried, and gone
    told = call(remote, role, "tasks", "cancel", "d/r/job", "--yes", dags=dags)
    assert told.returncode == 0, told.stderr
    assert "NOT" not in told.stdout
    assert remote.marks == ["cancel job-1"]
    assert remote.task("job").aftermath is None
    assert remote.task("job").state == "failed"


@pytest.mark.parametrize("role", ["viewer", "runner"])
def test_others_do_not(remote: Remote, desk: Desk, role: Any) -> None:
    desk.send(NoteAftermath(desk.scope("job"), 1))
    told = call(remote, role, "tasks", "cancel", "d/r/job", "--yes")
    assert told.returncode != 0
    assert remote.marks == []
    assert remote.task("job").aftermath == 1


def test_an_editor_does_not_cancel_a_mask(remote: Remote, desk: Desk) -> None:
    desk.send(NoteAftermath(desk.scope("other"), 1))
    remote.server.kill()
    remote.server = remote.another_server()
    os.environ["OUTLAST__STATE_STORE__SECRET_KEYS"] = "secret*"
    try:
        remote.server.start()
    finally:
        del os.environ["OUTLAST__STATE_STORE__SECRET_KEYS"]
    told = call(remote, "editor", "tasks", "cancel", "d/r/other", "--yes")
    assert remote.marks == []
    assert "was NOT cancelled: " in told.stdout
    assert "'secret_id' is a secret key" in told.stdout
    assert "an admin's" in told.stdout
    assert remote.task("other").aftermath is not None
    told = call(remote, "admin", "tasks", "cancel", "d/r/other", "--yes")
    assert remote.marks == ["cancel job-1"], told.stdout + told.stderr
