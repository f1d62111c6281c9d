"""A skipped test fails a run in CI, unless what it lacks is optional; every run says what it skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "plain": "import pytest\ndef test_a(): pytest.skip('no reason at all')\ndef test_b(): pass\n",
    "optional": "import pytest\n@pytest.mark.skip('optional: no such device')\ndef test_a(): pass\n",
    "module": "import pytest\npytest.skip('no module', allow_module_level=True)\n",
    "none": "def test_a(): pass\n",
}


@pytest.mark.parametrize(
    ("case", "workers", "ci", "status", "line"),
    [
        ("plain", "0", "true", 1, "1 × no reason at all (fails the run: CI=true)"),
        ("plain", "2", "true", 1, "1 × no reason at all (fails the run: CI=true)"),
        ("plain", "0", "", 0, "1 × no reason at all"),
        ("optional", "0", "true", 0, "1 × optional: no such device"),
        ("module", "0", "true", 1, "1 × no module (fails the run: CI=true)"),
        ("none", "2", "true", 0, "skipped: 0"),
    ],
)
def test_a_run_with_skipped_tests(case: str, workers: str, ci: str, status: int, line: str, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_case.py").write_text(CASES[case])
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "OUTLAST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider", tmp_path],
        env=environ | {"CI": ci},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, line in done.stdout) == (status, True), done.stdout
