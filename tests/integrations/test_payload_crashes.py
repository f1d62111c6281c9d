"""Ten thousand operations by processes that are killed at random: no reference without payload, one sweep, no payload
without reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payload_sweep import clean, examine
from outlast.integrations.airflow.payloads import Folder
from outlast.integrations.airflow.references import payload_of
from outlast.integrations.airflow.rows import reference_in

from .rows_in_sqlite import SqliteRows

PROGRAM = Path(__file__).with_name("payload_rounds.py")


@pytest.mark.timeout(300)
def test_no_reference_is_ever_without_payload_and_one_sweep_leaves_no_payload_without_reference(
    tmp_path: Path, soak: bool
) -> None:
    rows = SqliteRows(tmp_path / "rows.db")
    folder, wanted = Folder(str(tmp_path / "payloads")), 100_000 if soak else 10_000
    command = [sys.executable, str(PROGRAM), folder.path, str(tmp_path / "rows.db"), str(wanted), "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["operations"] >= wanted
    assert told["kills"] > 100 * (10 if soak else 1)
    assert told["lost"] == 0

    now = 2**61
    findings = examine(folder, rows, Packer(), grace=0, now=now)
    assert findings.orphans
    assert findings.lost == []
    assert clean(findings, folder, rows) == []

    held = {payload_of(reference_in(json.loads(row.text))) for row in rows.all()} - {None}
    assert held
    assert {*folder.names()} == held
    again = examine(folder, rows, Packer(), grace=0, now=now)
    assert (again.orphans, again.lost, again.kept) == ([], [], len(held))
