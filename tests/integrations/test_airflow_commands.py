"""`outlast airflow` where no Airflow is: what it says, and that nobody else pays for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.cli import main
from outlast.integrations.airflow.airflow_rest import AssetPlace
from outlast.integrations.airflow.transfer import Journal
from outlast.values import TaskScope


def test_doctor_says_that_there_is_no_airflow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["airflow", "doctor"]) == 78
    assert "PROBLEM: there is no Airflow in this environment" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["sweep", "rotate"])
def test_upkeep_needs_an_airflow_beside_it(command: str) -> None:
    """In a process of its own: in one that has loaded DAGs, `import airflow` finds outlast's own names."""
    done = subprocess.run([sys.executable, "-m", "outlast.cli", "airflow", command], capture_output=True, text=True)
    assert done.returncode == 78
    assert "run the `outlast` that is installed beside Airflow" in done.stderr


def test_an_airflow_that_does_not_answer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["state", "set", "dag/run/task", "key", "1", "--store", str(tmp_path / "store.db")])
    capsys.readouterr()
    arguments = ["airflow", "export", str(tmp_path / "store.db"), "--to", "http://127.0.0.1:9"]
    assert main([*arguments, "--journal", str(tmp_path / "journal")]) == 69
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_a_password_is_not_asked_for_where_nobody_can_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["airflow", "export", str(tmp_path / "store.db"), "--to", "http://127.0.0.1:9", "--user", "ann"]
    assert main(arguments) == 2
    assert "OUTLAST_AIRFLOW_PASSWORD" in capsys.readouterr().err


def test_the_command_line_starts_without_it() -> None:
    program = "import sys; from outlast.cli import main; main(['--help']); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "Look at an Airflow's use of outlast" in said
    assert "outlast.integrations" not in said.split()
    assert "outlast.cli.airflow" not in said.split()


def test_a_journal_goes_on_after_a_torn_line_and_keeps_places_apart(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    task, asset = TaskScope("dag", "run", "task", 3), AssetPlace(1, "orders", "test://orders")
    journal = Journal(path, "http://airflow")
    journal.note(task, "key", "1")
    journal.note(asset, "key", "2")
    journal.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"to": "http://air')  # its writer was killed
    again = Journal(path, "http://airflow")
    assert (again.digest_of(task, "key"), again.digest_of(asset, "key")) == ("1", "2")
    again.note(task, "other", "3")
    again.close()
    third, elsewhere = Journal(path, "http://airflow"), Journal(path, "http://another")
    assert third.digest_of(task, "other") == "3"
    assert elsewhere.digest_of(task, "key") is None
    third.close()
    elsewhere.close()


def test_an_import_needs_a_named_store_and_an_airflow_that_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["airflow", "import", "--from", "http://127.0.0.1:9"]
    assert main([*arguments, "--store", str(tmp_path / "store.db")]) == 69
    assert not (tmp_path / "store.db").exists()
    capsys.readouterr()
    assert main(arguments) == 2
    assert "name the store" in capsys.readouterr().err
