"""`outlast airflow` where no Airflow is: what it says, and that nobody else pays for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from outlast.cli import main
from outlast.cli.airflow_said import end_sweep
from outlast.integrations.airflow.airflow_rest import AssetPlace
from outlast.integrations.airflow.export_journal import Journal, Noted
from outlast.integrations.airflow.payload_sweep import Findings
from outlast.values import TaskScope

from .airflow_rest_server import AirflowServer


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
    main(["state", "set", "dag/run/task", "key", "1", "--store", str(tmp_path / "store.db")])
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
    journal.note(task, "key", Noted("1", "2026-01-01T00:00:00Z"))
    journal.note(asset, "key", Noted("2"))
    journal.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"to": "http://air')  # its writer was killed
    again = Journal(path, "http://airflow")
    assert again.noted(task, "key") == Noted("1", "2026-01-01T00:00:00Z")
    assert again.noted(asset, "key") == Noted("2")
    again.note(task, "other", Noted("3"))
    again.close()
    third, elsewhere = Journal(path, "http://airflow"), Journal(path, "http://another")
    assert third.noted(task, "other") == Noted("3")
    assert elsewhere.noted(task, "key") is None
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


def test_a_store_that_is_not_there_has_nothing_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["airflow", "export", str(tmp_path / "nope.db"), "--to", "http://127.0.0.1:9"]) == 4
    said = capsys.readouterr().err
    assert f"there is no store at {tmp_path}/nope.db, so there is nothing to export; give the file" in said
    assert "creates it" not in said
    assert list(tmp_path.iterdir()) == []


def test_what_was_replaced_and_what_was_left_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, journal = str(tmp_path / "store.db"), str(tmp_path / "journal")
    with AirflowServer() as airflow:
        airflow.add("r1")
        place = "dag/r1/task"
        airflow.state[place, "other"] = {"value": 1, "expires_at": None, "updated_at": "2026-01-01T00:00:00Z"}
        for key in ("other", "watermark"):
            assert main(["state", "set", place, key, "10", "--store", path]) == 0
        capsys.readouterr()
        command = ["airflow", "export", path, "--to", airflow.url, "--overwrite", "--journal", journal]
        assert main(command) == 0
        assert capsys.readouterr().out == (
            f"replaced: {place} other: it had another value\n"
            "2 entries written to Airflow (1 replaced), 0 there already, 0 not taken over\n"
        )
        airflow.state[place, "watermark"] = {"value": 17, "expires_at": None, "updated_at": "2100-01-01T00:00:00Z"}
        assert main(command) == 0
        assert capsys.readouterr().out == (
            f"left as it is: {place} watermark: it has changed in Airflow since it was exported; "
            "--overwrite-newer replaces it\n"
            "0 entries written to Airflow, 1 there already, 1 changed there since and left, 0 not taken over\n"
        )
        assert main([*command, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told == {"written": 0, "same": 1, "skipped": [], "replaced": [], "left": [f"{place} watermark"]}
        assert airflow.state[place, "watermark"]["value"] == 17


@pytest.mark.parametrize(
    ("kept", "said"), [(1, "1 value is referred to, 1 is"), (2, "2 values are referred to, 2 are")]
)
def test_one_is_told_as_one(kept: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit):
        end_sweep(Findings(kept=kept, young=kept), [], False, False, False)
    assert capsys.readouterr().out == f"{said} too young to say.\n"
