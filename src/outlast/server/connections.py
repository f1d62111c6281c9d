"""HTTP connections that all have an end: in bytes, in time, and in how many there are."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HEAD_BYTES", "LimitedProtocol", "most_connections"]

logger = logging.getLogger("outlast.server")

#: Bytes of a request's line and headers at most (an attempt's token may have 24 KiB), and of what ends its body.
HEAD_BYTES = 64 * 1024
#: Seconds at most for which what is left of a body is thrown away after the answer, so that its sender gets to read it.
LINGER = 5.0
#: Times `seconds` for which a client may take nothing of an answer.
STALLS = 4
#: Connections where the number of open files has no limit, and descriptors that are kept for files and the database.
_PLENTY, _RESERVED = 65_536, 64
#: Seconds between two lines of the log that say that there are too many connections.
_QUIET = 60.0


class LimitedProtocol(HttpToolsProtocol):
    """HTTP whose clients are waited for, but not for ever.

    A request's head has to arrive within `seconds`, and what is left of its body once it is answered sooner still; a
    body that is being read is its reader's to wait for.
    """

    seconds: ClassVar[float] = 30.0
    most: ClassVar[int] = _PLENTY
    _refused_at: ClassVar[float] = float("-inf")

    _in_head = _in_body = _moved = False
    _quiet = 0  # bytes since something came of them
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.most:
            self._log_too_many()
            self._refuse(503, "Service Unavailable", "backend_error", "this server has as many connections as it takes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._taken()
        super().connection_lost(exc)

    # --- what arrives --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_head, self._quiet = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what follows the last chunk is of no use
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head, self._in_body = False, True
        self._note_progress()
        if self.expect_100_continue:  # whether a body that is not asked for follows all the same is not known
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._note_progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._note_progress()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._moved = False
        super().data_received(data)
        if not self._moved:
            self._quiet += len(data)
        if (self._in_head or self._in_body) and self._quiet > HEAD_BYTES:
            self._refuse(431, "Request Header Fields Too Large", "invalid_value", f"headers above {HEAD_BYTES:,} bytes")
        elif self._in_head or not self._is_answering():
            self._wait()
        else:
            self._arrived()

    def _note_progress(self) -> None:
        self._moved, self._quiet = True, 0

    # --- what is answered ----------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and not self._is_answering():
            self._wait(min(self.seconds, LINGER))

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "Bad Request", "invalid_value", "this is not a request as HTTP/1.1 has it")

    def _refuse(self, status: int, reason: str, code: str, detail: str) -> None:
        """Say what is wrong, unless an answer is on its way already, and close the connection."""
        if self.transport.is_closing():
            return
        if self._may_tell():
            body = msgspec.json.encode({"detail": detail, "code": code})
            head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.disconnected = True  # its answer is not sent any more
            self.cycle.message_event.set()
        self.transport.close()

    def _may_tell(self) -> bool:
        """Say whether what is written now would be the answer to what is refused."""
        if self.pipeline or self.cycle is None:
            return not self.pipeline
        return not self.cycle.response_started if self._in_body else bool(self.cycle.response_complete)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _log_too_many(self) -> None:
        now = time.monotonic()
        if now - LimitedProtocol._refused_at >= _QUIET:
            LimitedProtocol._refused_at = now
            client = self.client[0] if self.client else "a local socket"
            logger.warning(
                "503: %d connections are open, which is all this server takes: %s is refused, and so are others that "
                "follow; raise its limit of open files if they are wanted",
                self.most,
                client,
            )

    # --- who does not take what they asked for ---------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLS * self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def _taken(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # --- who does not send what they began -------------------------------------------------------------------

    def _wait(self, seconds: float | None = None) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.seconds if seconds is None else seconds, self._too_late)

    def _arrived(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self._is_answering():  # the next request waits for this one's answer
            self._wait()
        elif not self.transport.is_closing():
            self.transport.close()


def most_connections() -> int:
    """Let this process have as many files open as it may; return how many of them can be connections."""
    try:
        import resource
    except ImportError:  # not a Unix
        return _PLENTY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _PLENTY if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):
            pass  # as many as there were, then
    files = wanted if soft == resource.RLIM_INFINITY else soft
    return max(files - _RESERVED, files // 2)
