"""`HttpJobOperator` against a real HTTP server that dies, times out, answers 500 and 404, and loses its replies."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.dags.job_cancelling import cancel_stored_job
from outlast.dags.outcomes import FailTask
from outlast.dags.resumable import JobNotFound, JobRefused
from outlast.operators import HttpJobOperator
from outlast.operators.http import HttpJobError
from support import attempting
from support.http_jobs import Jobs, calls_of, made, run

ID, INTENT = "remote_job_id", "remote_job_id.intent"


# --- All well --------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_polled_and_fetched(jobs: Jobs, state: outlast.TaskState) -> None:
    assert run(made(jobs, body={"model": "large"}), state) == 42
    assert jobs.bodies == [{"model": "large"}]
    assert state.get(ID) == "job/1"
    assert jobs.log[0] == "POST /jobs"
    assert set(jobs.log[1:-1]) == {"GET /jobs/job%2F1"}
    assert jobs.log[-1] == "GET /jobs/job%2F1/result"
    (job,) = jobs.jobs.values()
    assert job["key"].startswith("outlast-")


def test_without_result_the_last_status_is_it(jobs: Jobs, state: outlast.TaskState) -> None:
    operator = made(jobs, "result")
    first = run(operator, state)
    assert first["job"]["state"] == "SUCCEEDED"
    assert run(operator, state) == first
    assert jobs.started == 1


def test_params_and_the_context_reach_the_request(jobs: Jobs, state: outlast.TaskState) -> None:
    operator = made(
        jobs,
        submit=("POST", jobs.url + "/jobs?day={params[day]}", "job.id"),
        body=lambda context: {"token": context["submission_token"]},
    )
    run(operator, state, day="a b/c")
    assert jobs.log[0] == "POST /jobs?day=a%20b%2Fc"
    assert jobs.bodies == [{"token": job["key"]} for job in jobs.jobs.values()]
    state.clear()
    with pytest.raises(JobRefused, match="cannot be filled in"):
        run(operator, state)
    assert state.keys() == []


def test_the_token_may_be_the_id(jobs: Jobs, state: outlast.TaskState) -> None:
    operator = made(
        jobs,
        "result",
        submit=("POST", f"{jobs.url}/jobs"),
        status=("GET", jobs.url + "/jobs?key={id}", "jobs.0.state"),
        succeeded=["RUNNING"],
    )
    run(operator, state)
    assert state.get(ID) == next(iter(jobs.jobs.values()))["key"]


def test_headers_are_sent_and_stay_out_of_errors(jobs: Jobs, state: outlast.TaskState) -> None:
    jobs.plan = [400]
    with pytest.raises(JobRefused) as caught:
        run(made(jobs, headers={"Authorization": "Bearer s3cret"}), state)
    assert "s3cret" not in str(caught.value)


def test_a_status_nobody_has_named_counts_as_running(jobs: Jobs) -> None:
    operator = made(jobs)
    assert operator.is_job_active("SOME NEW STATE")
    assert not operator.is_job_active("Failed")
    assert operator.is_job_succeeded("Succeeded")


def test_a_failed_job_fails_the_attempt_and_the_next_submits_with_another_token(
    jobs: Jobs, state: outlast.TaskState
) -> None:
    operator = made(jobs, failed=["SUCCEEDED"], succeeded=["never"])
    with pytest.raises(HttpJobError, match="job 'job/1' has ended as SUCCEEDED"):
        run(operator, state)
    assert run(made(jobs), state) == 42
    assert jobs.started == 1
    for job in jobs.jobs.values():
        job["state"] = "FAILED"
    assert run(made(jobs), state) == 42
    assert jobs.started == 2
    assert len({job["key"] for job in jobs.jobs.values()}) == 2


# --- Trouble while submitting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("without", [[], ["find"]])
@pytest.mark.parametrize("event", ["lose", "hang", "refuse", 500, 502, 503, 429, 409])
def test_a_submission_in_trouble_starts_one_job(
    jobs: Jobs, state: outlast.TaskState, event: Any, without: list[str]
) -> None:
    jobs.plan = [event]
    assert run(made(jobs, *without), state) == 42
    assert jobs.started == 1


@pytest.mark.parametrize("event", ["lose", "hang"])
def test_a_lost_reply_of_a_system_that_only_looks_up_starts_one_job(
    jobs: Jobs, state: outlast.TaskState, event: str
) -> None:
    jobs.dedupes, jobs.plan = False, [event]
    assert run(made(jobs), state) == 42
    assert jobs.started == 1
    assert [line for line in jobs.log if line.startswith("POST")] == ["POST /jobs"]


@pytest.mark.parametrize("event", ["lose", "hang", 500])
def test_where_a_second_job_must_not_be_a_request_of_unknown_fate_is_not_repeated(
    jobs: Jobs, state: outlast.TaskState, event: Any
) -> None:
    jobs.dedupes, jobs.plan = False, [event]
    operator = made(jobs, "find")
    operator.on_uncertain = "fail"
    with pytest.raises(HttpJobError):
        run(operator, state)
    assert state.keys() == [INTENT]
    with pytest.raises(FailTask):
        run(operator, state)
    assert jobs.log == ["POST /jobs"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_fails_with_its_text_and_leaves_no_doubt(jobs: Jobs, state: outlast.TaskState, status: int) -> None:
    jobs.plan = [status]
    with pytest.raises(JobRefused, match=rf'was answered {status}: {{"error": "planned"}}'):
        run(made(jobs), state)
    assert state.keys() == []


def test_a_refusal_after_a_request_of_unknown_fate_leaves_the_doubt(jobs: Jobs, state: outlast.TaskState) -> None:
    jobs.plan = ["lose", 422]
    with pytest.raises(HttpJobError, match="422"):
        run(made(jobs, "find"), state)
    assert state.keys() == [INTENT]
    assert run(made(jobs, "find"), state) == 42
    assert jobs.started == 1


def test_a_server_that_is_not_there_was_sent_nothing(state: outlast.TaskState, jobs: Jobs) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/jobs"
    with pytest.raises(JobRefused, match="Connection refused"):
        run(made(jobs, submit=("POST", url, "job.id"), retry_for=0.3), state)
    assert state.keys() == []


def test_a_reply_without_an_id_leaves_the_doubt(jobs: Jobs, state: outlast.TaskState) -> None:
    with pytest.raises(HttpJobError, match=r"the reply to submit has no 'id'"):
        run(made(jobs, submit=("POST", f"{jobs.url}/jobs", "id")), state)
    assert state.keys() == [INTENT]
    assert run(made(jobs), state) == 42
    assert jobs.started == 1


def test_a_wrong_path_in_find_is_not_taken_for_no_job(jobs: Jobs, state: outlast.TaskState) -> None:
    state.set(INTENT, {"token": "t"})
    with pytest.raises(HttpJobError, match="the reply to find has no 'items'"):
        run(made(jobs, find=("GET", jobs.url + "/jobs?key={token}", "items.0.id"), retry_for=0.1), state)
    assert jobs.started == 0


def test_what_is_not_found_is_submitted_with_the_same_token(jobs: Jobs, state: outlast.TaskState) -> None:
    state.set(INTENT, {"token": "t"})
    assert run(made(jobs), state) == 42
    assert [job["key"] for job in jobs.jobs.values()] == ["t"]


# --- Trouble while it runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["lose", "hang", "refuse", 500, 503, 429])
def test_trouble_while_polling_is_passed_over(jobs: Jobs, state: outlast.TaskState, event: Any) -> None:
    state.set(ID, jobs.start("t")["id"])
    jobs.plan = [event, event]
    assert run(made(jobs), state) == 42
    assert jobs.started == 1


def test_trouble_for_longer_fails_the_attempt_and_the_next_reconnects(jobs: Jobs, state: outlast.TaskState) -> None:
    state.set(ID, jobs.start("t")["id"])
    jobs.plan = [500] * 20
    with pytest.raises(HttpJobError, match="was answered 500"):
        run(made(jobs, retry_for=0.2), state)
    jobs.plan = []
    assert run(made(jobs), state) == 42
    assert jobs.started == 1


@pytest.mark.parametrize("status", [404, 410])
def test_a_job_that_is_gone_is_submitted_anew(jobs: Jobs, state: outlast.TaskState, status: int) -> None:
    state.set(ID, "gone")
    jobs.plan = [status]
    assert run(made(jobs), state) == 42
    assert state.get(ID) == "job/1"


def test_a_status_that_is_refused_is_not_taken_for_gone(jobs: Jobs, state: outlast.TaskState) -> None:
    state.set(ID, jobs.start("t")["id"])
    jobs.plan = [403] * 20
    with pytest.raises(HttpJobError, match="403"):
        run(made(jobs, retry_for=0.1), state)
    assert jobs.started == 1


def test_a_server_that_dies_and_comes_back(state: outlast.TaskState) -> None:
    first = Jobs()
    port, operator = first.server_address[1], made(first)
    job = first.start("t")
    state.set(ID, job["id"])
    first.end()
    back: list[Jobs] = []

    def come_back() -> None:
        server = Jobs(port)
        server.jobs[job["id"]] = job
        back.append(server)

    timer = threading.Timer(0.5, come_back)
    timer.start()
    try:
        assert run(operator, state) == 42
    finally:
        timer.join()
        back[0].end()


# --- A worker that is killed -----------------------------------------------------------------------------------------


def test_a_worker_killed_while_the_reply_is_on_its_way(tmp_path: Path, jobs: Jobs) -> None:
    jobs.plan = ["hang"]
    arguments = {**calls_of(jobs), "request_timeout": 30}
    process = attempting.begin(store=tmp_path / "s.db", attempt="new", kind="HttpJobOperator", arguments=arguments)
    deadline = time.monotonic() + 20
    while not jobs.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    attempting.kill(process)
    jobs.late.set()
    with outlast.connect(tmp_path / "s.db") as store:
        state = store.task("d/r/t", attempt="new")
        assert state.keys() == [INTENT]
        assert run(made(jobs), state) == 42
    assert jobs.started == 1


# --- Cancelling ----------------------------------------------------------------------------------------------------


def test_cancelling(jobs: Jobs, state: outlast.TaskState) -> None:
    job = jobs.start("t")
    state.set(ID, job["id"])
    context = {"task_state_store": state, "params": {}}
    assert cancel_stored_job(made(jobs), context) == "job 'job/1' was cancelled"
    assert job["state"] == "CANCELLED"
    assert cancel_stored_job(made(jobs), context) == "job 'job/1' is CANCELLED already"
    assert cancel_stored_job(made(jobs, "cancel"), context) == "HttpJobOperator has no cancel_job"
    made(jobs).cancel_job("never", context)  # one that is gone is no error


def test_a_job_that_is_only_known_by_its_token_is_cancelled(jobs: Jobs, state: outlast.TaskState) -> None:
    job = jobs.start("t")
    state.set(INTENT, {"token": "t"})
    assert cancel_stored_job(made(jobs), {"task_state_store": state, "params": {}}) == "job 'job/1' was cancelled"
    assert job["state"] == "CANCELLED"


# --- Definition ------------------------------------------------------------------------------------------------------

URL = "http://jobs.test/jobs"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"submit": None}, r"submit is None; give \(method, URL\)"),
        ({"submit": "POST " + URL}, "submit is 'POST"),
        ({"submit": ("POST", "file:///etc/passwd")}, "must begin with http:// or https://"),
        ({"submit": ("POST", URL + "/{id}")}, r"the URL of submit has \{id\}; it may have \{params\} and \{token\}"),
        ({"status": ("GET", URL + "/{token}")}, r"the URL of status has \{token\}"),
        ({"status": ("GET", URL + "/{parms[day]}")}, r"has \{parms\[day\]\}"),
        ({"succeeded": "done"}, "succeeded is 'done'; write a list"),
        ({"request_timeout": 0}, "request_timeout"),
    ],
)
def test_wrong_arguments(what: dict[str, Any], told: str) -> None:
    with pytest.raises(outlast.DagError, match=told):
        HttpJobOperator(**{"task_id": "t", "submit": ("POST", URL), "status": ("GET", URL)} | what)


def test_a_job_not_found_is_what_the_mixin_knows(jobs: Jobs) -> None:
    with pytest.raises(JobNotFound):
        made(jobs).get_job_status("never", {"params": {}})
