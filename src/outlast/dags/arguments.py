"""What DAGs, tasks and functions are given, checked: unknown names, durations, counts, and what a call lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import FunctionType
from typing import Any

import msgspec

from ..errors import DagError

__all__ = ["Parameters", "check_call", "count", "did_you_mean", "duration", "listed", "parameters_of", "refuse_unknown"]

_VARARGS, _VARKEYWORDS = 0x04, 0x08  # inspect.CO_VARARGS, inspect.CO_VARKEYWORDS, without importing inspect


def did_you_mean(name: str, allowed: Iterable[str], likeness: float = 0.6) -> str:
    """Return "; did you mean 'retries'?" for a name that nearly is one of those allowed, else an empty text."""
    import difflib

    close = difflib.get_close_matches(name, allowed, 1, likeness)
    return f"; did you mean {close[0]!r}?" if close else ""


#: Arguments of Airflow's DAGs and operators about things outlast does not have, which change nothing here.
IGNORED = frozenset(
    {
        "owner",
        "email",
        "email_on_failure",
        "email_on_retry",
        "pool",
        "pool_slots",
        "queue",
        "priority_weight",
        "weight_rule",
        "depends_on_past",
        "wait_for_downstream",
        "do_xcom_push",
        "executor",
        "executor_config",
        "run_as_user",
        "sla",
        "task_display_name",
        "dag_display_name",
        "is_paused_upon_creation",
        "fail_fast",
        "render_template_as_native_obj",
        "template_searchpath",
        "jinja_environment_kwargs",
        "user_defined_macros",
        "user_defined_filters",
        "access_control",
        "owner_links",
        "dag_version",
    }
)


def refuse_unknown(what: str, unknown: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise DagError for the first name that is neither allowed nor `IGNORED`; `unknown` may be any names."""
    known = sorted(allowed)
    for name in unknown:
        if name not in known and name not in IGNORED:
            from .airflow_missing import instead_of_argument

            hint = instead_of_argument(name) or did_you_mean(name, known) or f"; it takes {', '.join(known) or 'none'}"
            raise DagError(f"{what} has no argument {name!r}{hint}")


def duration(what: str, value: object, least: timedelta = timedelta(0)) -> timedelta:
    """Return a timedelta, or a number of seconds, as a timedelta of at least `least`; DagError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            value = timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise DagError(f"{what} is {value!r} seconds, which is no time span; use a smaller number") from None
    if not isinstance(value, timedelta):
        raise DagError(f"{what} is {value!r}; use a timedelta such as timedelta(minutes=5), or a number of seconds")
    if value < least:
        raise DagError(f"{what} is {value}; it must be {'positive' if least else 'zero or more'}")
    return value


def count(what: str, value: object, least: int = 0) -> int:
    """Return a whole number of at least `least`; DagError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DagError(f"{what} is {value!r}; it must be a whole number from {least} on")
    return value


def listed(what: str, value: object) -> tuple[Any, ...]:
    """Return a list, tuple or set as a tuple; DagError for text, which is what one forgets the brackets of."""
    if isinstance(value, str | bytes) or not isinstance(value, list | tuple | set | frozenset):
        raise DagError(f"{what} is {value!r}; write a list: {what}=[{value!r}]")
    return tuple(sorted(value, key=str)) if isinstance(value, set | frozenset) else tuple(value)


# --- A function's parameters -----------------------------------------------------------------------------


class Parameters(msgspec.Struct, frozen=True):
    """The parameters of a function, and which of them have no default."""

    positional: tuple[str, ...]
    positional_only: int
    keyword_only: tuple[str, ...]
    required: frozenset[str]
    any_positional: bool
    any_keyword: bool

    @property
    def by_keyword(self) -> tuple[str, ...]:
        """Return the names a caller may use as keywords."""
        return self.positional[self.positional_only :] + self.keyword_only


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Read a function's parameters; a plain function's without the 5 ms that importing `inspect` takes."""
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return _inspected(function)
    code = function.__code__
    names, size = code.co_varnames, code.co_argcount
    keyword_only = names[size : size + code.co_kwonlyargcount]
    without_default = names[: size - len(function.__defaults__ or ())]
    return Parameters(
        names[:size],
        code.co_posonlyargcount,
        keyword_only,
        frozenset({*without_default, *(name for name in keyword_only if name not in (function.__kwdefaults__ or {}))}),
        bool(code.co_flags & _VARARGS),
        bool(code.co_flags & _VARKEYWORDS),
    )


def _inspected(function: Callable[..., Any]) -> Parameters:
    import inspect

    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise DagError(f"the parameters of {function!r} cannot be read; wrap it in a function of your own") from None
    kinds = [parameter.kind for parameter in found]
    one = inspect.Parameter
    return Parameters(
        tuple(p.name for p in found if p.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)),
        kinds.count(one.POSITIONAL_ONLY),
        tuple(p.name for p in found if p.kind is one.KEYWORD_ONLY),
        frozenset(
            p.name for p in found if p.default is one.empty and p.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ),
        one.VAR_POSITIONAL in kinds,
        one.VAR_KEYWORD in kinds,
    )


def check_call(
    name: str, wanted: Parameters, args: tuple[Any, ...], kwargs: Mapping[str, Any], provided: frozenset[str]
) -> None:
    """Raise DagError unless `name(*args, **kwargs)` would work once the `provided` parameters are filled in."""
    if len(args) > len(wanted.positional) and not wanted.any_positional:
        raise DagError(
            f"{name}() takes at most {len(wanted.positional)} positional arguments and was given {len(args)}"
        )
    by_position = wanted.positional[: len(args)]
    if not wanted.any_keyword:
        refuse_unknown(f"{name}()", kwargs, set(wanted.by_keyword) - provided)
    for twice in [key for key in kwargs if key in by_position[wanted.positional_only :]]:
        raise DagError(f"{name}() was given {twice!r} twice, by position and by keyword; give it once")
    _refuse_provided(name, {*by_position, *kwargs} & provided, by_position)
    fillable = provided.intersection(wanted.by_keyword)
    if missing := wanted.required - {*by_position, *kwargs} - fillable:
        names = ", ".join(repr(key) for key in wanted.positional + wanted.keyword_only if key in missing)
        raise DagError(f"{name}() lacks {names}; give a value, or a default in its definition")


def _refuse_provided(name: str, taken: set[str], by_position: tuple[str, ...]) -> None:
    for key in sorted(taken):
        how = "give the other arguments by keyword" if key in by_position else "leave it out"
        raise DagError(f"{name}() was given {key!r}, which every task gets from its context: {how}, or rename it")


def callbacks(what: str, value: object) -> tuple[Any, ...]:
    """Return callbacks given as one function or as several; DagError for what cannot be called."""
    several = value if isinstance(value, list | tuple) else () if value is None else (value,)
    for callback in several:
        if not callable(callback):
            raise DagError(f"{what} has {callback!r}, which cannot be called; give a function of the context")
    return tuple(several)
