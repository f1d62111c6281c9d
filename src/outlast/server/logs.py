"""What the server says about itself on standard error: lines for people, or one JSON object a line for programs.

Neither tokens nor values are ever handed to a logger; what looks like a token all the same is cut, and a URL is
printed without its password.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..config import without_tokens

__all__ = ["set_up"]

#: The loggers whose words a server passes on.
OURS = ("outlast", "uvicorn")


def set_up(*, as_json: bool) -> None:
    """Send what the server and its libraries log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONLines() if as_json else Lines("%(asctime)s %(levelname)s %(message)s"))
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    logging.getLogger("outlast").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class Lines(logging.Formatter):
    """Lines for people: a message is one, whatever was sent to be in it, and those of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        return without_tokens(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  {_one_line(line)}" for line in super().formatException(ei).split("\n"))


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class JSONLines(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `message`, and `trace` for an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return without_tokens(msgspec.json.encode(line, enc_hook=str).decode())
