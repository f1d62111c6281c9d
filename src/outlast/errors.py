"""Every error outlast raises, as one tree, each with a stable code, an HTTP status and an exit code.

    OutlastError            code              HTTP  exit
    ├── ConfigError         config             500    78   a setting, file or URL is wrong
    ├── InvalidKey          invalid_key        422    65   a name breaks a rule (also a ValueError)
    ├── InvalidValue        invalid_value      422    65   a value cannot be stored (also a ValueError)
    │   └── ValueTooLarge   value_too_large    413    65   … because of its size
    ├── Conflict            conflict           409     9   a comparison failed; `current` has the entry
    ├── StaleAttempt        stale_attempt      409    10   a newer attempt has opened the scope
    ├── NotFound            not_found          404     4   no such run, task instance, key or version
    ├── Unauthorized        unauthorized       401    77   no token, a wrong one, or one that may not
    ├── BackendError        backend            503    69   database or network; `outcome` says if it happened
    └── DagError            dag                422    66   a DAG file or a task definition is wrong

Errors cross the wire as themselves: `fields()` gives what a reply carries beside the message and
`rebuild()` makes the same error again on the other side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from .values import Entry

__all__ = [
    "BackendError",
    "ConfigError",
    "Conflict",
    "DagError",
    "InvalidKey",
    "InvalidValue",
    "NotFound",
    "OutlastError",
    "StaleAttempt",
    "Unauthorized",
    "ValueTooLarge",
    "rebuild",
]


class OutlastError(Exception):
    """Base of every error outlast raises on purpose; its text says what was wrong and what to do."""

    code: ClassVar[str] = "outlast"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def fields(self) -> dict[str, Any]:
        """Return what a reply must carry beside code and message to rebuild this error."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (self.code, self.message, self.fields())


class ConfigError(OutlastError):
    """A setting, a configuration file or a store URL is wrong."""

    code = "config"
    exit_code = 78


class InvalidKey(OutlastError, ValueError):
    """A key, id or asset name breaks a naming rule (contract 1.3)."""

    code = "invalid_key"
    status = 422
    exit_code = 65


class InvalidValue(OutlastError, ValueError):
    """A value cannot be stored exactly (contract 2.1, 2.2)."""

    code = "invalid_value"
    status = 422
    exit_code = 65


class ValueTooLarge(InvalidValue):
    """A value is above the hard limit of 16 MiB (contract 2.4)."""

    code = "value_too_large"
    status = 413


class Conflict(OutlastError):
    """A comparison failed because the entry changed; `current` is what is stored now (None: absent).

    Backends raise it with the stored row; the store hands it to people as an `Entry`.
    """

    code = "conflict"
    status = 409
    exit_code = 9

    def __init__(self, message: str, current: Entry | None = None) -> None:
        super().__init__(message)
        self.current = current

    def fields(self) -> dict[str, Any]:
        return {"current": self.current}


class StaleAttempt(OutlastError):
    """A newer attempt has opened this scope, or the scope is gone; this attempt must stop."""

    code = "stale_attempt"
    status = 409
    exit_code = 10


class NotFound(OutlastError, LookupError):
    """There is no such run, task instance, key or version."""

    code = "not_found"
    status = 404
    exit_code = 4


class Unauthorized(OutlastError):
    """The token is missing, wrong or expired."""

    code = "unauthorized"
    status = 401
    exit_code = 77


class BackendError(OutlastError):
    """The database or the network failed; `outcome` is "unknown" when the write may have happened."""

    code = "backend"
    status = 503
    exit_code = 69

    def __init__(self, message: str, outcome: Literal["failed", "unknown"] = "failed") -> None:
        super().__init__(message)
        self.outcome: Literal["failed", "unknown"] = outcome

    def fields(self) -> dict[str, Any]:
        return {"outcome": self.outcome}


class DagError(OutlastError):
    """A DAG file, a task definition or a run's parameters are wrong."""

    code = "dag"
    status = 422
    exit_code = 66


def _tree(root: type[OutlastError]) -> dict[str, type[OutlastError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        if child.__module__ == __name__:  # not what a user has derived
            found.update(_tree(child))
    return found


def rebuild(code: str, message: str, fields: dict[str, Any]) -> OutlastError:
    """Make the error a code names, for instance from a server's reply; an unknown code is an OutlastError."""
    return _tree(OutlastError).get(code, OutlastError)(message, **fields)
