"""One connection to a SQLite file, and a transaction on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import apsw

from ..config import Config
from ..errors import BackendError
from ..values import Clock
from . import sqlite_file
from .answers import Answers

__all__ = ["Session", "in_transaction"]


class Session(Answers):
    """One connection and the statements prepared on it."""

    def __init__(self, connection: apsw.Connection, config: Config) -> None:
        super().__init__(self._execute, config)
        self.connection = connection
        self.state.stepwise = self._stepwise

    def _execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        return self.connection.execute(sql, parameters).fetchall()

    def _stepwise(self, sql: str, parameters: Sequence[Any]) -> Generator[Any, None, None]:
        cursor = self.connection.execute(sql, parameters)
        try:
            yield from cursor
        finally:
            cursor.close(True)  # a statement that is not at its end would keep its picture of the store

    def abandon(self) -> None:
        """Never touch the connection again, nor let it be closed: its descriptors are another's."""
        import ctypes  # rarely needed

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))
        self.connection = _Abandoned()  # type: ignore[assignment]


class _Abandoned:
    """Stands for a connection that must not be used."""

    in_transaction = False

    def execute(self, *_: object) -> Any:
        raise BackendError("this process was forked, or its files were closed, in the middle of this call")


def in_transaction(session: Session, begin: str, answer: Callable[[Any, int], Any], request: Any, clock: Clock) -> Any:
    """Answer a request in a transaction; whatever is raised meanwhile, an interrupt too, rolls it back."""
    try:
        if session.connection.in_transaction:  # left behind by an exception of a signal handler
            session.connection.execute("rollback")
        session.connection.execute(begin)
        reply = answer(request, clock())
        try:
            session.connection.execute("commit")
        except apsw.Error as error:
            raise sqlite_file.explain(error, None, outcome="unknown") from error
    except BaseException:
        if session.connection.in_transaction:
            session.connection.execute("rollback")
        raise
    return reply
