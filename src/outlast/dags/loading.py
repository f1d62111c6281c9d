"""Load a DAG file: execute it as a module, and find the DAGs it defines."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from types import CodeType, ModuleType, TracebackType

import msgspec

from ..errors import DagError, OutlastError
from . import airflow_names
from .arguments import did_you_mean
from .graph import DAG, DagFunction, collect
from .task_functions import TaskFunction

__all__ = ["LoadedFile", "load_file", "pick_dag"]


class LoadedFile(msgspec.Struct, frozen=True):
    """A DAG file as loaded: its absolute path, the digest of its content, its DAGs by id in order of definition."""

    path: str
    digest: str
    dags: dict[str, DAG]


def load_file(path: str | os.PathLike[str]) -> LoadedFile:
    """Execute a DAG file and return its DAGs; DagError, saying where and what to do, if that cannot be.

    The file is a module of its own (`outlast_dag_…`, not `__main__`), and its folder comes first in `sys.path`.
    Where no Airflow is installed, its import paths mean outlast's own names from then on.
    """
    place = os.path.abspath(path)
    source = _read(place)
    digest = hashlib.blake2b(source, digest_size=16).hexdigest()
    code = _compile(source, place)
    module = ModuleType(f"outlast_dag_{digest}")
    module.__file__ = place
    sys.modules[module.__name__] = module
    _make_importable(os.path.dirname(place))
    airflow_names.install()
    with collect() as made:
        _run(code, module, place)
    return LoadedFile(place, digest, _dags(module, made, place))


def pick_dag(loaded: LoadedFile, dag_id: str | None) -> DAG:
    """Return the DAG of that id, or without an id the only one; DagError naming those there are otherwise."""
    names = ", ".join(loaded.dags)
    if dag_id is None:
        if len(loaded.dags) > 1:
            several = f"{loaded.path} has {len(loaded.dags)} DAGs: {names}"
            raise DagError(f"{several}; say which, with dag_id= in Python or --dag on the command line")
        return next(iter(loaded.dags.values()))
    if dag_id not in loaded.dags:
        raise DagError(f"{loaded.path} has no DAG {dag_id!r}{did_you_mean(dag_id, loaded.dags) or f'; it has {names}'}")
    return loaded.dags[dag_id]


def _read(place: str) -> bytes:
    try:
        with open(place, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise DagError(f"there is no file {place}{_nearby(place)}") from None
    except IsADirectoryError:
        raise DagError(f"{place} is a folder; name a DAG file in it") from None
    except OSError as error:
        raise DagError(f"{place} cannot be read: {error.strerror}") from None


def _nearby(place: str) -> str:
    folder, name = os.path.split(place)
    try:
        others = [other for other in os.listdir(folder) if other.endswith(".py")]
    except OSError:
        return f"; there is no folder {folder} either"
    return did_you_mean(name, others)


def _compile(source: bytes, place: str) -> CodeType:
    try:
        return compile(source, place, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise DagError(f"{_syntax_place(error, place)}: {error.msg}{_shown(error)}") from error
    except ValueError as error:
        raise DagError(f"{place} is not Python: {error}") from error


def _syntax_place(error: SyntaxError, place: str) -> str:
    return f"{error.filename or place}:{error.lineno}" if error.lineno else str(error.filename or place)


def _shown(error: SyntaxError) -> str:
    return f"\n    {error.text.strip()}" if error.text and error.text.strip() else ""


def _make_importable(folder: str) -> None:
    if not sys.path or sys.path[0] != folder:
        sys.path.insert(0, folder)


def _run(code: CodeType, module: ModuleType, place: str) -> None:
    try:
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise DagError(_explain(error, place)) from error


def _explain(error: BaseException, place: str) -> str:
    """Say what an exception was, at which line of the file, and where below that it came from."""
    if isinstance(error, SyntaxError):
        return f"{_syntax_place(error, place)}: {error.msg}{_shown(error)}"
    line, deepest = _lines(error.__traceback__, place)
    if isinstance(error, OutlastError):
        return f"{place}:{line}: {error.message}"
    origin = "" if deepest is None else f" (raised at {deepest})"
    text = f"{place}:{line}: {type(error).__name__}: {error}{origin}"
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; install it where outlast runs, or put it beside the file"
    if isinstance(error, SystemExit):
        return f"{text}; a DAG file only defines tasks, so it must not exit"
    return text


def _lines(trace: TracebackType | None, place: str) -> tuple[int, str | None]:
    """Return the last line of the file a traceback goes through, and the place it ends at if that is elsewhere."""
    line, deepest = 0, None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == place:
            line, deepest = trace.tb_lineno, None
        elif not file.startswith("<"):
            deepest = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line, deepest


# --- The DAGs of a module --------------------------------------------------------------------------------


def _dags(module: ModuleType, made: Iterable[DAG], place: str) -> dict[str, DAG]:
    """Return the DAGs the file itself makes, or, if it makes none, those it imports from elsewhere."""
    values = list(vars(module).values())
    own = [dag for dag in made if dag.module == module.__name__]
    found = own or list(dict.fromkeys(value for value in values if isinstance(value, DAG)))
    functions = [value for value in values if isinstance(value, TaskFunction)]
    if not found:
        raise DagError(f"{place} defines no DAG; {airflow_names.installed() or _what_to_add(values, functions, place)}")
    dags: dict[str, DAG] = {}
    for dag in found:
        if dag.dag_id in dags:
            lines = f"lines {dags[dag.dag_id].line} and {dag.line}"
            raise DagError(f"{place} defines DAG {dag.dag_id!r} twice, at {lines}; give one another dag_id")
        try:
            dag.check(functions)
        except DagError as error:
            raise DagError(f"{place}:{dag.line}: {error.message}") from error
        dags[dag.dag_id] = dag
    return dags


def _what_to_add(values: list[object], functions: list[TaskFunction], place: str) -> str:
    for value in values:
        if isinstance(value, DagFunction) and not value.called:
            name = value.function.__name__
            return f"{name} is under @dag but never called; add the line:\n    {name}()"
    name = os.path.basename(place).removesuffix(".py")
    lines = "".join(f"\n        {function.line_to_add}" for function in functions) or "\n        ..."
    return f'add at its end:\n    with DAG("{name}"):{lines}'
