"""Run one trigger: its events checked, what became of it as JSON text, and its tidying up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from .. import codec
from ..dags.triggers import BaseTrigger, TriggerEvent
from ..errors import DagError, InvalidValue
from .traces import trace_of
from .watcher_lease import NotOurs

__all__ = ["event_text", "events_of", "run_for_good", "run_once"]

logger = logging.getLogger("outlast")

#: Bytes of JSON the payload of an event may take.
PAYLOAD_LIMIT = 1024 * 1024
#: Characters of a traceback that are kept, the last ones.
TRACE_LIMIT = 20_000
#: Seconds a trigger has to tidy up.
TIDY_FOR = 30.0
#: Seconds before a trigger that belongs to no task is run again: this many, doubled with each failure, at most.
PAUSE, LONGEST_PAUSE = 1.0, 60.0

Make = Callable[[], Awaitable[BaseTrigger]]


async def run_once(make: Make, fire: Callable[[str], Awaitable[None]]) -> None:
    """Run a trigger to its first event, or its failure, and hand that to `fire`; then let it tidy up.

    Cancelled, it fires nothing.
    """
    trigger: BaseTrigger | None = None
    events: AsyncIterator[TriggerEvent] | None = None
    try:
        try:
            trigger = await make()
            logger.info("waiting for %r", trigger)
            events = events_of(trigger)
            text = await _first(trigger, events)
        except BaseException as error:
            if isinstance(error, GeneratorExit) or _is_cancelled(error):
                raise
            text = _failure(error)
        await fire(text)
    finally:
        if trigger is not None:
            await _tidy(trigger, events)


async def run_for_good(make: Make, callback: Callable[[Any], Awaitable[None]]) -> None:
    """Run a trigger again and again, and hand the payload of each of its events to `callback`, until it is NotOurs."""
    failures = 0
    while True:
        trigger: BaseTrigger | None = None
        events: AsyncIterator[TriggerEvent] | None = None
        try:
            trigger = await make()
            events = events_of(trigger)
            async for event in events:
                await callback(event.payload)
                failures = 0
        except BaseException as error:
            if isinstance(error, GeneratorExit) or _is_cancelled(error):
                raise
            if isinstance(error, NotOurs):
                logger.warning("%s", error.message)
                return
            failures += 1
            logger.error("the trigger failed, and will run again:\n%s", _trace(error))
        finally:
            if trigger is not None:
                await _tidy(trigger, events)
        await asyncio.sleep(min(PAUSE * 2.0 ** min(failures, 10), LONGEST_PAUSE))


def _is_cancelled(error: BaseException) -> bool:
    """Say whether an exception is this task's own cancellation, and not that of something it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


# --- Events ------------------------------------------------------------------------------------------------


async def events_of(trigger: BaseTrigger) -> AsyncIterator[TriggerEvent]:
    """Yield what a trigger does; DagError for what is no event, or a `run` that cannot yield any."""
    running: Any = trigger.run()
    if not hasattr(running, "__aiter__"):
        if isinstance(running, Coroutine):
            running.close()
        raise DagError(
            f"run() of {trigger!r} is no asynchronous generator; write `async def run(self)`, "
            "and `yield TriggerEvent(…)` in it"
        )
    try:
        async for event in running:
            if not isinstance(event, TriggerEvent):
                raise DagError(f"run() of {trigger!r} yielded {event!r}; yield TriggerEvent(…)")
            yield event
    finally:
        if hasattr(running, "aclose"):
            await running.aclose()


async def _first(trigger: BaseTrigger, events: AsyncIterator[TriggerEvent]) -> str:
    async for event in events:
        text = event_text(event.payload)
        logger.info("fired: %.1000s", text)
        return text
    raise DagError(f"run() of {trigger!r} ended without an event; `yield TriggerEvent(…)` before it does")


def event_text(payload: Any) -> str:
    """Return what a deferred task is told of an event, as JSON text; InvalidValue naming the place that cannot be."""
    try:
        text = codec.dump(payload, allow_none=True, limit=PAYLOAD_LIMIT).decode()
    except InvalidValue as error:
        raise type(error)(f"the payload of the trigger's event cannot be kept: {error.message}") from None
    return f'{{"event":{text}}}'


def _failure(error: BaseException) -> str:
    text = _trace(error)
    logger.error("the trigger failed:\n%s", text)
    return msgspec.json.encode({"error": text}).decode()


def _trace(error: BaseException) -> str:
    """Return a traceback that begins where the user's code does."""
    return trace_of(error).strip().encode("utf-8", "backslashreplace").decode()[-TRACE_LIMIT:]


async def _tidy(trigger: BaseTrigger, events: Any) -> None:
    """End a trigger's generator and call its `cleanup`; what goes wrong then is only logged."""
    try:
        async with asyncio.timeout(TIDY_FOR):
            if events is not None:
                await events.aclose()
            await trigger.cleanup()
    except Exception:
        logger.exception("the trigger failed while tidying up")
