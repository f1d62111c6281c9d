"""`outlast.testing`: attempts in this process that are killed at a write, a clock to move, and the pytest plugin."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import BaseOperator, task
from outlast.dags.outcomes import FailTask, SkipTask, TaskRescheduled
from outlast.dags.triggers import BaseTrigger, TriggerEvent
from outlast.testing import Clock, Killed, memory_store, run_task

LATER = datetime(2026, 2, 1, tzinfo=UTC)

# --- Tasks to try ----------------------------------------------------------------------------------------


def load(pages, fetched, task_state_store=None):
    for page in range(task_state_store.get("page", 0) + 1, pages + 1):
        fetched.append(page)
        task_state_store.set("page", page)
    return {"pages": pages}


class Fired(BaseTrigger):
    """A trigger that fires at once."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.Fired", {"name": self.name}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent(self.name)


class Waits(BaseOperator):
    def __init__(self, *, trigger: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.trigger = trigger

    def execute(self, context: Any) -> None:
        self.noted = "lost with the process"
        context["task_state_store"].set("asked", True)
        self.defer(trigger=self.trigger or Fired("x"), method_name="done", kwargs={"page": 7})

    def done(self, context: Any, event: Any = None, page: int = 0) -> list[Any]:
        context["task_state_store"].set("came", event)
        return [event, page, hasattr(self, "noted"), context["ti"].try_number]


# --- Attempts --------------------------------------------------------------------------------------------


def test_a_task_that_ends_gives_its_result_and_its_state(store: outlast.Store) -> None:
    done = run_task(load, store=store, arguments={"pages": 2, "fetched": []})
    assert (done.succeeded, done.result, done.state, done.attempt) == (True, {"pages": 2}, {"page": 2}, 1)


def test_the_next_attempt_goes_on_where_the_killed_one_was(store: outlast.Store) -> None:
    fetched: list[int] = []
    killed = run_task(load, store=store, arguments={"pages": 4, "fetched": fetched}, crash_after="page")
    assert (killed.crashed, killed.state, fetched) == (True, {"page": 1}, [1])
    killed = run_task(load, store=store, arguments={"pages": 4, "fetched": fetched}, crash_after=2)
    assert (killed.crashed, killed.attempt, killed.state) == (True, 2, {"page": 3})
    assert run_task(load, store=store, arguments={"pages": 4, "fetched": fetched}).result == {"pages": 4}
    assert fetched == [1, 2, 3, 4]


def test_a_task_can_be_killed_instead_of_writing(store: outlast.Store) -> None:
    killed = run_task(load, store=store, arguments={"pages": 1, "fetched": []}, crash_before="page")
    assert (killed.crashed, killed.state) == (True, {})


def test_a_killed_task_writes_nothing_more_whatever_it_catches(store: outlast.Store) -> None:
    def stubborn(task_state_store=None, ti=None):
        try:
            task_state_store.set("a", 1)
        except Exception:
            task_state_store.set("caught", True)
        except BaseException:
            with pytest.raises(Killed):
                task_state_store.set("b", 2)
            with pytest.raises(Killed):
                task_state_store.get("a")
        return "as if nothing had happened"

    killed = run_task(stubborn, store=store, crash_after="a")
    assert (killed.crashed, killed.state) == (True, {"a": 1})
    with pytest.raises(AssertionError, match="there is no result"):
        _ = killed.result


def test_a_transaction_is_one_write_and_killed_as_a_whole(store: outlast.Store) -> None:
    def both(task_state_store=None):
        with task_state_store.transaction() as tx:
            tx.set("a", 1)
            tx.set("b", 2)
        task_state_store.increment("c")

    assert run_task(both, store=store, crash_before="b").state == {}
    assert run_task(both, store=store, crash_after="a").state == {"a": 1, "b": 2}
    assert run_task(both, store=store, crash_after=2).state == {"a": 1, "b": 2, "c": 1}


def test_an_async_task_is_killed_too(store: outlast.Store) -> None:
    async def pages(task_state_store=None):
        async def one(page: int) -> None:
            await task_state_store.aset(f"page-{page}", True)

        await asyncio.gather(*(one(page) for page in range(3)))
        return 3

    killed = run_task(pages, store=store, crash_before="page-1")
    assert killed.crashed
    assert "page-1" not in killed.state
    assert run_task(pages, store=store).result == 3


def test_a_kill_that_never_came_is_an_error_of_the_test(store: outlast.Store) -> None:
    with pytest.raises(AssertionError, match="no write of 'pages', only of page, page"):
        run_task(load, store=store, arguments={"pages": 2, "fetched": []}, crash_after="pages")
    with pytest.raises(AssertionError, match="only 2 of 9 writes"):
        run_task(load, store=store, arguments={"pages": 4, "fetched": []}, crash_after=9)

    def fails():
        raise ValueError("before it came there")

    with pytest.raises(AssertionError, match="ValueError") as caught:
        run_task(fails, store=store, crash_before="x")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("point", "error", "told"),
    [
        ({"crash_after": 0}, ValueError, "crash_after is 0; writes are counted from 1"),
        ({"crash_after": -1}, ValueError, "crash_after is -1; writes are counted from 1"),
        ({"crash_after": True}, TypeError, "crash_after is True; use a key, or a number"),
        ({"crash_after": 1.5}, TypeError, "crash_after is 1.5; use a key, or a number"),
        ({"crash_after": ["page"]}, TypeError, "crash_after is .'page'.; use a key"),
        ({"crash_after": ""}, outlast.InvalidKey, "crash_after is '', which is never written: "),
        ({"crash_after": "a/../b"}, outlast.InvalidKey, "crash_after is 'a/../b', which is never written: "),
        ({"crash_before": ""}, outlast.InvalidKey, "crash_before is '', which is never written: "),
        ({"crash_before": 2}, TypeError, "crash_before is 2; use a key"),
    ],
)
def test_a_point_that_is_no_write_is_refused_before_anything_runs(
    store: outlast.Store, point: dict[str, Any], error: type[Exception], told: str
) -> None:
    fetched: list[int] = []
    with pytest.raises(error, match=told):
        run_task(load, store=store, arguments={"pages": 2, "fetched": fetched}, **point)
    waits = run_task(Waits(task_id="w"), store=store)
    with pytest.raises(error, match=told):
        waits.resume("e", **point)
    assert (fetched, store.task("test/test/w").keys()) == ([], ["asked"])
    assert run_task(load, store=store, arguments={"pages": 2, "fetched": []}).attempt == 1


@pytest.mark.parametrize("point", [{"crash_after": "never"}, {"crash_before": "never"}, {"crash_after": 9}])
@pytest.mark.parametrize("end", [None, ValueError("x"), SkipTask("x"), TaskRescheduled(LATER)])
def test_a_kill_that_never_came_is_an_error_however_the_task_ends(point: dict[str, Any], end: Exception | None) -> None:
    def ends(task_state_store=None):
        task_state_store.set("page", 1)
        if end is not None:
            raise end

    told = "only 1 of 9 writes" if 9 in point.values() else "no write of 'never', only of page"
    with pytest.raises(AssertionError, match=f"was not killed: {told}$"):
        run_task(ends, **point)


def test_a_deferral_without_the_kill_is_an_error_too() -> None:
    with pytest.raises(AssertionError, match="deferred> was not killed: no write of 'came', only of asked"):
        run_task(Waits(task_id="w"), crash_after="came")


def test_an_older_attempt_is_refused_once_a_newer_one_has_begun(store: outlast.Store) -> None:
    kept: list[Any] = []

    def keep(task_state_store=None):
        kept.append(task_state_store)

    run_task(keep, store=store)
    run_task(keep, store=store)
    with pytest.raises(outlast.StaleAttempt):
        kept[0].set("late", 1)


def test_the_number_of_the_attempt_can_be_chosen(store: outlast.Store) -> None:
    def number(ti=None):
        return ti.try_number

    assert run_task(number, store=store, attempt=3).result == 3
    assert run_task(number, store=store).result == 4
    with pytest.raises(outlast.StaleAttempt):
        run_task(number, store=store, attempt=2)


def test_what_a_task_raises_is_raised_where_its_result_is_asked_for() -> None:
    def fails():
        raise KeyError("gone")

    failed = run_task(fails)
    assert failed.failed
    assert isinstance(failed.exception, KeyError)
    with pytest.raises(KeyError, match="gone"):
        _ = failed.result


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (SkipTask("nothing to do"), "skipped"),
        (FailTask("for good"), "failed"),
        (SystemExit(3), "failed"),
        (SystemExit(0), "failed"),
        (TaskRescheduled(LATER), "rescheduled"),
    ],
)
def test_how_an_attempt_ends_is_told_as_the_runner_would(error: BaseException, outcome: str) -> None:
    def ends():
        raise error

    assert run_task(ends).outcome == outcome


def test_what_is_raised_to_end_the_test_itself_ends_it() -> None:
    def stops():
        pytest.fail("a fake was called wrongly")

    with pytest.raises(pytest.fail.Exception, match="called wrongly"):
        run_task(stops)


def test_a_result_that_is_no_json_fails_the_task() -> None:
    assert isinstance(run_task(lambda: {1, 2}).exception, outlast.InvalidValue)
    assert run_task(lambda: None).result is None


def test_state_is_cleared_with_the_success_where_the_task_says_so(store: outlast.Store) -> None:
    @task(clear_state_on_success=True)
    def ends(ti, task_state_store=None):
        task_state_store.set("try", ti.try_number)
        if ti.try_number == 1:
            raise ValueError("once more")

    assert run_task(ends, store=store).state == {"try": 1}
    assert run_task(ends, store=store).state == {}


# --- Deferral --------------------------------------------------------------------------------------------


def test_a_deferred_task_goes_on_as_the_same_attempt_and_another_object(store: outlast.Store) -> None:
    waits = run_task(Waits(task_id="w"), store=store)
    assert waits.deferred
    assert waits.deferral is not None
    assert (waits.deferral.method_name, waits.deferral.kwargs) == ("done", {"page": 7})
    done = waits.resume({"rows": 3})
    assert (done.result, done.attempt) == ([{"rows": 3}, 7, False, 1], 1)
    assert done.state == {"asked": True, "came": {"rows": 3}}


def test_a_task_can_be_killed_after_its_deferral(store: outlast.Store) -> None:
    killed = run_task(Waits(task_id="w"), store=store).resume("e", crash_after="came")
    assert (killed.crashed, killed.state) == (True, {"asked": True, "came": "e"})


def test_a_trigger_that_could_not_be_found_again_fails_the_task() -> None:
    class Local(Fired):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            return f"{__name__}.{type(self).__qualname__}", {"name": self.name}

    failed = run_task(Waits(task_id="w", trigger=Local("x")))
    assert failed.failed
    assert "top level" in str(failed.exception)


def test_only_what_waits_can_go_on() -> None:
    with pytest.raises(AssertionError, match="does not wait"):
        run_task(lambda: 1).resume()


def test_a_rescheduled_task_goes_on_as_the_same_attempt(store: outlast.Store) -> None:
    def poke(ti=None, task_state_store=None):
        if task_state_store.increment("pokes") < 2:
            raise TaskRescheduled(datetime(2026, 1, 1, 0, 5, tzinfo=UTC))
        return ti.try_number

    first = run_task(poke, store=store)
    assert (first.outcome, first.at) == ("rescheduled", datetime(2026, 1, 1, 0, 5, tzinfo=UTC))
    assert first.resume().result == 1


# --- The clock -------------------------------------------------------------------------------------------


def test_the_clock_is_moved_by_the_test_alone() -> None:
    clock = Clock()
    assert clock.now == datetime(2026, 1, 1, tzinfo=UTC)
    with memory_store(clock) as store:
        state = store.task("d/r/t")
        state.set("token", "x", retention=timedelta(hours=1))
        clock.advance(timedelta(hours=1, microseconds=-1))
        assert state.get("token") == "x"
        clock.advance(0.000001)
        assert state.get("token") is None
        clock.set(datetime(2030, 5, 6, tzinfo=UTC))
        assert clock() == 1_904_256_000_000_000
        with pytest.raises(ValueError, match="no time zone"):
            clock.set(datetime(2030, 5, 6))


def test_a_sensor_waits_by_the_clock_of_its_store() -> None:
    """Its attempt began by that clock, whatever the host's says."""

    @task.sensor(poke_interval=0.01, timeout=5)
    def ready(task_state_store: Any = None) -> bool:
        return bool(task_state_store.increment("looks") > 2)

    with memory_store(Clock()) as store:
        assert (run_task(ready, store=store).succeeded, store.scopes()[0].entries) == (True, 1)


# --- The plugin ------------------------------------------------------------------------------------------

PLUGIN = """
from datetime import timedelta

from outlast.testing import run_task


def count(task_state_store=None):
    for number in range(task_state_store.get("n", 0) + 1, 4):
        task_state_store.set("n", number, retention=timedelta(days=1))
    return number


def test_it_resumes(outlast_store):
    assert run_task(count, store=outlast_store, crash_after=2).state == {"n": 2}
    assert run_task(count, store=outlast_store).result == 3


def test_it_forgets(outlast_store, outlast_clock):
    assert run_task(count, store=outlast_store, crash_after=2).crashed
    outlast_clock.advance(timedelta(days=1))
    assert outlast_store.task("test/test/count").get("n") is None


def test_a_crash_that_does_not_come(outlast_store):
    run_task(count, store=outlast_store, crash_after="m")
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    named = entry_points(group="pytest11", name="outlast")
    plugin = () if named else ("-p", "outlast.testing")  # the package itself, or only its sources
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *plugin, *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_pytest_has_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_count.py").write_text(PLUGIN)
    done = run_pytest(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "1 failed" in done.stdout
    assert "was not killed: no write of 'm', only of n, n, n" in done.stdout


def test_the_plugin_costs_a_start_of_pytest_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_bare.py").write_text(
        "import sys\n\n\ndef test_bare():\n"
        "    ours = {name for name in sys.modules if name.partition('.')[0] in ('outlast', 'apsw', 'msgspec')}\n"
        "    assert ours == {'outlast', 'outlast.testing', 'outlast.testing.outcome'}\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_pytest_the_module_does_not_import_it() -> None:
    code = "import sys, outlast.testing; sys.exit('pytest' in sys.modules or 'msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


# --- What is no task, and what is returned ---------------------------------------------------------------


def test_a_class_is_no_task() -> None:
    with pytest.raises(TypeError, match=r'Waits is a class; pass a task made of it: Waits\(task_id="t", …\)'):
        run_task(Waits)


def test_an_async_task_in_an_event_loop_says_what_to_do() -> None:
    async def later():
        return 1

    async def tries():
        return run_task(later)

    outcome = asyncio.run(tries())
    assert outcome.outcome == "failed"
    assert "an event loop runs in this thread already" in str(outcome.exception)


def test_tuples_in_results_are_lists_and_in_state_are_refused() -> None:
    def returns(task_state_store=None, ti=None):
        ti.xcom_push("pushed", ((1,),))
        with pytest.raises(outlast.InvalidValue):
            task_state_store.set("key", (1, 2))
        return {"a": (1, [(2, 3)]), "b": [4]}, ti.xcom_pull(key="pushed")

    assert run_task(returns).result == [{"a": [1, [[2, 3]]], "b": [4]}, [[1]]]


def test_a_result_that_holds_itself_is_refused() -> None:
    def returns():
        value: list[Any] = [(1,)]
        value += [value, (value, value)]
        return value

    assert run_task(returns).outcome == "failed"
