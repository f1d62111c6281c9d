"""Sensors: when they look, when they give up, and what an exception in between does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast import DagError, StaleAttempt
from outlast.dags.deferral import stored_deferral
from outlast.dags.graph import DAG
from outlast.dags.operators import BaseOperator
from outlast.dags.outcomes import FailTask, SensorTimeout, SkipTask, TaskDeferred, TaskRescheduled
from outlast.dags.sensors import BaseSensorOperator, PokeReturnValue
from outlast.dags.task_functions import task
from outlast.dags.triggers import TimeDeltaTrigger

from .conftest import Attempts


class Sensor(BaseSensorOperator):
    """Answers what it is given, one thing a look: a value, or an exception to raise."""

    def __init__(self, *, answers: Any = (), **kwargs: Any) -> None:
        super().__init__(**{"task_id": "s", **kwargs})
        self.answers: Iterator[Any] = iter(answers)
        self.looks: list[float] = []

    def poke(self, context: Any) -> Any:
        self.looks.append(time.monotonic())
        answer = next(self.answers, False)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def looked(attempt: Attempts, sensor: BaseOperator, started: float = 0.0) -> Any:
    """Run a sensor in an attempt that began so many seconds ago."""
    context = attempt.context(sensor)
    context["ti"].start_date = datetime.now(UTC) - timedelta(seconds=started)
    return sensor.execute(context)


# --- Arguments -------------------------------------------------------------------------------------------


def test_the_defaults_of_a_sensor() -> None:
    made = Sensor()
    assert (made.poke_interval, made.timeout, made.mode, made.reschedule) == (60.0, 7 * 86400.0, "poke", False)
    assert (made.soft_fail, made.never_fail, made.silent_fail) == (False, False, False)
    assert (made.exponential_backoff, made.max_wait) == (False, None)


@pytest.mark.parametrize("name", ["poke_interval", "timeout", "max_wait"])
@pytest.mark.parametrize("given", [timedelta(minutes=1.5), 90, 90.0])
def test_durations_are_kept_as_seconds(name: str, given: Any) -> None:
    assert getattr(Sensor(**{name: given}), name) == 90.0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"mode": "wait"}, 'mode is \'wait\'; use "poke" or "reschedule"'),
        ({"poke_interval": -1}, "poke_interval is"),
        ({"timeout": "1h"}, "timeout is '1h'; use a timedelta"),
        ({"soft_fail": True, "never_fail": True}, "soft_fail and never_fail exclude each other"),
        ({"pok_interval": 1}, "Sensor has no argument 'pok_interval'; did you mean 'poke_interval'?"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DagError, match=complaint):
        Sensor(**arguments)


def test_default_args_reach_a_sensor() -> None:
    with DAG("d", default_args={"poke_interval": 5, "retries": 2}):
        made = Sensor()
    assert (made.poke_interval, made.retries) == (5.0, 2)


# --- Looking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "result"),
    [(True, None), (1, None), (PokeReturnValue(True, {"rows": 3}), {"rows": 3}), (PokeReturnValue(True), None)],
)
def test_it_looks_until_the_wait_is_over(attempt: Attempts, last: Any, result: Any) -> None:
    sensor = Sensor(poke_interval=0.05, answers=[False, PokeReturnValue(False, "no"), None, last])
    assert looked(attempt, sensor) == result
    assert len(sensor.looks) == 4
    assert all(0.05 <= later - sooner < 1.0 for sooner, later in zip(sensor.looks, sensor.looks[1:], strict=False))


def test_the_wait_may_be_over_at_once(attempt: Attempts) -> None:
    assert looked(attempt, Sensor(poke_interval=3600, answers=[True])) is None


def test_it_gives_up_after_its_timeout_having_looked_then(attempt: Attempts) -> None:
    sensor = Sensor(poke_interval=0.2, timeout=0.3)
    with pytest.raises(SensorTimeout, match=r"it has not come within 0.3 s, the sensor's timeout") as caught:
        looked(attempt, sensor)
    assert isinstance(caught.value, FailTask)  # whatever retries are left
    places = [at - sensor.looks[0] for at in sensor.looks]
    assert len(places) == 3
    assert 0.29 <= places[2] < 0.6


def test_what_has_come_just_in_time_counts(attempt: Attempts) -> None:
    assert looked(attempt, Sensor(timeout=5, answers=[True]), started=3600) is None


def test_the_timeout_counts_from_the_start_of_the_attempt(attempt: Attempts) -> None:
    sensor = Sensor(poke_interval=60, timeout=10)
    with pytest.raises(SensorTimeout):
        looked(attempt, sensor, started=10)
    assert len(sensor.looks) == 1


def test_a_start_that_is_not_known_is_now(attempt: Attempts) -> None:
    sensor = Sensor(poke_interval=0.05, timeout=0.05)
    with pytest.raises(SensorTimeout):
        sensor.execute(attempt.context(sensor))
    assert len(sensor.looks) == 2


@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_it_may_be_skipped_after_its_timeout(attempt: Attempts, option: str) -> None:
    with pytest.raises(SkipTask, match="it has not come within 0 s"):
        looked(attempt, Sensor(timeout=0, **{option: True}))


# --- Rescheduling ----------------------------------------------------------------------------------------


def put_off(attempt: Attempts, sensor: Sensor, started: float = 0.0) -> float:
    """Return in how many seconds the sensor wants to look again."""
    with pytest.raises(TaskRescheduled) as caught:
        looked(attempt, sensor, started)
    assert len(sensor.looks) == 1
    return (caught.value.at - datetime.now(UTC)).total_seconds()


def test_it_is_put_off_by_its_interval(attempt: Attempts) -> None:
    assert 59 < put_off(attempt, Sensor(mode="reschedule")) <= 60
    assert Sensor(mode="reschedule").reschedule


def test_it_is_put_off_to_the_end_of_its_timeout_at_most(attempt: Attempts) -> None:
    assert 9 < put_off(attempt, Sensor(mode="reschedule", timeout=100), started=90) <= 10


def test_the_timeout_counts_across_reschedules(attempt: Attempts) -> None:
    with pytest.raises(SensorTimeout):
        looked(attempt, Sensor(mode="reschedule", timeout=100), started=100)


def test_what_it_remembers_is_in_its_state(attempt: Attempts) -> None:
    class Third(Sensor):
        def poke(self, context: Any) -> Any:
            return context["task_state_store"].increment("looks") == 3

    rounds = 0
    while True:
        rounds += 1
        try:
            looked(attempt, Third(mode="reschedule"))
            break
        except TaskRescheduled:
            pass
    assert rounds == 3


@pytest.mark.parametrize(
    ("waited", "seconds"),
    [(0, 10), (9, 10), (11, 20), (29, 20), (31, 40), (69, 40), (71, 80), (10**6, 86400)],
)
def test_an_exponential_interval_doubles_with_the_wait(attempt: Attempts, waited: float, seconds: float) -> None:
    sensor = Sensor(mode="reschedule", poke_interval=10, timeout=10**8, exponential_backoff=True)
    assert seconds - 1 < put_off(attempt, sensor, waited) <= seconds


def test_an_exponential_interval_has_a_limit(attempt: Attempts) -> None:
    sensor = Sensor(mode="reschedule", poke_interval=10, exponential_backoff=True, max_wait=timedelta(seconds=25))
    assert 24 < put_off(attempt, sensor, 10_000) <= 25
    nothing = Sensor(mode="reschedule", poke_interval=0, exponential_backoff=True)
    assert put_off(attempt, nothing, 100) <= 0


# --- Exceptions in between -------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{}, {"soft_fail": True}])
def test_an_exception_ends_the_attempt(attempt: Attempts, option: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        looked(attempt, Sensor(answers=[ZeroDivisionError()], **option))


def test_an_exception_may_count_as_not_yet(attempt: Attempts, caplog: pytest.LogCaptureFixture) -> None:
    sensor = Sensor(poke_interval=0.01, silent_fail=True, answers=[OSError("no route"), True])
    looked(attempt, sensor)
    assert len(sensor.looks) == 2
    assert "no route" in caplog.text


def test_an_exception_may_skip(attempt: Attempts) -> None:
    with pytest.raises(SkipTask, match="OSError: no route"):
        looked(attempt, Sensor(never_fail=True, answers=[OSError("no route")]))


@pytest.mark.parametrize("error", [SkipTask("s"), TaskRescheduled(datetime.now(UTC)), StaleAttempt("over")])
@pytest.mark.parametrize("option", ["silent_fail", "never_fail", "soft_fail"])
def test_what_is_no_failure_passes_through(attempt: Attempts, error: Exception, option: str) -> None:
    with pytest.raises(type(error)) as caught:
        looked(attempt, Sensor(answers=[error], **{option: True}))
    assert caught.value is error


@pytest.mark.parametrize(
    ("option", "kind"),
    [("silent_fail", FailTask), ("soft_fail", SkipTask), ("never_fail", SkipTask), ("reschedule", FailTask)],
)
def test_a_failure_for_good_is_skipped_where_a_timeout_is(attempt: Attempts, option: str, kind: type) -> None:
    options = {"mode": "reschedule"} if option == "reschedule" else {option: True}
    with pytest.raises(kind, match="never again"):
        looked(attempt, Sensor(answers=[FailTask("never again")], **options))


def test_a_sensor_may_defer(attempt: Attempts) -> None:
    class Deferring(BaseSensorOperator):
        def execute(self, context: Any) -> Any:
            self.defer(trigger=TimeDeltaTrigger(self.poke_interval), method_name="done", timeout=self.timeout)

        def done(self, context: Any, event: Any) -> Any:
            return event

    with pytest.raises(TaskDeferred) as caught:
        looked(attempt, Deferring(task_id="s", timeout=90))
    assert caught.value.timeout == timedelta(seconds=90)


def test_an_interrupt_ends_the_sleep(attempt: Attempts) -> None:
    import signal

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            looked(attempt, Sensor(silent_fail=True, never_fail=False))
        assert time.monotonic() - began < 1.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- Functions -------------------------------------------------------------------------------------------


def test_a_function_as_a_sensor(attempt: Attempts, dag: DAG) -> None:
    @task.sensor(poke_interval=0.01, timeout=timedelta(minutes=5), mode="poke", retries=2)
    def arrived(table: str, task_state_store: Any = None, ti: Any = None) -> PokeReturnValue:
        """Wait for rows."""
        looks = task_state_store.increment("looks")
        return PokeReturnValue(looks == 3, {"table": table, "looks": looks, "try": ti.try_number})

    result = arrived("orders")
    made: Any = result.linked()
    assert isinstance(made, BaseSensorOperator)
    assert (made.task_id, made.poke_interval, made.timeout, made.retries) == ("arrived", 0.01, 300.0, 2)
    assert made.doc_md == "Wait for rows."
    assert attempt(result) == {"table": "orders", "looks": 3, "try": 1}


def test_a_function_as_a_sensor_without_options_or_with_others(attempt: Attempts, dag: DAG) -> None:
    @task.sensor
    def there() -> bool:
        return True

    assert attempt(there()) is None
    other: Any = there.override(task_id="other", mode="reschedule", poke_interval=5)().linked()
    assert (other.task_id, other.mode, other.poke_interval) == ("other", "reschedule", 5.0)


def test_an_option_a_sensor_does_not_take(dag: DAG) -> None:
    with pytest.raises(DagError, match="@task has no argument 'poke_intervall'; did you mean 'poke_interval'"):
        task.sensor(poke_intervall=5)(lambda: True)
    with pytest.raises(DagError, match="@task has no argument 'poke_interval'"):
        task(poke_interval=5)(lambda: True)


def test_a_function_that_looks_again_cannot_defer(attempt: Attempts, dag: DAG) -> None:
    @task.sensor
    def there() -> bool: ...

    with pytest.raises(DagError, match=r"SensorTask.execute\(\) has no argument 'event'"):
        stored_deferral(there().linked(), TaskDeferred(trigger=TimeDeltaTrigger(1)))


def test_a_function_may_be_async(attempt: Attempts, dag: DAG) -> None:
    @task.sensor(poke_interval=0)
    async def there(task_state_store: Any = None) -> bool:
        await asyncio.sleep(0)
        return await task_state_store.aincrement("looks") == 2

    attempt(there())


def test_a_mapped_function_as_a_sensor(attempt: Attempts, dag: DAG) -> None:
    @task.sensor(poke_interval=0.01, mode="reschedule")
    def there(table: str) -> PokeReturnValue:
        return PokeReturnValue(True, table)

    from outlast.dags import mapping

    mapped = there.expand(table=["a", "b"]).linked()
    context = attempt.context(mapped, map_index=1)
    made: Any = mapping.instance(mapped, 1, context["ti"])
    assert (made.mode, made.poke_interval) == ("reschedule", 0.01)
    assert made.execute(attempt.context(made, map_index=1)) == "b"


# --- Async tasks -----------------------------------------------------------------------------------------


def test_an_async_task_with_the_awaiting_verbs(attempt: Attempts, dag: DAG) -> None:
    @task
    async def work(task_state_store: Any = None) -> Any:
        await task_state_store.aset("page", 1)
        await asyncio.gather(*(task_state_store.aincrement("count") for _ in range(5)))
        async with task_state_store.transaction() as both:
            await both.aset("page", await both.aget("page") + 1)
        return [await task_state_store.aget("page"), await task_state_store.aget("count")]

    assert attempt(work()) == [2, 5]


def test_an_async_task_goes_on_from_its_checkpoint(attempt: Attempts, dag: DAG) -> None:
    done: list[int] = []

    @task
    async def work(task_state_store: Any = None) -> str:
        async for item in task_state_store.checkpoint(range(6)):
            if item == 3 and done.count(3) == 0:
                done.append(3)
                raise ConnectionError("away")
            await asyncio.sleep(0)
            done.append(item)
        return "done"

    result = work()
    with pytest.raises(ConnectionError):
        attempt(result)
    assert attempt(result, try_number=2) == "done"
    assert done == [0, 1, 2, 3, 3, 4, 5]


def test_an_async_task_goes_through_an_async_source(attempt: Attempts, dag: DAG) -> None:
    async def pages() -> Any:
        for number in range(4):
            await asyncio.sleep(0)
            yield number

    @task
    async def work(task_state_store: Any = None) -> list[int]:
        return [page async for page in task_state_store.checkpoint(pages(), key="pages")]

    result = work()
    assert attempt(result) == [0, 1, 2, 3]
    assert attempt(result, try_number=2) == []


def test_an_async_operator_may_defer(attempt: Attempts) -> None:
    class Waits(BaseOperator):
        async def execute(self, context: Any) -> Any:
            await context["task_state_store"].aset("before", 1)
            self.defer(trigger=TimeDeltaTrigger(5), method_name="done")

        async def done(self, context: Any, event: Any) -> Any:
            return event

    one = Waits(task_id="t")
    with pytest.raises(TaskDeferred):
        attempt(one)
    assert attempt.context(one)["task_state_store"].get("before") == 1
