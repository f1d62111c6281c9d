"""What `HttpJobOperator` takes for a job's id: a text or a number, 0 and "" too; without a path, the token."""

from __future__ import annotations

from typing import Any

import pytest

import outlast
from outlast.dags.resumable import JobNotFound
from outlast.operators.http import HttpJobError
from support.http_jobs import Jobs, calls_of, made, run

ID, INTENT = "remote_job_id", "remote_job_id.intent"
NO_IDS = [None, [], {}, ["job/1"], {"id": 1}, True, False]


@pytest.mark.parametrize("job", ["job/1", "", 0, 7, 1.5])
def test_a_text_or_a_number_is_an_id(jobs: Jobs, state: outlast.TaskState, job: Any) -> None:
    operator = made(jobs)
    jobs.replies["POST"] = {"job": {"id": job}}
    assert operator.submit_job({"submission_token": "t", "params": {}}) == job
    jobs.replies["GET"] = {"jobs": [{"id": job}]}
    assert operator.find_job("t", {"params": {}}) == job


@pytest.mark.parametrize("value", NO_IDS)
def test_anything_else_in_the_reply_to_submit_leaves_the_outcome_uncertain(
    jobs: Jobs, state: outlast.TaskState, value: Any
) -> None:
    jobs.replies["POST"] = {"job": {"id": value}}
    with pytest.raises(HttpJobError, match="what the path of submit leads to is no job id, which is a text or a numbe"):
        run(made(jobs), state)
    assert state.keys() == [INTENT]
    del jobs.replies["POST"]
    assert run(made(jobs), state) == 42
    assert jobs.started == 1


@pytest.mark.parametrize(
    ("reply", "path"),
    [
        *((reply, path) for reply in (None, []) for path in ((), ("jobs",), ("jobs.0.id",))),
        *(({"jobs": jobs}, (path,)) for jobs in (None, []) for path in ("jobs", "jobs.0.id")),
    ],
)
def test_null_and_an_empty_list_mean_no_job_wherever_find_meets_them(jobs: Jobs, reply: Any, path: Any) -> None:
    jobs.replies["GET"] = reply
    assert made(jobs, find=("GET", jobs.url + "/jobs?key={token}", *path)).find_job("t", {"params": {}}) is None


@pytest.mark.parametrize("value", [value for value in NO_IDS if value not in (None, [])] + [[None]])
def test_anything_else_in_the_reply_to_find_starts_no_job(jobs: Jobs, state: outlast.TaskState, value: Any) -> None:
    state.set(INTENT, {"token": "t"})
    jobs.replies["GET"] = {"found": value}
    with pytest.raises(HttpJobError, match="what the path of find leads to is no job id"):
        run(made(jobs, find=("GET", jobs.url + "/jobs?key={token}", "found"), retry_for=0.1), state)
    assert (jobs.started, state.keys()) == (0, [INTENT])


def test_a_find_without_a_path_says_so_where_the_reply_is_no_id(jobs: Jobs) -> None:
    operator = made(jobs, find=("GET", jobs.url + "/jobs?key={token}"))
    with pytest.raises(HttpJobError, match="the reply to find, which has no path, is no job id"):
        operator.find_job("t", {"params": {}})
    jobs.replies["GET"] = "job/7"
    assert operator.find_job("t", {"params": {}}) == "job/7"


# --- The token as the id -----------------------------------------------------------------------------------------


def named(jobs: Jobs, *without: str, **more: Any) -> Any:
    """Make an operator for an API whose client names the job."""
    calls: dict[str, Any] = {
        "submit": ("PUT", jobs.url + "/jobs/{token}"),
        "status": ("GET", jobs.url + "/jobs?key={id}", "jobs.0.state"),
        "find": ("GET", jobs.url + "/jobs?key={token}", "jobs.0.key"),
        "succeeded": ["RUNNING"],
    }
    kept = {name: call for name, call in calls.items() if name not in without}
    return made(jobs, *(name for name in calls_of(jobs) if name not in kept), **kept | more)


@pytest.mark.parametrize("reply", [None, "accepted", [], {"error": "of no interest"}, {"job": {"id": "another"}}])
def test_without_a_path_the_token_is_the_id_whatever_the_reply_says(
    jobs: Jobs, state: outlast.TaskState, reply: Any
) -> None:
    jobs.replies["PUT"] = reply
    run(named(jobs), state)
    (job,) = jobs.jobs.values()
    assert state.get(ID) == job["key"]
    assert jobs.log[0] == f"PUT /jobs/{job['key']}"


@pytest.mark.parametrize("event", ["lose", "hang", 500])
@pytest.mark.parametrize("without", [[], ["find"]])
def test_a_job_the_client_names_is_started_once(
    jobs: Jobs, state: outlast.TaskState, event: Any, without: list[str]
) -> None:
    jobs.plan = [event]
    run(named(jobs, *without), state)
    assert jobs.started == 1


def test_an_attempt_that_died_before_it_stored_the_token_finds_its_job(jobs: Jobs, state: outlast.TaskState) -> None:
    jobs.dedupes = False
    jobs.start("t")
    state.set(INTENT, {"token": "t"})
    run(named(jobs), state)
    assert (jobs.started, dict(state.items())) == (1, {ID: "t", f"{ID}.status": {"status": "RUNNING", "reconnects": 1}})


def test_where_neither_has_a_path_any_reply_to_find_means_the_token(jobs: Jobs) -> None:
    operator = named(jobs, find=("GET", jobs.url + "/jobs?key={token}"))
    assert operator.find_job("t", {"params": {}}) == "t"
    jobs.replies["GET"] = []
    assert operator.find_job("t", {"params": {}}) is None
    jobs.plan = [404]
    assert operator.find_job("t", {"params": {}}) is None


def test_a_token_nobody_knows_is_a_job_that_is_gone(jobs: Jobs) -> None:
    jobs.plan = [404]
    with pytest.raises(JobNotFound):
        named(jobs).get_job_status("t", {"params": {}})
