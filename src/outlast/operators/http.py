"""`HttpJobOperator`: a job behind an HTTP API, described by a method, a URL and a path into the reply for each call."""

from __future__ import annotations

import json
import string
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from http.client import HTTPException
from typing import Any, TypeAlias

import msgspec

from ..dags.arguments import duration, listed
from ..dags.context import Context
from ..dags.operators import BaseOperator
from ..dags.resumable import JobNotFound, JobRefused, ResumableJobMixin
from ..errors import DagError
from ..values import JsonValue
from .timed_calls import NotConnected, open_within

__all__ = ["HttpJobError", "HttpJobOperator"]

#: (method, URL) or (method, URL, path into the reply).
Call: TypeAlias = tuple[str, str] | tuple[str, str, str]

SUCCEEDED = ("success", "succeeded", "completed", "complete", "done", "finished", "ok")
FAILED = ("failed", "failure", "error", "errored", "cancelled", "canceled", "killed", "aborted", "timeout", "timed_out")

#: Replies that may be different a moment later; 409 where a request with the same Idempotency-Key is still at work.
_PASSING = frozenset({408, 425, 429, *range(500, 600)})
_PASSING_SUBMIT = _PASSING | {409}
_LIMIT = 16 * 1024 * 1024
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
#: What the URL of each call may contain.
_FIELDS = {
    "submit": {"token", "params"},
    "find": {"token", "params"},
    "status": {"id", "params"},
    "result": {"id", "params"},
    "cancel": {"id", "params"},
}


class HttpJobError(RuntimeError):
    """A call was answered with an error, or with what is not understood. `status` is the reply's, None without one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class _Unreachable(HttpJobError):
    """Nobody has answered; `sent` says whether the request may have arrived."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class HttpJobOperator(ResumableJobMixin, BaseOperator):
    """Submits a job with an `Idempotency-Key`, asks for its status until it has ended, and fetches its result.

    >>> HttpJobOperator(
    ...     task_id="train",
    ...     submit=("POST", "https://jobs.example/jobs", "job.id"),
    ...     status=("GET", "https://jobs.example/jobs/{id}", "job.state"),
    ...     find=("GET", "https://jobs.example/jobs?key={token}", "jobs.0.id"),
    ...     result=("GET", "https://jobs.example/jobs/{id}/result"),
    ...     cancel=("DELETE", "https://jobs.example/jobs/{id}"),
    ...     body={"model": "large"},
    ... )

    A URL may contain `{id}` (of the job), `{token}` (of the submission; only in `submit` and `find`) and
    `{params[name]}`, all of them quoted. A path is keys and positions with dots between.
    """

    def __init__(
        self,
        *,
        submit: Call,
        status: Call,
        result: Call | None = None,
        cancel: Call | None = None,
        find: Call | None = None,
        body: JsonValue | Callable[[Context], JsonValue] = None,
        headers: Mapping[str, str] | None = None,
        succeeded: Sequence[str] = SUCCEEDED,
        failed: Sequence[str] = FAILED,
        poll_interval: timedelta | float = 5.0,
        request_timeout: timedelta | float = 30.0,
        retry_for: timedelta | float = 60.0,
        idempotency_header: str = "Idempotency-Key",
        **kwargs: Any,
    ) -> None:
        """Define the task.

        Without a path in `submit` the token itself is the job's id, whatever the reply says; without one in `find`
        either, any reply but null and [] means that there is such a job. Without `result` the last reply to `status`
        is the result. `body` is that of `submit`, JSON or a function of the context. A status that is neither in
        `succeeded` nor in `failed`, whatever its case, counts as still running. `request_timeout` is for the whole
        of a call, to the last byte of its reply. A call that meets it, a broken connection, a 5xx or 429 is tried
        again for `retry_for`; asking for the status after any error.
        Raises DagError for a wrong template.
        """
        super().__init__(**kwargs)
        self.submit, self.status, self.result, self.cancel, self.find = submit, status, result, cancel, find
        self.body, self.headers, self.idempotency_header = body, headers, idempotency_header
        self.succeeded, self.failed = listed("succeeded", succeeded), listed("failed", failed)
        self.poll_interval = duration("poll_interval", poll_interval)
        self.request_timeout = duration("request_timeout", request_timeout, timedelta(milliseconds=1))
        self.retry_for = self.status_retry_for = duration("retry_for", retry_for)
        for name in _FIELDS:
            _check(name, getattr(self, name), required=name in ("submit", "status"))

    def execute(self, context: Context) -> Any:
        return self.execute_resumable(context)

    @property
    def can_find_job(self) -> bool:
        return self.find is not None

    @property
    def can_cancel_job(self) -> bool:
        return self.cancel is not None

    # --- the job ---------------------------------------------------------------------------------------------

    def submit_job(self, context: Context) -> JsonValue:
        """Submit the job and return its id; JobRefused where it certainly was not started.

        A request whose fate is unknown is sent again only where that cannot start a second job: after `find` has
        found none, or, without `find`, with the same key; not at all with `on_uncertain="fail"`.
        """
        token: str = context["submission_token"]
        try:
            request = self._request(self.submit, context, token=token)
        except Exception as error:
            raise JobRefused(f"the request could not be made: {error}") from error
        deadline, pause, unsure = self._deadline(), _FIRST_PAUSE, False
        while True:
            try:
                return self._submitted(request, token)
            except HttpJobError as error:
                unsure = unsure or _may_have_started(error)
                again = _is_passing(error, _PASSING_SUBMIT) and self._monotonic() < deadline
                if not again and not unsure:
                    raise JobRefused(str(error)) from error
                if not again or (unsure and not self._may_repeat()):
                    raise
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            found: JsonValue = self._find_in_time(token, context) if unsure and self.can_find_job else None
            if found is not None:
                return found

    def _submitted(self, request: urllib.request.Request, token: str) -> JsonValue:
        reply = self._answer(request)
        if len(self.submit) == 2:
            return token
        return _id(_at(reply, self.submit[2], "the reply to submit"), "submit", reply)

    def _may_repeat(self) -> bool:
        return self.can_find_job or self.on_uncertain == "resubmit"

    def find_job(self, token: str, context: Context) -> JsonValue:
        """Return the id of the job that was submitted with a token, None if there is none."""
        assert self.find is not None
        try:
            reply = self._once(self.find, context, token=token)
        except JobNotFound:
            return None
        job = _first_at(reply, self.find[2] if len(self.find) > 2 else "")
        if job is None:
            return None
        return token if len(self.submit) == len(self.find) == 2 else _id(job, "find", reply)

    def get_job_status(self, external_id: Any, context: Context) -> Any:
        """Return the job's status; JobNotFound where the reply is a 404 or 410."""
        reply = self._once(self.status, context, id=external_id)
        return _at(reply, self.status[2] if len(self.status) > 2 else "", "the reply to status")

    def is_job_active(self, status: Any) -> bool:
        return not self.is_job_succeeded(status) and _folded(status) not in map(_folded, self.failed)

    def is_job_succeeded(self, status: Any) -> bool:
        return _folded(status) in map(_folded, self.succeeded)

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait until the job has ended; HttpJobError where it has failed."""
        while self.is_job_active(status := self._ask_status(external_id, context)):
            self._sleep(self.poll_interval.total_seconds())
        if not self.is_job_succeeded(status):
            reply = self._patiently(self.status, context, id=external_id)
            raise HttpJobError(f"job {external_id!r} has ended as {status}: {_excerpt(reply)}")

    def get_job_result(self, external_id: Any, context: Context) -> Any:
        call = self.result or self.status[:2]
        reply = self._patiently(call, context, id=external_id)
        return _at(reply, call[2] if len(call) > 2 else "", "the reply to result")

    def cancel_job(self, external_id: Any, context: Context) -> None:
        """Cancel the job; one that is gone is no error."""
        assert self.cancel is not None
        try:
            self._patiently(self.cancel, context, id=external_id)
        except JobNotFound:
            return

    # --- calls -----------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return self._monotonic() + self.retry_for.total_seconds()

    def _once(self, call: Call, context: Context, **fields: Any) -> Any:
        """Make a call; JobNotFound where there is no such job."""
        try:
            return self._answer(self._request(call, context, **fields))
        except HttpJobError as error:
            if error.status in (404, 410):
                raise JobNotFound(str(error)) from error
            raise

    def _patiently(self, call: Call, context: Context, **fields: Any) -> Any:
        """Make a call that may be repeated without harm."""
        deadline, pause = self._deadline(), _FIRST_PAUSE
        while True:
            try:
                return self._once(call, context, **fields)
            except HttpJobError as error:
                if not _is_passing(error) or self._monotonic() >= deadline:
                    raise
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _request(self, call: Call, context: Context, **fields: Any) -> urllib.request.Request:
        method, url = call[0], _filled(call[1], {**fields, "params": context["params"]})
        headers = {"Accept": "application/json", **(self.headers or {})}
        data = None
        if call is self.submit:
            headers[self.idempotency_header] = fields["token"]
            body = self.body(context) if callable(self.body) else self.body
            if body is not None:
                headers["Content-Type"], data = "application/json", msgspec.json.encode(body)
        return urllib.request.Request(url, data, headers, method=method)

    def _answer(self, request: urllib.request.Request) -> Any:
        """Make a call and return what the reply's JSON is, or its text where it is none."""
        return _read(_send(request, self.request_timeout.total_seconds()))


def _send(request: urllib.request.Request, timeout: float) -> bytes:
    what = f"{request.get_method()} {request.full_url}"
    try:
        with open_within(request, timeout) as reply:
            data: bytes = reply.read(_LIMIT + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise HttpJobError(f"{what} was answered {error.code}: {_text_of(error)}", error.code) from None
    except urllib.error.URLError as error:
        raise _Unreachable(f"{what} failed: {error.reason}", sent=not isinstance(error.reason, NotConnected)) from error
    except TimeoutError as error:
        raise _Unreachable(f"{what} has not been answered in full within {timeout:g} s", sent=True) from error
    except (OSError, HTTPException) as error:
        raise _Unreachable(f"{what} failed: {error!r}", sent=True) from error
    if len(data) > _LIMIT:
        raise HttpJobError(f"the reply to {what} is larger than {_LIMIT:,} bytes", 200)
    return data


def _text_of(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(2000).decode(errors="replace").strip()
    except (OSError, HTTPException):
        return ""


def _may_have_started(error: HttpJobError) -> bool:
    """Say whether a job may have been started by a request that ended so. Only a plain refusal excludes it."""
    if isinstance(error, _Unreachable):
        return error.sent
    return error.status is None or error.status < 400 or error.status in _PASSING_SUBMIT - {425, 429}


def _is_passing(error: HttpJobError, passing: frozenset[int] = _PASSING) -> bool:
    return isinstance(error, _Unreachable) or error.status in passing


def _read(data: bytes) -> Any:
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


# --- Templates and paths -----------------------------------------------------------------------------------


class _Quoting(string.Formatter):
    """`str.format` whose values are quoted for a URL."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return urllib.parse.quote(format(value, format_spec), safe="")


def _filled(url: str, fields: Mapping[str, Any]) -> str:
    try:
        return _Quoting().vformat(url, (), fields)
    except (LookupError, AttributeError, ValueError) as error:
        raise DagError(f"the URL {url!r} cannot be filled in: {error!r}") from None


def _check(name: str, call: Any, required: bool) -> None:
    """Raise DagError for what is no call; what is only known in a run is checked when it is used."""
    if call is None and not required:
        return
    if not isinstance(call, tuple | list) or len(call) not in (2, 3):
        raise DagError(f'{name} is {call!r}; give (method, URL) or (method, URL, path), such as ("GET", "https://…")')
    if not isinstance(call[1], str):
        return
    if urllib.parse.urlsplit(call[1]).scheme not in ("http", "https"):
        raise DagError(f"the URL of {name} is {call[1]!r}; it must begin with http:// or https://")
    for _, field, _, _ in string.Formatter().parse(call[1]):
        if field is not None and field.partition("[")[0].partition(".")[0] not in _FIELDS[name]:
            allowed = " and ".join(sorted(f"{{{known}}}" for known in _FIELDS[name]))
            raise DagError(f"the URL of {name} has {{{field}}}; it may have {allowed}")


def _at(reply: Any, path: str, what: str) -> Any:
    """Return what stands at a path of a reply; HttpJobError if there is nothing."""
    value = reply
    for step in path.split(".") if path else ():
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (LookupError, TypeError, ValueError):
            raise HttpJobError(f"{what} has no {path!r}: {_excerpt(reply)}", 200) from None
    return value


def _first_at(reply: Any, path: str) -> Any:
    """Return what stands at a path; None where the reply, or what is met on the way or at the end, is null or []."""
    value = reply
    for step in path.split(".") if path else ():
        if value is None or value == []:
            return None
        value = _at(value, step, "the reply to find")
    return None if value == [] else value


def _id(value: Any, call: str, reply: Any) -> str | int | float:
    """Return a job's id, which is a text or a number (0 and "" are ids); HttpJobError for anything else."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    path = f"what the path of {call} leads to" if value is not reply else f"the reply to {call}, which has no path,"
    raise HttpJobError(f"{path} is no job id, which is a text or a number: {_excerpt(value)}", 200)


def _folded(status: Any) -> str:
    return str(status).casefold()


def _excerpt(reply: Any) -> str:
    text = json.dumps(reply, ensure_ascii=False)
    return text if len(text) <= 500 else text[:500] + "…"
