"""What the server says about itself on standard error: lines for people, or one JSON object a line for programs.

Neither tokens nor values are ever handed to a logger; what looks like a token all the same is cut, and a URL is
printed without its password.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

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
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        return without_tokens(super().format(record))


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
