"""`ResumableJobMixin`: what is decided for every state of store and job system, and what becomes of it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outlast
from outlast.dags import job_events, mapping
from outlast.dags.context import DagRun, TaskInstance
from outlast.dags.graph import DAG
from outlast.dags.job_cancelling import cancel_stored_job, is_cancellable
from outlast.dags.operators import BaseOperator
from outlast.dags.outcomes import FailTask, SkipTask
from outlast.dags.resumable import (
    JobNotFound,
    JobRefused,
    ResumableJobMixin,
    ResumeDecision,
    new_token,
)

from .conftest import WHEN, Rows

ID, INTENT, STATUS = "remote_job_id", "remote_job_id.intent", "remote_job_id.status"


class Died(BaseException):
    """The end of an attempt's process."""


class System:
    """A job system: jobs by id with their status, and the token each was submitted with."""

    def __init__(self, dedupes: bool = False) -> None:
        self.jobs: dict[Any, str] = {}
        self.tokens: dict[str, Any] = {}
        self.dedupes, self.calls, self.ids = dedupes, list[str](), iter(range(100))

    def start(self, token: str) -> Any:
        if self.dedupes and token in self.tokens:
            return self.tokens[token]
        job = next(self.ids)  # the first one is 0
        self.jobs[job], self.tokens[token] = "running", job
        return job


class Job(ResumableJobMixin, BaseOperator):
    """A job in a `System`, in a time of its own, that dies where the test says."""

    def __init__(self, *, system: System | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.system = system or System()
        self.now, self.slept = 0.0, list[float]()
        self.dies_at = ""
        self.trouble: list[Exception] = []

    def execute(self, context: Any) -> Any:
        self.reach("before all")
        return self.execute_resumable(context)

    def reach(self, point: str) -> None:
        if self.dies_at == point:
            raise Died(point)

    def submit_job(self, context: Any) -> Any:
        self.reach("before the job")
        self.system.calls.append("submit")
        job = self.system.start(context["submission_token"])
        self.reach("after the job")
        return job

    def _record(self, job: Any, store: Any) -> None:
        self.reach("before the id")
        super()._record(job, store)
        self.reach("after the id")

    def _note_taken_up(self, decision: Any, store: Any) -> None:
        self.reach("before the id")
        super()._note_taken_up(decision, store)
        self.reach("after the id")

    def get_job_status(self, external_id: Any, context: Any) -> str:
        self.system.calls.append("status")
        if self.trouble:
            raise self.trouble.pop(0)
        if external_id not in self.system.jobs:
            raise JobNotFound(external_id)
        return self.system.jobs[external_id]

    def is_job_active(self, status: str) -> bool:
        return status == "running"

    def is_job_succeeded(self, status: str) -> bool:
        return status == "done"

    def poll_until_complete(self, external_id: Any, context: Any) -> None:
        self.system.calls.append("poll")
        self.reach("while it runs")
        if self.system.jobs.get(external_id) == "running":
            self.system.jobs[external_id] = "done"
        if self.system.jobs.get(external_id) != "done":
            raise RuntimeError("the job has failed")

    def get_job_result(self, external_id: Any, context: Any) -> Any:
        self.system.calls.append("result")
        self.reach("at the result")
        return {"job": external_id, "rows": 42}

    def cancel_job(self, external_id: Any, context: Any) -> None:
        self.system.calls.append("cancel")
        self.system.jobs[external_id] = "cancelled"

    def _monotonic(self) -> float:
        return self.now

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Findable(Job):
    """A job of a system that looks jobs up by their token."""

    appears_at = 0.0

    def find_job(self, token: str, context: Any) -> Any:
        self.system.calls.append("find")
        return self.system.tokens.get(token) if self.now >= self.appears_at else None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[outlast.Store]:
    with outlast.connect(tmp_path / "s.db") as opened:
        yield opened


@pytest.fixture
def state(store: outlast.Store) -> outlast.TaskState:
    return store.task("d/r/t", attempt=1)


@pytest.fixture
def counted() -> Iterator[list[str]]:
    """The events counted, in order."""
    events: list[str] = []
    end = job_events.count_with(lambda event, tags: events.append(f"{event.removeprefix('resumable_job.')}"))
    yield events
    end()


def run(job: Job, state: Any) -> Any:
    return job.execute({"task_state_store": state})


# --- The decision table ----------------------------------------------------------------------------------------

#: (an intent?, the stored id, find_job: "-" none, 0 finds nothing, 1 finds job 7; status of the job) -> the decision.
#: As in docs/how-to/resume-a-job.md, one line a cell; "*" is any.
TABLE: dict[tuple[Any, ...], str] = {
    (False, None, "*", "*"): "fresh_submit",
    (False, 7, "*", "running"): "reconnect",
    (False, 7, "*", "done"): "already_succeeded",
    (False, 7, "*", "error"): "terminal_resubmit",
    (False, 7, "*", "gone"): "terminal_resubmit",
    (True, None, "-", "*"): "uncertain",
    (True, None, "0", "*"): "find_then_submit",
    (True, None, "1", "running"): "reconnect",
    (True, None, "1", "done"): "already_succeeded",
    (True, None, "1", "error"): "terminal_resubmit",
    (True, None, "1", "gone"): "terminal_resubmit",
    (True, 7, "*", "running"): "reconnect",
    (True, 7, "*", "done"): "already_succeeded",
    (True, 7, "*", "error"): "terminal_resubmit",
    (True, 7, "*", "gone"): "terminal_resubmit",
}
CELLS = list(itertools.product([False, True], [None, 7], "-01", ["running", "done", "error", "gone"]))

#: What each decision leads to: the calls of the job system after the decision, and the jobs there are then.
ACTS: dict[str, tuple[list[str], int]] = {
    "fresh_submit": (["submit", "poll", "result"], 1),
    "reconnect": (["poll", "result"], 0),
    "already_succeeded": (["result"], 0),
    "terminal_resubmit": (["submit", "poll", "result"], 1),
    "uncertain": (["submit", "poll", "result"], 1),
    "find_then_submit": (["submit", "poll", "result"], 1),
}


def expected(cell: tuple[Any, ...]) -> str:
    fits = [kind for row, kind in TABLE.items() if all(b in ("*", a) or a is b for a, b in zip(cell, row, strict=True))]
    assert len(fits) == 1, f"the table has {len(fits)} rows for {cell}"
    return fits[0]


def arranged(cell: tuple[Any, ...], state: outlast.TaskState) -> Job:
    """Make the store and the job system as a cell says."""
    intent, stored, find, status = cell
    system = System()
    if status != "gone":
        system.jobs[7] = status
    if find == "1":
        system.tokens["t"] = 7
    if intent:
        state.set(INTENT, {"token": "t"})
    if stored is not None:
        state.set(ID, stored, retention=outlast.NEVER_EXPIRE)
    return (Job if find == "-" else Findable)(task_id="t", system=system)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_decision_of_each_cell_is_data_and_changes_nothing(cell: Any, state: outlast.TaskState) -> None:
    job = arranged(cell, state)
    before, jobs = state.entries(), dict(job.system.jobs)
    decision = job.resume_decision({"task_state_store": state})
    assert decision.kind == expected(cell)
    assert decision.reason
    assert (state.entries(), job.system.jobs) == (before, jobs)
    assert set(job.system.calls) <= {"status", "find"}
    known = decision.kind in ("reconnect", "already_succeeded", "terminal_resubmit")
    assert decision.external_id == (7 if known else None)
    assert decision.token == ("t" if cell[0] else None)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_what_each_cell_leads_to(cell: Any, state: outlast.TaskState, counted: list[str]) -> None:
    job = arranged(cell, state)
    kind, jobs = expected(cell), len(job.system.jobs)
    result = run(job, state)
    calls, more = ACTS[kind]
    assert [call for call in job.system.calls if call not in ("find", "status")] == calls
    assert len(job.system.jobs) == jobs + more
    new = next(iter(set(job.system.jobs) - {7})) if more else 7
    assert result == {"job": new, "rows": 42}
    noted = {} if more else {STATUS: {"status": cell[3], "reconnects": 1}}
    assert dict(state.items()) == {ID: new} | noted
    assert state.entry(ID).expires_at is None  # type: ignore[union-attr]
    if kind in ("fresh_submit", "terminal_resubmit"):
        assert job.system.tokens.keys() - {"t"}, "a fresh token was wanted"
    if kind in ("uncertain", "find_then_submit"):
        assert job.system.tokens == {"t": new}
    wanted = {
        "uncertain": "uncertain_submit",
        "reconnect": "reconnect_attempt",
        "find_then_submit": "same_token_submit",
    }
    assert wanted.get(kind, kind) in counted


def test_an_intent_without_a_token_is_refused(state: outlast.TaskState) -> None:
    state.set(INTENT, "abc")
    job = Job(task_id="t")
    with pytest.raises(outlast.InvalidValue, match=r"remote_job_id\.intent holds 'abc'"):
        run(job, state)
    assert job.system.calls == []


# --- The paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Job, Findable])
@pytest.mark.parametrize("point", ["", "while it runs", "at the result"])
def test_fresh_reconnected_and_already_succeeded_runs_return_the_same(
    kind: type[Job], point: str, state: outlast.TaskState
) -> None:
    job = kind(task_id="t")
    if point:
        job.dies_at = point
        with pytest.raises(Died):
            run(job, state)
        job.dies_at = ""
    assert run(job, state) == {"job": 0, "rows": 42}
    assert job.system.calls.count("submit") == 1
    assert len(job.system.jobs) == 1


def test_the_token_is_committed_before_the_job_is_submitted(state: outlast.TaskState) -> None:
    seen: list[Any] = []

    class Looking(Job):
        def submit_job(self, context: Any) -> Any:
            seen.append((context["submission_token"], dict(state.items())))
            return super().submit_job(context)

    run(Looking(task_id="t"), state)
    token, stored = seen[0]
    assert stored == {INTENT: {"token": token}}
    assert dict(state.items()) == {ID: 0}


def test_the_id_and_the_removal_of_the_intent_are_one_commit(state: outlast.TaskState) -> None:
    run(Job(task_id="t"), state)
    assert state.entry(ID).revision == state.history(INTENT)[0].revision  # type: ignore[union-attr]
    assert state.history(INTENT)[0].deleted


def test_a_new_intent_and_the_removal_of_the_old_id_are_one_commit(state: outlast.TaskState) -> None:
    job = Job(task_id="t")
    state.set(ID, "gone")
    job.dies_at = "before the job"
    with pytest.raises(Died):
        run(job, state)
    assert state.keys() == [INTENT]
    assert state.history(ID)[0].revision == state.entry(INTENT).revision  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["remote_job_id", "spark application"])
def test_the_key_is_the_class_s_to_choose(key: str, state: outlast.TaskState) -> None:
    class Other(Job):
        external_id_key = key

    run(Other(task_id="t"), state)
    assert state.keys() == [key]


@pytest.mark.parametrize("value", [0, "", False, [], {}, "a", 7, {"host": "a", "pid": 3}])
def test_every_id_but_none_is_an_id(value: Any, state: outlast.TaskState) -> None:
    class Says(Job):
        def submit_job(self, context: Any) -> Any:
            super().submit_job(context)
            return value

        def get_job_status(self, external_id: Any, context: Any) -> str:
            assert external_id == value
            return "running"

        def poll_until_complete(self, external_id: Any, context: Any) -> None:
            self.reach("while it runs")

    job = Says(task_id="t")
    job.dies_at = "while it runs"
    with pytest.raises(Died):
        run(job, state)
    assert dict(state.items()) == {ID: value}
    job.dies_at = ""
    assert run(job, state)["job"] == value
    assert job.system.calls.count("submit") == 1


def test_no_id_stores_nothing_and_says_so(state: outlast.TaskState, caplog: pytest.LogCaptureFixture) -> None:
    class NoId(Job):
        def submit_job(self, context: Any) -> Any:
            super().submit_job(context)
            return None

        def poll_until_complete(self, external_id: Any, context: Any) -> None:
            assert external_id is None

    job = NoId(task_id="t")
    assert run(job, state) == {"job": None, "rows": 42}
    assert state.keys() == []
    assert "a retry will submit another job" in caplog.text
    assert job.resume_decision({"task_state_store": state}).kind == "fresh_submit"


def test_without_a_store_the_job_is_submitted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(task_id="t")
    assert job.execute({}) == {"job": 0, "rows": 42}
    assert "no task_state_store" in caplog.text


def test_not_durable_touches_no_store(state: outlast.TaskState) -> None:
    job = Job(task_id="t", durable=False)
    state.set(ID, 7)
    assert [run(job, state)["job"], run(job, state)["job"]] == [0, 1]
    assert dict(state.items()) == {ID: 7}
    assert job.resume_decision({"task_state_store": state}).kind == "fresh_submit"


def test_a_superseded_attempt_submits_nothing(store: outlast.Store, state: outlast.TaskState) -> None:
    store.task("d/r/t", attempt=2)
    job = Job(task_id="t")
    with pytest.raises(outlast.StaleAttempt):
        run(job, state)
    assert job.system.calls == []


def test_an_attempt_superseded_while_it_submits_leaves_the_intent_to_the_next(
    store: outlast.Store, state: outlast.TaskState
) -> None:
    class Slow(Findable):
        def submit_job(self, context: Any) -> Any:
            job = super().submit_job(context)
            store.task("d/r/t", attempt=2)
            return job

    job = Slow(task_id="t")
    with pytest.raises(outlast.StaleAttempt):
        run(job, state)
    newer = Findable(task_id="t", system=job.system)
    assert run(newer, store.task("d/r/t", attempt=3))["job"] == 0
    assert job.system.calls.count("submit") == 1


def test_an_id_the_person_stores_settles_an_open_submission(state: outlast.TaskState) -> None:
    job = Job(task_id="t")
    job.dies_at = "after the job"
    with pytest.raises(Died):
        run(job, state)
    state.set(ID, 0)
    job.dies_at = ""
    assert run(job, state)["job"] == 0
    assert job.system.calls.count("submit") == 1
    assert state.keys() == [ID, STATUS]


def test_how_often_a_job_was_taken_up_is_counted_until_another_is_submitted(state: outlast.TaskState) -> None:
    job = Job(task_id="t")
    run(job, state)
    number = state.get(ID)
    for times, status in enumerate(("running", "running", "done"), 1):
        job.system.jobs[number] = status
        run(job, state)
        assert state.get(STATUS) == {"status": status, "reconnects": times}
    job.system.jobs[number] = "error"
    run(job, state)
    assert (state.get(ID) != number, state.get(STATUS)) == (True, None)


# --- When asking fails ---------------------------------------------------------------------------------------------


def test_a_failing_status_call_is_tried_again_for_a_while(state: outlast.TaskState) -> None:
    job = Job(task_id="t")
    state.set(ID, 7)
    job.system.jobs[7] = "running"
    job.trouble = [ConnectionError(), TimeoutError(), ValueError()]
    assert run(job, state)["job"] == 7
    assert job.slept == [0.5, 1.0, 2.0]


def test_and_then_fails_the_attempt_without_a_submission(state: outlast.TaskState) -> None:
    job = Job(task_id="t")
    state.set(ID, 7)
    job.trouble = [ConnectionError(str(number)) for number in range(50)]
    before = state.entries()
    with pytest.raises(ConnectionError):
        run(job, state)
    assert sum(job.slept) == 60
    assert job.slept == [0.5, 1, 2, 4, 8, 10, 10, 10, 10, 4.5]
    assert "submit" not in job.system.calls
    assert state.entries() == before


@pytest.mark.parametrize("seconds", [0, timedelta(0)])
def test_how_long_is_the_class_s_to_choose(seconds: Any, state: outlast.TaskState) -> None:
    job = Job(task_id="t")
    state.set(ID, 7)
    job.status_retry_for = seconds
    job.trouble = [ConnectionError(), ConnectionError()]
    with pytest.raises(ConnectionError):
        run(job, state)
    assert job.slept == []


@pytest.mark.parametrize("error", [FailTask("no"), SkipTask("no"), outlast.StaleAttempt("over")])
def test_what_ends_the_attempt_is_not_tried_again(error: Exception, state: outlast.TaskState) -> None:
    job = Job(task_id="t")
    state.set(ID, 7)
    job.trouble = [error]
    with pytest.raises(type(error)):
        run(job, state)
    assert job.slept == []


def test_a_failing_find_job_fails_the_attempt_without_a_submission(state: outlast.TaskState) -> None:
    class Broken(Job):
        def find_job(self, token: str, context: Any) -> Any:
            raise ConnectionError

    job = Broken(task_id="t")
    state.set(INTENT, {"token": "t"})
    with pytest.raises(ConnectionError):
        run(job, state)
    assert job.system.calls == []
    assert sum(job.slept) == 60


# --- Submissions without a recorded outcome ---------------------------------------------------------------------------


def test_a_request_in_flight_is_waited_for(state: outlast.TaskState) -> None:
    job = Findable(task_id="t")
    state.set(INTENT, {"token": "t"})
    job.system.jobs[7], job.system.tokens["t"], job.appears_at = "running", 7, 8.0
    assert run(job, state)["job"] == 7
    assert 8 <= job.now <= 9
    assert "submit" not in job.system.calls


def test_but_only_for_the_grace(state: outlast.TaskState) -> None:
    job = Findable(task_id="t")
    state.set(INTENT, {"token": "t"})
    job.find_job_grace = 3
    assert run(job, state)["job"] == 0
    assert job.now == 3
    assert job.system.tokens == {"t": 0}


def test_a_deferrable_operator_submits_once_with_the_decision(state: outlast.TaskState) -> None:
    job, context = Findable(task_id="t"), {"task_state_store": state}
    decision = job.resume_decision(context)
    assert decision == ResumeDecision("fresh_submit", "no job is stored")
    job.dies_at = "after the job"
    with pytest.raises(Died):
        job.submit_once(decision, context)
    job.dies_at = ""
    assert job.submit_once(job.resume_decision(context), context) == 0
    assert job.submit_once(job.resume_decision(context), context) == 0
    assert job.system.calls.count("submit") == 1


def test_uncertain_is_a_failure_for_good_where_that_is_wanted(
    state: outlast.TaskState, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(task_id="t")
    job.on_uncertain = "fail"
    state.set(INTENT, {"token": "abc"})
    with pytest.raises(FailTask, match=r"outlast state set d/r/t remote_job_id ID"):
        run(job, state)
    assert job.system.calls == []
    assert state.get(INTENT) == {"token": "abc", "uncertain": 1}
    with pytest.raises(FailTask):
        run(job, state)
    assert state.get(INTENT) == {"token": "abc", "uncertain": 2}
    assert counted == ["uncertain_submit"] * 2
    caplog.records.pop()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("resumable_job.uncertain_submit operator=Job: the submission with token abc")


def test_a_refused_submission_leaves_no_doubt(state: outlast.TaskState, counted: list[str]) -> None:
    class Refused(Job):
        def submit_job(self, context: Any) -> Any:
            if not self.system.calls:
                self.system.calls.append("refused")
                raise JobRefused("quota")
            return super().submit_job(context)

    job = Refused(task_id="t")
    with pytest.raises(JobRefused):
        run(job, state)
    assert state.keys() == []
    assert run(job, state)["job"] == 0
    assert counted == ["fresh_submit", "fresh_submit"]


def test_a_refusal_of_a_repeated_request_says_nothing_of_the_first(state: outlast.TaskState) -> None:
    class Refused(Job):
        def submit_job(self, context: Any) -> Any:
            raise JobRefused("that key was used before")

    state.set(INTENT, {"token": "t"})
    with pytest.raises(JobRefused):
        run(Refused(task_id="t"), state)
    assert state.get(INTENT) == {"token": "t", "uncertain": 1}


# --- Cancelling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "told", "cancelled"),
    [
        ((False, 7, "-", "running"), "job 7 was cancelled", True),
        ((False, 7, "-", "done"), "job 7 is done already", False),
        ((False, 7, "-", "gone"), "job 7 is gone", False),
        ((False, None, "-", "running"), "no job is stored", False),
        ((True, None, "-", "running"), "no job is stored", False),
        ((True, None, "1", "running"), "job 7 was cancelled", True),
        ((True, None, "0", "running"), "no job is stored", False),
    ],
)
def test_the_job_that_is_cancelled(cell: Any, told: str, cancelled: bool, state: outlast.TaskState) -> None:
    job = arranged(cell, state)
    assert cancel_stored_job(job, {"task_state_store": state}) == told
    assert (job.system.jobs.get(7) == "cancelled") is cancelled


def test_a_job_whose_status_is_not_known_is_cancelled_all_the_same(state: outlast.TaskState) -> None:
    job = arranged((False, 7, "-", "running"), state)
    job.trouble = [ConnectionError()]
    cancel_stored_job(job, {"task_state_store": state})
    assert job.system.jobs[7] == "cancelled"


def test_where_there_is_nothing_to_cancel_with(state: outlast.TaskState) -> None:
    class Uncancellable(Job):
        cancel_job = ResumableJobMixin.cancel_job

    state.set(ID, 7)
    assert (
        cancel_stored_job(Uncancellable(task_id="t"), {"task_state_store": state}) == "Uncancellable has no cancel_job"
    )


# --- Definition ------------------------------------------------------------------------------------------------------


def test_default_args_reach_the_mixin() -> None:
    with DAG("d", default_args={"durable": False, "cancel_on_final_failure": True, "retries": 2}):
        job = Job(task_id="t")
        kept = Job(task_id="u", durable=True)
    assert (job.durable, job.cancel_on_final_failure, job.retries) == (False, True, 2)
    assert (kept.durable, kept.cancel_on_final_failure) == (True, True)


def test_each_instance_of_a_mapped_job_is_one(state: outlast.TaskState) -> None:
    class Numbered(Job):
        def __init__(self, *, number: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.number = number

    with DAG("d") as dag:
        Numbered.partial(task_id="t", durable=False, cancel_on_final_failure=True).expand(number=[1, 2])
    mapped = dag.tasks["t"]
    assert is_cancellable(mapped)
    ti = TaskInstance(mapped, DagRun("d", "r", WHEN, {}), 1, 1, Rows())
    made = mapping.instance(mapped, 1, ti)
    assert isinstance(made, Numbered)
    assert (made.number, made.durable, made.cancel_on_final_failure) == (2, False, True)


def test_what_can_be_cancelled() -> None:
    class Uncancellable(Job):
        cancel_job = ResumableJobMixin.cancel_job

    class Plain(BaseOperator):
        def execute(self, context: Any) -> Any: ...

    assert is_cancellable(Job(task_id="t"))
    assert not is_cancellable(Uncancellable(task_id="t"))
    assert not is_cancellable(Plain(task_id="t"))


def test_a_class_may_say_that_its_jobs_are_cancelled() -> None:
    class Cancels(Job):
        cancel_on_final_failure = True

    assert Cancels(task_id="t").cancel_on_final_failure
    assert not Cancels(task_id="u", cancel_on_final_failure=False).cancel_on_final_failure


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"durable": "yes"}, "durable is 'yes'; use True or False"),
        ({"cancel_on_final_failure": 1}, "cancel_on_final_failure is 1; use True or False"),
        ({"durrable": True}, "did you mean 'durable'"),
    ],
)
def test_wrong_arguments(what: dict[str, Any], told: str) -> None:
    with pytest.raises(outlast.DagError, match=told):
        Job(task_id="t", **what)


@pytest.mark.parametrize(
    ("name", "value"), [("on_uncertain", "ask"), ("find_job_grace", "10s"), ("status_retry_for", -1)]
)
def test_wrong_class_attributes(name: str, value: Any) -> None:
    kind = type("Wrong", (Job,), {name: value})
    with pytest.raises(outlast.DagError, match=name):
        kind(task_id="t")


def test_what_is_not_defined_is_named() -> None:
    class Half(ResumableJobMixin, BaseOperator):
        def execute(self, context: Any) -> Any:
            return self.execute_resumable(context)

        def submit_job(self, context: Any) -> Any: ...

    with pytest.raises(TypeError, match="poll_until_complete"):
        Half(task_id="t")  # type: ignore[abstract]


def test_tokens_fit_for_names_and_are_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 32 and token[0].isalpha() and token.replace("-", "").isalnum() for token in tokens)


# --- Metrics ---------------------------------------------------------------------------------------------------------


def test_the_counters_of_each_path(state: outlast.TaskState, counted: list[str]) -> None:
    job = Job(task_id="t")
    job.dies_at = "while it runs"
    with pytest.raises(Died):
        run(job, state)
    job.dies_at = ""
    run(job, state)
    run(job, state)
    job.system.jobs[0] = "error"
    run(job, state)
    assert counted == [
        "fresh_submit",
        "reconnect_attempt",
        "reconnect_success",
        "already_succeeded",
        "terminal_resubmit",
    ]


def test_events_go_to_open_telemetry_where_it_is_installed(tmp_path: Path) -> None:
    """The test's own stand-in for OpenTelemetry's API: what is called, and with what."""
    import subprocess
    import sys

    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("")
    (tmp_path / "opentelemetry" / "metrics.py").write_text(
        "class M:\n"
        "    def create_counter(self, name): self.name = name; return self\n"
        "    def add(self, n, tags): print('counter', self.name, n, tags)\n"
        "def get_meter(name): return M()\n"
    )
    (tmp_path / "opentelemetry" / "trace.py").write_text(
        "from contextlib import contextmanager\n"
        "class T:\n"
        "    @contextmanager\n"
        "    def start_as_current_span(self, name): print('span', name); yield self\n"
        "    def set_attribute(self, name, value): print(name, value)\n"
        "def get_tracer(name): return T()\n"
    )
    script = (
        "from outlast.dags import job_events\n"
        "from outlast.dags.resumable import ResumeDecision\n"
        "with job_events.deciding(object(), 'remote_job_id') as decided:\n"
        "    decided(ResumeDecision('reconnect', 'why', 7, 'running'))\n"
        "job_events.happened('resumable_job.fresh_submit', object(), 'why')\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{Path(outlast.__file__ or '').parents[1]}"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "span resumable_job.resume_decision",
        "operator object",
        "resumable.external_id_key remote_job_id",
        "resumable.decision reconnect",
        "resumable.external_id 7",
        "resumable.prior_status running",
        "counter resumable_job.fresh_submit 1 {'operator': 'object'}",
    ], done.stderr


# --- Submit once, whatever dies where --------------------------------------------------------------------------------

POINTS = [
    "before all",
    "before the job",
    "after the job",
    "before the id",
    "after the id",
    "while it runs",
    "at the result",
]
WINDOW = {"after the job", "before the id"}
#: What may become of a job between two attempts.
FATES = ["running", "done", "error", "gone"]
lives = st.lists(st.tuples(st.sampled_from(POINTS), st.sampled_from(FATES)), max_size=6)


def survive(job: Job, life: list[tuple[str, str]], state: Any) -> tuple[int, list[str]]:
    """Let attempts die one after the other, the last one end; return terminal outcomes seen, and where each died."""
    terminal, died = 0, []
    for point, fate in life:
        job.dies_at = point
        with suppress(Died, RuntimeError):
            run(job, state)
        died.append(point)
        for known in [name for name, status in job.system.jobs.items() if status == "running"]:
            if fate == "gone":
                del job.system.jobs[known]
            else:
                job.system.jobs[known] = fate
            terminal += fate in ("error", "gone")
    job.dies_at = ""
    with suppress(RuntimeError):  # a system that deduplicates answers with the job there was, which has failed
        run(job, state)
        return terminal, died
    run(job, state)
    return terminal, died


@pytest.mark.parametrize(("kind", "dedupes"), [(Findable, False), (Job, True), (Findable, True)])
@given(life=lives)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_job_for_each_terminal_outcome(kind: type[Job], dedupes: bool, life: Any) -> None:
    with outlast.connect(":memory:") as store:
        job = kind(task_id="t", system=System(dedupes))
        terminal, _ = survive(job, life, store.task("d/r/t", attempt=1))
        assert len(job.system.tokens) <= 1 + terminal
        assert list(job.system.jobs.values()).count("running") == 0
        assert list(job.system.jobs.values()).count("done") <= 1


@given(life=lives)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_without_either_each_possible_duplicate_is_reported(life: Any) -> None:
    events: list[str] = []
    end: Callable[[], None] = job_events.count_with(lambda event, tags: events.append(event))
    try:
        with outlast.connect(":memory:") as store:
            job = Job(task_id="t")
            terminal, died = survive(job, life, store.task("d/r/t", attempt=1))
            started = next(job.system.ids)
            duplicates = started - 1 - terminal
            assert duplicates <= sum(point in WINDOW for point in died)
            assert duplicates <= events.count("resumable_job.uncertain_submit")
    finally:
        end()
