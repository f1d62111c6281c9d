"""Triggers: how they are stored and made again, the two of time, and what `defer` refuses."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from outlast import DagError, InvalidValue
from outlast.dags.deferral import stored_deferral
from outlast.dags.operators import BaseOperator
from outlast.dags.outcomes import TaskDeferred, TaskRescheduled
from outlast.dags.task_functions import task
from outlast.dags.triggers import (
    BaseEventTrigger,
    BaseTrigger,
    DateTimeTrigger,
    TimeDeltaTrigger,
    TriggerEvent,
    make_trigger,
    trigger_class,
    trigger_text,
)

from .conftest import Attempts

WHEN = datetime(2026, 11, 29, 4, 5, 6, 7, tzinfo=UTC)

TRIGGER = """
from outlast.dags.triggers import BaseTrigger, TriggerEvent

class Kept(BaseTrigger):
    def __init__(self, **kwargs):
        super().__init__()
        self.kwargs = kwargs

    def serialize(self):
        return f"{type(self).__module__}.{type(self).__qualname__}", self.kwargs

    async def run(self):
        yield TriggerEvent(None)

class Outer:
    class Inner(Kept):
        pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of triggers beside a DAG file that has one, too."""
    (tmp_path / "waiting_things.py").write_text(TRIGGER)
    write_dag(tmp_path, "# first")
    before = {*sys.modules}
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in {*sys.modules} - before:
        del sys.modules[name]


def write_dag(folder: Path, more: str, source: str = TRIGGER) -> Path:
    file = folder / "d.py"
    file.write_text(
        f'{source}\nfrom outlast import DAG, task\nwith DAG("d"):\n    task(lambda: 1, task_id="t")()\n{more}\n'
    )
    return file


@pytest.fixture
def kept(folder: Path) -> Any:
    """The trigger class of the module."""
    import waiting_things  # type: ignore[import-not-found]

    return waiting_things.Kept


# --- As they are stored ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *(WHEN, WHEN.replace(tzinfo=None), WHEN.astimezone(timezone(timedelta(hours=5, minutes=30)))),
        *(timedelta(days=-3, microseconds=1), timedelta.max, timedelta(0)),
        *(None, True, 0, 2**70, 0.1, "", "text", [], {}, [[WHEN], {"a": [timedelta(1)]}]),
        *({"$datetime": "no"}, {"$timedelta": 1}, {"$dict": {}}, {"$dict": {"$datetime": WHEN}}, {"$datetime": WHEN}),
        *({"$datetime": "no", "more": 1}, {"$other": 1}),
    ],
)
def test_arguments_come_back_as_they_were(kept: Any, value: Any) -> None:
    path, text = trigger_text(kept(value=value))
    made: Any = make_trigger(path, text, "/nowhere/d.py")
    assert type(made) is kept
    assert repr(made.kwargs["value"]) == repr(value)


def test_the_zone_of_a_datetime_becomes_its_offset(kept: Any) -> None:
    from zoneinfo import ZoneInfo

    moment = datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    made: Any = make_trigger(*trigger_text(kept(moment=moment)), "/nowhere/d.py")
    assert made.kwargs["moment"] == moment


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"a": {"b": [1, (2,)]}}, r"\$\.a\.b\[1\] is a tuple; store list"),
        ({"a": {1}}, r"\$\.a is a set"),
        ({"a": math.nan}, r"\$\.a is nan"),
        ({"a": b""}, r"\$\.a is a bytes"),
        ({"a": {1: 2}}, r"\$\.a has the key 1"),
        ({"a": WHEN.date()}, r"\$\.a is a date;"),
        ({"a": "\ud800"}, r"\$\.a has a lone surrogate"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(kept: Any, arguments: Any, complaint: str) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        trigger_text(kept(**arguments))


def test_a_cycle_and_too_deep_a_nesting_are_refused(kept: Any) -> None:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(InvalidValue, match="is part of a cycle"):
        trigger_text(kept(a=cycle))
    with pytest.raises(InvalidValue, match="is nested deeper than 100"):
        trigger_text(kept(a=deep))


def test_arguments_may_be_large_but_not_huge(kept: Any) -> None:
    assert len(trigger_text(kept(a="x" * 1_000_000))[1]) > 1_000_000
    with pytest.raises(InvalidValue, match="at most 1,048,576 are allowed"):
        trigger_text(kept(a="x" * 1_100_000))


def test_the_path_of_a_nested_class(kept: Any) -> None:
    import waiting_things

    path, text = trigger_text(waiting_things.Outer.Inner(a=1))
    assert path == "waiting_things.Outer.Inner"
    assert type(make_trigger(path, text, "/nowhere/d.py")) is waiting_things.Outer.Inner


def test_a_class_of_the_dag_file_is_found_after_the_file_has_changed(folder: Path) -> None:
    from outlast.dags.loading import load_file

    loaded = load_file(folder / "d.py")
    first = sys.modules[f"outlast_dag_{loaded.digest}"].Outer.Inner  # type: ignore[attr-defined]
    path, text = trigger_text(first(a=WHEN))
    assert path == "file:Outer.Inner"
    file = write_dag(folder, "# second")
    made: Any = make_trigger(path, text, str(file))
    assert (type(made).__name__, made.kwargs) == ("Inner", {"a": WHEN})
    assert type(made) is not first


def test_a_module_beside_the_dag_file_is_found_by_a_process_that_has_not_loaded_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(folder)])
    with pytest.raises(DagError, match="no module 'waiting_things' can be imported"):
        trigger_class("waiting_things.Kept", "/nowhere/d.py")
    assert trigger_class("waiting_things.Kept", str(folder / "d.py")).__name__ == "Kept"


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("file:Gone", "has no trigger class 'Gone' any more; put it back"),
        ("file:Outer.Gone", "has no trigger class 'Outer.Gone' any more"),
        ("file:Outer", "file:Outer is .*, which is no trigger class any more"),
        ("waiting_things.Gone", "there is no trigger class waiting_things.Gone: module .* has no attribute 'Gone'"),
        ("waiting_things", "there is no trigger class waiting_things: no module"),
        ("gone_things.Kept", "no module 'gone_things' can be imported"),
        ("os.path.join", "os.path.join is .*, which is no trigger class any more"),
    ],
)
def test_a_class_that_is_not_there_any_more(folder: Path, path: str, complaint: str) -> None:
    with pytest.raises(DagError, match=complaint):
        trigger_class(path, str(folder / "d.py"))


def test_a_module_that_cannot_be_imported_says_what_it_lacks(folder: Path) -> None:
    (folder / "broken_things.py").write_text("import gone_things")
    with pytest.raises(ModuleNotFoundError, match="gone_things"):
        trigger_class("broken_things.Kept", str(folder / "d.py"))


def test_triggers_that_could_not_be_found_again(kept: Any) -> None:
    class Local(BaseTrigger):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            return f"{__name__}.{type(self).__qualname__}", {}

        async def run(self) -> Any:
            yield TriggerEvent()

    class Elsewhere(kept):  # type: ignore[misc]
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def serialize(self) -> Any:
            return self.answer

    with pytest.raises(DagError, match=r"Local could not be found again after a restart; define its class at the top"):
        trigger_text(Local())
    with pytest.raises(DagError, match="could not be found again"):
        trigger_text(Elsewhere(("__main__.Mine", {})))
    for answer, looked_for in (
        ("Mine", "there is no trigger class Mine: no module stands before its class"),
        ("gone_things.Mine", "there is no trigger class gone_things.Mine: no module 'gone_things' can be imported"),
        ("waiting_things.Gone", "there is no trigger class waiting_things.Gone: module 'waiting_things' has no"),
    ):
        with pytest.raises(DagError) as refused:
            trigger_text(Elsewhere((answer, {})))
        assert f"names {answer!r}: {looked_for}" in refused.value.message
        assert 'return f"{__name__}.Elsewhere"' in refused.value.message
    with pytest.raises(DagError, match=r"names waiting_things\.Outer, which is no trigger class"):
        trigger_text(Elsewhere(("waiting_things.Outer", {})))
    for odd in (None, "path", ("path",), ("path", []), (1, {})):
        with pytest.raises(DagError, match="return the path of its class and a dict"):
            trigger_text(Elsewhere(odd))
    with pytest.raises(DagError, match="is no trigger; derive its class from BaseTrigger"):
        trigger_text(kept)


def test_a_trigger_without_run_or_serialize_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseTrigger()  # type: ignore[abstract]


def test_an_event_trigger_has_its_store_before_run_only() -> None:
    class Watch(BaseEventTrigger):
        def __init__(self) -> None:
            self.seen = self.asset_state_store  # without super().__init__()

        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "watch.Watch", {}

        async def run(self) -> Any:
            yield TriggerEvent()

    assert Watch().seen is None


def test_events_are_equal_when_their_payloads_are() -> None:
    assert TriggerEvent({"a": 1}) == TriggerEvent({"a": 1})
    assert TriggerEvent(1) != TriggerEvent(2)
    assert repr(TriggerEvent("x")) == "TriggerEvent<'x'>"


# --- Time ------------------------------------------------------------------------------------------------


async def first(trigger: BaseTrigger) -> TriggerEvent:
    async for event in trigger.run():
        return event
    raise AssertionError("no event")


def test_a_moment_that_has_passed_fires_at_once() -> None:
    assert (
        asyncio.run(first(DateTimeTrigger(moment=WHEN - timedelta(days=400)))).payload
        == "2025-10-25T04:05:06.000007+00:00"
    )


def test_a_time_span_fires_when_it_is_over() -> None:
    began = datetime.now(UTC)
    trigger = TimeDeltaTrigger(timedelta(seconds=0.2))
    payload = asyncio.run(first(trigger)).payload
    assert datetime.fromisoformat(payload) == trigger.moment
    assert timedelta(seconds=0.2) <= datetime.now(UTC) - began < timedelta(seconds=2)


def test_a_time_span_is_stored_as_the_moment_it_ends() -> None:
    trigger = TimeDeltaTrigger(90)
    path, text = trigger_text(trigger)
    assert path == "outlast.dags.triggers.DateTimeTrigger"
    made: Any = make_trigger(path, text, "/nowhere/d.py")
    assert (type(made), made.moment) == (DateTimeTrigger, trigger.moment)


def test_a_moment_is_kept_in_utc() -> None:
    moment = WHEN.astimezone(timezone(timedelta(hours=5)))
    assert DateTimeTrigger(moment).moment == WHEN
    assert repr(DateTimeTrigger(moment)) == "<DateTimeTrigger 2026-11-29T04:05:06.000007+00:00>"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: DateTimeTrigger(WHEN.replace(tzinfo=None)), "use a datetime with its time zone"),
        (lambda: DateTimeTrigger("2026-11-29"), "moment is '2026-11-29'"),  # type: ignore[arg-type]
        (lambda: DateTimeTrigger(WHEN, end_from_trigger=True), "end_from_trigger=True is not supported"),
        (lambda: TimeDeltaTrigger(timedelta(1), end_from_trigger=True), "end_from_trigger=True is not supported"),
        (lambda: TimeDeltaTrigger("1h"), "delta is '1h'; use a timedelta"),  # type: ignore[arg-type]
        (lambda: TimeDeltaTrigger(-1), "it must be zero or more"),
        (lambda: TimeDeltaTrigger(timedelta.max), "ends after the year 9999"),
    ],
)
def test_times_that_are_refused(make: Any, complaint: str) -> None:
    with pytest.raises(DagError, match=complaint):
        make()


# --- Deferring -------------------------------------------------------------------------------------------


class Waits(BaseOperator):
    """Defers with what it is given, and takes an event in several ways."""

    def __init__(self, given: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.given = given

    def execute(self, context: Any) -> Any:
        self.defer(**{"trigger": DateTimeTrigger(WHEN), "method_name": "done", **self.given})

    def done(self, context: Any, event: Any = None, *, rows: int = 0) -> Any:
        return event, rows

    def eventless(self, context: Any) -> Any: ...

    def anything(self, context: Any, **kwargs: Any) -> Any: ...

    def needs(self, context: Any, event: Any, page: int) -> Any: ...


def deferred(attempt: Attempts, given: dict[str, Any]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        attempt(Waits(given, task_id="t"))
    return caught.value


def test_what_is_stored_of_a_deferral(attempt: Attempts) -> None:
    given = {"kwargs": {"rows": 3}, "timeout": timedelta(minutes=1.5)}
    stored = stored_deferral(Waits({}, task_id="t"), deferred(attempt, given))
    assert stored.trigger_path == "outlast.dags.triggers.DateTimeTrigger"
    assert stored.trigger_kwargs == '{"moment":{"$datetime":"2026-11-29T04:05:06.000007+00:00"}}'
    assert (stored.next_method, stored.next_kwargs, stored.timeout) == ("done", '{"rows":3}', 90.0)


@pytest.mark.parametrize(("given", "seconds"), [(None, None), (5, 5.0), (0.25, 0.25), (timedelta(days=1), 86400.0)])
def test_a_timeout_is_a_timedelta_or_seconds(attempt: Attempts, given: Any, seconds: float | None) -> None:
    assert stored_deferral(Waits({}, task_id="t"), deferred(attempt, {"timeout": given})).timeout == seconds


def test_a_method_may_take_everything(attempt: Attempts) -> None:
    assert deferred(attempt, {"method_name": "anything", "kwargs": {"page": 1}}).kwargs == {"page": 1}


@pytest.mark.parametrize(
    ("given", "error", "complaint"),
    [
        ({"method_name": "doen"}, DagError, "Waits has no method 'doen' to go on with; did you mean 'done'?"),
        ({"method_name": None}, DagError, "Waits has no method None to go on with"),
        ({"method_name": "task_id"}, DagError, "Waits has no method 'task_id' to go on with"),
        ({"method_name": "eventless"}, DagError, r"Waits.eventless\(\) has no argument 'event'"),
        ({"method_name": "needs"}, DagError, r"Waits.needs\(\) lacks 'page'"),
        ({"kwargs": {"row": 1}}, DagError, r"Waits.done\(\) has no argument 'row'; did you mean 'rows'?"),
        ({"kwargs": {"event": 1}}, DagError, r"have 'event', which done\(\) is given anyway"),
        ({"kwargs": {"context": 1}}, DagError, r"have 'context', which done\(\) is given anyway"),
        ({"kwargs": [1]}, DagError, r"the kwargs of the deferral are \[1\]; use a dict whose keys are names"),
        ({"kwargs": {"rows": WHEN}}, InvalidValue, r"kwargs of the deferral cannot be kept: \$.rows is a datetime"),
        ({"trigger": None}, DagError, "None is no trigger"),
        ({"timeout": 0}, DagError, "timeout is 0:00:00; it must be positive"),
        ({"timeout": "1h"}, DagError, "timeout is '1h'; use a timedelta"),
    ],
)
def test_a_deferral_that_could_not_go_on_is_refused_at_the_call(
    attempt: Attempts, given: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        attempt(Waits(given, task_id="t"))


def test_code_that_catches_every_exception_does_not_stop_a_deferral(attempt: Attempts, dag: Any) -> None:
    @task
    def careless() -> None:
        try:
            raise TaskDeferred(trigger=DateTimeTrigger(WHEN))
        except Exception:
            raise AssertionError("caught") from None

    with pytest.raises(TaskDeferred):
        attempt(careless())


def test_a_function_goes_on_with_the_event_and_what_it_left(attempt: Attempts, dag: Any) -> None:
    @task
    def wait(name: str, event: Any = None, seen: int = 0, ti: Any = None) -> Any:
        return name, event, seen, ti.try_number

    one = wait("a").linked()
    context = attempt.context(one)
    assert one.execute(context) == ("a", None, 0, 1)
    assert one.execute(context, event={"id": 7}, seen=2) == ("a", {"id": 7}, 2, 1)


def test_a_function_need_not_take_the_event(attempt: Attempts, dag: Any) -> None:
    @task
    def wait(name: str) -> str:
        return name

    one = wait("a").linked()
    assert one.execute(attempt.context(one), event=1) == "a"


def test_a_function_that_takes_everything_gets_it(attempt: Attempts, dag: Any) -> None:
    @task
    def wait(**context: Any) -> Any:
        return context["event"], context["run_id"]

    one = wait().linked()
    assert one.execute(attempt.context(one), event=1) == (1, "r")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"method_name": "again"}, "FunctionTask has no method 'again' to go on with"),
        ({"kwargs": {"seeen": 1}}, r"wait\(\) has no argument 'seeen'; did you mean 'seen'?"),
    ],
)
def test_a_function_that_could_not_go_on(attempt: Attempts, dag: Any, given: dict[str, Any], complaint: str) -> None:
    @task
    def wait(event: Any = None, seen: int = 0) -> None: ...

    with pytest.raises(DagError, match=complaint):
        stored_deferral(wait().linked(), TaskDeferred(trigger=DateTimeTrigger(WHEN), **given))


@pytest.mark.parametrize("moment", ["2026-11-29", datetime(2026, 11, 29)])
def test_a_reschedule_is_to_a_moment_with_a_zone(moment: Any) -> None:
    with pytest.raises(DagError, match="use a datetime with its time zone"):
        TaskRescheduled(moment)
