"""Tell what resumable jobs do: a line in the log, counters, and OpenTelemetry where it is installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

__all__ = ["EVENTS", "Counter", "count_with", "deciding", "happened", "logger"]

#: Told of every event: its name, and what it is counted by.
Counter: TypeAlias = Callable[[str, Mapping[str, str]], None]

#: Every event there is, with the level of its line in the log. The first five are Airflow's counters.
EVENTS = {
    "resumable_job.fresh_submit": logging.INFO,
    "resumable_job.reconnect_attempt": logging.INFO,
    "resumable_job.reconnect_success": logging.INFO,
    "resumable_job.already_succeeded": logging.INFO,
    "resumable_job.terminal_resubmit": logging.WARNING,
    "resumable_job.uncertain_submit": logging.WARNING,
    "resumable_job.found_by_token": logging.INFO,
    "resumable_job.same_token_submit": logging.INFO,
}

logger = logging.getLogger("outlast.resumable_job")
_counters: list[Counter] = []


def count_with(counter: Counter) -> Callable[[], None]:
    """Have a function told of every event in this process; call what is returned to end that."""
    _counters.append(counter)
    return lambda: _counters.remove(counter)


def happened(event: str, operator: object, reason: str) -> None:
    """Log an event and count it, by the class of the operator."""
    tags = {"operator": type(operator).__name__}
    logger.log(EVENTS[event], "%s operator=%s: %s", event, tags["operator"], reason)
    for counter in _counters:
        counter(event, tags)
    if (made := _instrument(event)) is not None:
        made.add(1, tags)


@contextmanager
def deciding(operator: object, key: str) -> Iterator[Callable[[Any], None]]:
    """Trace a decision; what is yielded is told of it once it has been taken."""
    tracing = _open_telemetry("trace")
    if tracing is None:
        yield lambda decision: None
        return
    with tracing.get_tracer("outlast").start_as_current_span("resumable_job.resume_decision") as span:
        span.set_attribute("operator", type(operator).__name__)
        span.set_attribute("resumable.external_id_key", key)
        yield lambda decision: _describe(span, decision)


def _describe(span: Any, decision: Any) -> None:
    span.set_attribute("resumable.decision", decision.kind)
    for name, value in (("external_id", decision.external_id), ("prior_status", decision.status)):
        if value is not None:
            span.set_attribute(f"resumable.{name}", str(value))


@cache
def _instrument(event: str) -> Any:
    metrics = _open_telemetry("metrics")
    return None if metrics is None else metrics.get_meter("outlast").create_counter(event)


@cache
def _open_telemetry(part: str) -> Any:
    """Return a module of OpenTelemetry's API, None where it is not installed."""
    try:
        return importlib.import_module(f"opentelemetry.{part}")
    except ImportError:
        return None
