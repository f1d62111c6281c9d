"""Small things Airflow's DAG files import and outlast has no other need of: three operators, enums, settings, time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from ..errors import DagError
from .airflow_missing import refuse_absent, refuse_without_assets
from .airflow_names import AIRFLOW_VERSION
from .arguments import parameters_of
from .context import Context
from .links import Linked, link
from .operators import BaseOperator
from .outcomes import SkipTask, TaskError
from .template_texts import is_template

__all__ = [
    "AirflowConfigException",
    "AirflowNotFoundException",
    "BashOperator",
    "DagRunState",
    "EmptyOperator",
    "PythonOperator",
    "State",
    "TaskInstanceState",
    "TriggerRule",
    "aware",
    "chain_linear",
    "conf",
    "convert_to_utc",
    "cross_downstream",
    "is_localized",
    "make_aware",
    "parse",
    "utc",
    "utcnow",
    "version",
]

version = AIRFLOW_VERSION


class AirflowConfigException(TaskError):
    """A setting is asked for that is not there."""


class AirflowNotFoundException(TaskError):
    """Something asked for is not there; for DAG files to raise and to catch."""


# --- Operators -------------------------------------------------------------------------------------------


class EmptyOperator(BaseOperator):
    """A task that does nothing, to tie others together."""

    def execute(self, context: Context) -> None:
        pass


class PythonOperator(BaseOperator):
    """A task that calls a function with `op_args`, `op_kwargs` and what it names of the context."""

    template_fields = ("op_args", "op_kwargs")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not callable(python_callable):
            raise DagError(f"python_callable is {python_callable!r}; pass the function itself")
        self.python_callable = python_callable
        self.op_args, self.op_kwargs = op_args, {} if op_kwargs is None else op_kwargs
        wanted = parameters_of(python_callable)
        given = {*wanted.positional[: len(op_args)], *self.op_kwargs}
        refuse_absent(self.task_id, python_callable, wanted, given)
        refuse_without_assets(self.task_id, python_callable, wanted, given, (*self.inlets, *self.outlets))

    def execute(self, context: Context) -> Any:
        wanted = parameters_of(self.python_callable)
        names: Iterable[str] = context if wanted.any_keyword else wanted.by_keyword
        taken = {*wanted.positional[: len(self.op_args)], *self.op_kwargs}
        of_context = {name: context[name] for name in names if name in context and name not in taken}
        return self.python_callable(*self.op_args, **self.op_kwargs, **of_context)


class BashOperator(BaseOperator):
    """A task that runs a command in bash; the last line it prints is the result.

    `env` replaces the environment, or adds to it with `append_env=True`. The folder is `cwd`, else one that is removed
    afterwards. Exit status 0 is success, one of `skip_on_exit_code` a skip, any other a failure. There are no
    templates: a command with `{{ … }}` in it is a DagError.
    """

    template_fields = ("env", "cwd")

    def __init__(
        self,
        *,
        bash_command: str,
        env: Mapping[str, str] | None = None,
        append_env: bool = False,
        cwd: str | None = None,
        skip_on_exit_code: int | Iterable[int] | None = 99,
        do_xcom_push: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._refuse_argument("bash_command", bash_command)
        self.bash_command, self.env, self.append_env, self.cwd = bash_command, env, append_env, cwd
        codes = () if skip_on_exit_code is None else skip_on_exit_code
        self.skip_on_exit_code = (codes,) if isinstance(codes, int) else tuple(codes)
        self.do_xcom_push = do_xcom_push

    @classmethod
    def _refuse_argument(cls, name: str, value: Any) -> None:
        if name == "bash_command" and is_template(value):
            raise DagError("bash_command holds a template, and outlast has none; pass values with env= and use $NAME")

    def execute(self, context: Context) -> str | None:
        import tempfile

        if self.cwd is not None:
            return self._run(self.cwd)
        with tempfile.TemporaryDirectory(prefix="outlast-") as folder:
            return self._run(folder)

    def _run(self, folder: str) -> str | None:
        import subprocess

        env = None if self.env is None else {**(os.environ if self.append_env else {}), **self.env}
        last = ""
        with subprocess.Popen(
            ["bash", "-c", self.bash_command],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.rstrip("\n")
                print(last, flush=True)
        if process.returncode in self.skip_on_exit_code:
            raise SkipTask(f"the command ended with exit status {process.returncode}")
        if process.returncode:
            raise TaskError(f"the command ended with exit status {process.returncode}")
        return last if self.do_xcom_push else None


# --- Order -----------------------------------------------------------------------------------------------


def chain_linear(*steps: Linked | Sequence[Any]) -> None:
    """Make everything in each step wait for everything in the step before."""
    for before, after in pairwise(steps):
        link(before, after)


def cross_downstream(from_tasks: Sequence[Any], to_tasks: Linked | Sequence[Any]) -> None:
    """Make everything on the right wait for everything on the left."""
    link(from_tasks, to_tasks)


# --- Enums -----------------------------------------------------------------------------------------------


class TriggerRule(StrEnum):
    """Airflow's trigger rules; a task takes those outlast has, and refuses the others by name."""

    ALL_SUCCESS = "all_success"
    ALL_FAILED = "all_failed"
    ALL_DONE = "all_done"
    ALL_DONE_MIN_ONE_SUCCESS = "all_done_min_one_success"
    ALL_DONE_SETUP_SUCCESS = "all_done_setup_success"
    ALL_SKIPPED = "all_skipped"
    ALWAYS = "always"
    NONE_FAILED = "none_failed"
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"
    NONE_SKIPPED = "none_skipped"
    ONE_DONE = "one_done"
    ONE_FAILED = "one_failed"
    ONE_SUCCESS = "one_success"


class TaskInstanceState(StrEnum):
    """What a task instance can be."""

    REMOVED = "removed"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    RESTARTING = "restarting"
    FAILED = "failed"
    UP_FOR_RETRY = "up_for_retry"
    UP_FOR_RESCHEDULE = "up_for_reschedule"
    UPSTREAM_FAILED = "upstream_failed"
    SKIPPED = "skipped"
    DEFERRED = "deferred"


class DagRunState(StrEnum):
    """What a run can be."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


State = TaskInstanceState


# --- Settings --------------------------------------------------------------------------------------------


class _Settings:
    """Answers what Airflow's configuration would: from AIRFLOW__SECTION__KEY, else the fallback given."""

    def get(self, section: str, key: str, fallback: Any = ..., **_: Any) -> Any:
        """Return a setting as text; AirflowConfigException where there is neither variable nor fallback."""
        found = os.environ.get(f"AIRFLOW__{section}__{key}".upper().replace("-", "_").replace(".", "_"), fallback)
        if found is ...:
            raise AirflowConfigException(
                f"outlast has no setting of Airflow's, so not [{section}] {key} either; give a fallback, or set "
                f"AIRFLOW__{section.upper()}__{key.upper()}"
            )
        return found

    def getboolean(self, section: str, key: str, fallback: Any = ..., **_: Any) -> bool:
        """Return a setting that is true or false."""
        found = self.get(section, key, fallback)
        if isinstance(found, bool):
            return found
        word = str(found).strip().lower()
        if word not in ("true", "t", "1", "false", "f", "0"):
            raise AirflowConfigException(f"[{section}] {key} is {found!r}; use true or false")
        return word in ("true", "t", "1")

    def getint(self, section: str, key: str, fallback: Any = ..., **_: Any) -> int:
        """Return a setting that is a whole number."""
        return int(self.get(section, key, fallback))

    def getfloat(self, section: str, key: str, fallback: Any = ..., **_: Any) -> float:
        """Return a setting that is a number."""
        return float(self.get(section, key, fallback))


conf = _Settings()


# --- Time ------------------------------------------------------------------------------------------------

utc = UTC


def utcnow() -> datetime:
    """Return this moment, in UTC."""
    return datetime.now(UTC)


def aware(*args: Any, **kwargs: Any) -> datetime:
    """Make a datetime, in UTC unless `tzinfo` is given."""
    return datetime(*args, **{"tzinfo": UTC, **kwargs})


def parse(text: str) -> datetime:
    """Read an ISO text, as UTC unless it says otherwise."""
    return make_aware(datetime.fromisoformat(text))


def make_aware(value: datetime) -> datetime:
    """Return a datetime that has a time zone: its own, or UTC."""
    return value if is_localized(value) else value.replace(tzinfo=UTC)


def is_localized(value: datetime) -> bool:
    """Say whether a datetime has a time zone."""
    return value.utcoffset() is not None


def convert_to_utc(value: datetime | None) -> datetime | None:
    """Return the same moment in UTC."""
    return None if value is None else make_aware(value).astimezone(UTC)
