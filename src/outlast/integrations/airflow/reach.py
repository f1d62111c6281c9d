"""Whether this process reaches its store: where tasks may do without one that is away, that is found out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...errors import BackendError
from . import where

if TYPE_CHECKING:
    from ...store import Store

__all__ = ["Reach", "reach"]

T = TypeVar("T")


class Reach:
    """What a process knows of its store: nothing yet, that it is there, or that it is away."""

    def __init__(self) -> None:
        self.away: BackendError | None = None
        self._is_there = False

    def begun(self, begin: Callable[[Store], T], patient: bool = False) -> T:
        """Return what `begin` makes of the store of this process, and raise what it raises.

        With `[outlast] on_error = disable` a store that is away is given up within seconds, and from then on at once;
        `patient` asks it all the same, for as long as with `fail`.
        """
        try:
            if not patient and where.on_error() == "disable":
                self._look(begin)
            found = begin(where.open_store())
        except BackendError as error:
            self.away = error
            raise
        self._is_there, self.away = True, None
        return found

    @property
    def is_given_up(self) -> bool:
        """Whether nothing more is asked of the store in this process."""
        return self.away is not None and where.on_error() == "disable"

    def _look(self, begin: Callable[[Store], object]) -> None:
        """Begin with a store that is soon given up; what is begun twice is begun once."""
        if self.away is not None:
            raise self.away.with_traceback(None)
        if not self._is_there and not where.is_file():
            with where.make_store(where.SOON) as store:
                begin(store)


reach = Reach()
