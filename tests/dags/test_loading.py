"""DAG files: what is found in them, and what is said about one that cannot be used."""

from __future__ import annotations

import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast import DagError
from outlast.dags.graph import DAG, current_dag
from outlast.dags.loading import LoadedFile, load_file, pick_dag

IMPORTS = "from outlast import DAG, dag\nfrom outlast import BaseOperator, task\n"

ONE = IMPORTS + textwrap.dedent(
    """
    @task
    def extract():
        return 1

    with DAG("nightly"):
        extract()
    """
)


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Forget what the test's files have imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("outlast_dag_") or str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def load(text: str, name: str = "nightly.py") -> LoadedFile:
    Path(name).write_text(text)
    return load_file(name)


def complaint(text: str) -> str:
    """Load what cannot be loaded, and return what is said about it, the file's folder left out."""
    with pytest.raises(DagError) as error:
        load(text)
    return error.value.message.replace(f"{os.getcwd()}/", "")


# --- What is found ---------------------------------------------------------------------------------------


def test_a_loaded_file_has_its_path_digest_and_dags(tmp_path: Path) -> None:
    loaded = load(ONE)
    assert loaded.path == str(tmp_path / "nightly.py")
    assert (list(loaded.dags), list(loaded.dags["nightly"].tasks)) == (["nightly"], ["extract"])
    assert loaded.dags["nightly"].line == 8


def test_the_digest_is_that_of_the_content() -> None:
    first = load(ONE)
    assert load(ONE, "other.py").digest == first.digest
    assert load(ONE + "\n").digest != first.digest


def test_every_way_of_making_a_dag_is_found_in_order() -> None:
    loaded = load(
        IMPORTS
        + textwrap.dedent(
            """
            @task
            def work(): ...

            with DAG("block"):
                work()

            @dag
            def called():
                work()
            called()

            @dag(dag_id="assigned")
            def other():
                work()
            other = other()

            argument = DAG("argument")
            work.override(dag=argument)()

            def factory(name):
                with DAG(name):
                    work()
            for name in "ab":
                factory(name)
            """
        )
    )
    assert list(loaded.dags) == ["block", "called", "assigned", "argument", "a", "b"]


def test_dags_of_imported_files_are_not_found_beside_the_files_own() -> None:
    Path("shared.py").write_text(
        ONE.replace("nightly", "imported") + "\ndef make():\n    with DAG('made'):\n        extract()\n"
    )
    text = "import shared\nfrom shared import *\n" + ONE + "\nshared.make()\n"
    assert list(load(text).dags) == ["nightly", "made"]
    assert list(load(text).dags) == ["nightly", "made"]


def test_a_file_may_hand_on_the_dags_of_another() -> None:
    Path("shared.py").write_text(ONE.replace('with DAG("nightly"):', 'with DAG("nightly") as made:'))
    assert list(load("from shared import made\nagain = made\n").dags) == ["nightly"]


def test_a_file_runs_as_a_module_of_its_own() -> None:
    loaded = load(
        ONE
        + textwrap.dedent(
            """
            import dataclasses, sys
            from pathlib import Path

            @dataclasses.dataclass
            class Place:
                folder: "Path"

            assert __name__.startswith("outlast_dag_") and sys.modules[__name__].DAG is DAG
            assert Path(__file__).name == "nightly.py"
            """
        )
    )
    assert f"outlast_dag_{loaded.digest}" in sys.modules


def test_files_beside_it_can_be_imported() -> None:
    Path("beside.py").write_text("name = 'nightly'\n")
    assert list(load("from beside import name\n" + ONE.replace('"nightly"', "name")).dags) == ["nightly"]
    load(ONE)
    assert (sys.path[0], sys.path.count(os.getcwd())) == (os.getcwd(), 1)
    Path("folder").mkdir()
    load(ONE, "folder/nightly.py")
    load(ONE)
    assert sys.path[0] == os.getcwd()


def test_a_traceback_of_a_task_shows_the_line_of_the_file() -> None:
    loaded = load(ONE.replace("return 1", "return {}['missing']"))
    with pytest.raises(KeyError) as error:
        loaded.dags["nightly"].tasks["extract"].execute({})
    assert "return {}['missing']" in "".join(traceback.format_exception(error.value))


def test_a_file_is_loaded_anew_each_time() -> None:
    assert load(ONE).dags["nightly"] is not load(ONE).dags["nightly"]


def test_a_file_loaded_while_a_dag_is_open_does_not_add_to_it() -> None:
    with DAG("outer") as outer:
        load(ONE)
        assert current_dag() is outer
    assert outer.tasks == {}


# --- Which of them ---------------------------------------------------------------------------------------


def test_the_only_dag_needs_no_name() -> None:
    loaded = load(ONE)
    assert pick_dag(loaded, None) is pick_dag(loaded, "nightly") is loaded.dags["nightly"]


def test_of_several_one_has_to_be_named() -> None:
    loaded = load(ONE + '\nwith DAG("hourly"):\n    extract()\n')
    assert pick_dag(loaded, "hourly").dag_id == "hourly"
    said = r"nightly.py has 2 DAGs: nightly, hourly; say which, with dag_id= in Python or --dag on the command line"
    with pytest.raises(DagError, match=said):
        pick_dag(loaded, None)
    with pytest.raises(DagError, match=r"has no DAG 'nightl'; did you mean 'nightly'"):
        pick_dag(loaded, "nightl")
    with pytest.raises(DagError, match=r"has no DAG 'xyzzy'; it has nightly, hourly"):
        pick_dag(loaded, "xyzzy")


# --- Files that cannot be used ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "x = 1\n\nif x = 2:\n    pass\n",
            "nightly.py:3: invalid syntax. Maybe you meant '==' or ':=' instead of '='?\n    if x = 2:",
        ),
        ("\n\nx = {}['key']\n", "nightly.py:3: KeyError: 'key'"),
        ("\ndef f():\n    return 1 / 0\n\nf()\n", "nightly.py:3: ZeroDivisionError: division by zero"),
        (
            "import no_such_module\n",
            "nightly.py:1: ModuleNotFoundError: No module named 'no_such_module'; install it where",
        ),
        ("raise SystemExit(3)\n", "nightly.py:1: SystemExit: 3; a DAG file only defines tasks, so it must not exit"),
        (IMPORTS + 'with DAG("a/b"):\n    pass\n', "nightly.py:3: dag_id 'a/b' contains '/'"),
        (
            IMPORTS + 'with DAG("d", catch_up=1):\n    pass\n',
            "nightly.py:3: DAG has no argument 'catch_up'; did you mean 'cat",
        ),
        ("", 'nightly.py defines no DAG; add at its end:\n    with DAG("nightly"):\n        ...'),
        (
            IMPORTS + "@task\ndef get(): ...\n@task\ndef load(rows): ...\n",
            'nightly.py defines no DAG; add at its end:\n    with DAG("nightly"):\n        get()\n        load(rows)',
        ),
        (
            IMPORTS + "@dag\ndef hourly(): ...\n",
            "nightly.py defines no DAG; hourly is under @dag but never called; add the line:\n    hourly()",
        ),
        (
            IMPORTS + "@task\ndef extract(): ...\n\nwith DAG('d'):\n    @task\n    def load(rows): ...\n",
            "nightly.py:6: DAG 'd' has no tasks: load (line 7) and extract (line 3) are under @task but never called; "
            "add inside the DAG:\n    load(rows)\n    extract()",
        ),
        (
            IMPORTS + "@dag\ndef d():\n    @task\n    def load(): ...\n\nd()\n",
            "nightly.py:8: DAG 'd' has no tasks: load (line 5) is under @task but never called; add inside",
        ),
        (
            ONE + 'with DAG("nightly"):\n    extract()\n',
            "nightly.py defines DAG 'nightly' twice, at lines 8 and 10; give one",
        ),
        (
            IMPORTS
            + "@task\ndef f(*a): ...\nd = DAG('d')\na, b = f.override(dag=d)(), f.override(dag=d)()\na >> b >> a\n",
            "nightly.py:5: the tasks of DAG 'd' wait for each other: f >> f__1 >> f; remove",
        ),
        (
            ONE.replace('"nightly"', '"nightly", default_args={"retires": 3}'),
            "nightly.py:8: no task of DAG 'nightly' takes 'retires' from default_args; did you mean 'retries'?",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_saying_where_and_what_to_do(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


def test_bytes_that_are_no_text_are_refused() -> None:
    Path("nightly.py").write_bytes(b"x = '\xff'\n")
    with pytest.raises(DagError, match=r"nightly.py.*utf-8"):
        load_file("nightly.py")
    Path("nightly.py").write_bytes(b"x = '\0'\n")
    with pytest.raises(DagError, match=r"nightly.py.*null bytes"):
        load_file("nightly.py")


def test_an_error_in_an_imported_file_names_both_places() -> None:
    Path("beside.py").write_text("\n\nx = {}['key']\n")
    assert complaint("\nimport beside\n") == "nightly.py:2: KeyError: 'key' (raised at beside.py:3)"


def test_a_syntax_error_in_an_imported_file_names_that_file() -> None:
    Path("beside.py").write_text("\nx ==\n")
    assert complaint("import beside\n") == "beside.py:2: invalid syntax\n    x =="


def test_the_cause_of_an_error_is_kept() -> None:
    with pytest.raises(DagError) as error:
        load("x = {}['key']\n")
    assert isinstance(error.value.__cause__, KeyError)


def test_a_file_that_failed_is_no_module_any_more() -> None:
    before = set(sys.modules)
    complaint("x = 1 / 0\n")
    assert not {name for name in set(sys.modules) - before if name.startswith("outlast_dag_")}


def test_a_file_that_is_not_there_is_refused_naming_a_likely_one(tmp_path: Path) -> None:
    load(ONE)
    with pytest.raises(DagError, match=r"there is no file .*/nightly.pyy; did you mean 'nightly.py'"):
        load_file("nightly.pyy")
    with pytest.raises(DagError, match=r"there is no file .*/xyzzy$"):
        load_file("xyzzy")
    with pytest.raises(DagError, match=r"there is no folder .*/none either"):
        load_file("none/nightly.py")
    with pytest.raises(DagError, match="is a folder; name a DAG file in it"):
        load_file(tmp_path)
