"""Operators with a resumable job find it again below Airflow 3.3, where they get a mixin that does it.

Operators of providers import ResumableJobMixin from the common-compat provider, which below 3.3 hands out a stand-in
that submits at every try. That class is changed in place: so it does not matter which operators were made of it before.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["mixin"]

_STAND_IN = "airflow.providers.common.compat._resumable_job_mixin"


def mixin() -> type:
    """Return the provider's stand-in, given its behaviour; our own where the provider has none yet."""
    try:
        stand_in: Any = importlib.import_module(_STAND_IN).ResumableJobMixin
    except (ImportError, AttributeError):
        return OwnMixin
    if "resumed_by_outlast" not in vars(stand_in):
        stand_in.__init__ = _made_durable(stand_in.__init__)
        stand_in.__init_subclass__ = _with_init(stand_in)
        stand_in.execute_resumable = OwnMixin.execute_resumable
        stand_in.resumed_by_outlast = True
    found: type = stand_in
    return found


def _made_durable(own: Callable[..., None]) -> Callable[..., None]:
    """Return the stand-in's `__init__`, without its warning that `durable` has no effect, and with the effect."""

    def __init__(self: Any, *, durable: bool = True, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`durable` has no effect")
            own(self, **kwargs)
        self.durable = bool(durable)

    return _told(__init__)


def _told(init: Callable[..., None]) -> Callable[..., None]:
    """Tell Airflow what `.partial()` and `.expand()` may give a class: it looks there in all an operator is made of."""
    init._BaseOperatorMeta__param_names = {"durable"}  # type: ignore[attr-defined]
    return init


def _with_init(mixin: Any) -> Any:
    """Return an `__init_subclass__` for a mixin: an operator without an `__init__` of its own gets one.

    Airflow expects to find that, and not the mixin's.
    """

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:
        super(mixin, cls).__init_subclass__(**kwargs)
        if "__init__" not in vars(cls) and cls.__init__ is mixin.__init__:

            def __init__(self: Any, **kwargs: Any) -> None:
                super(cls, self).__init__(**kwargs)

            cls.__init__ = __init__

    return classmethod(__init_subclass__)


class OwnMixin:
    """What an operator gets that imports ResumableJobMixin from `airflow.sdk`, where nobody else has one."""

    external_id_key: str = "remote_job_id"
    durable: bool

    @_told
    def __init__(self, *, durable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.durable = bool(durable)

    def execute_resumable(self, context: Any) -> Any:
        """Submit the job, or find the one submitted before; wait for it and return its result."""
        from . import resumed

        return resumed.execute(self, context)


OwnMixin.__init_subclass__ = _with_init(OwnMixin)  # type: ignore[method-assign]
