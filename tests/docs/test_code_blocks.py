"""The code in README.md and docs/ runs and prints what the page says; `run_page.py` says how a page is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
@pytest.mark.timeout(300)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, record_property) -> None:
    done = run_page(page, tmp_path)
    for line in done.stdout.splitlines():
        if line.startswith("not run: "):
            record_property("untested block", line.removeprefix("not run: ").removeprefix(f"{ROOT}/"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page",
    [
        "```python\nassert 1 == 1\n```\n\n```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n",
        "```python\nimport asyncio\n\nawait asyncio.sleep(0)\n```\n",
        "```console\n$ echo one; echo two\none\ntwo\n$ export A=3\n$ echo $A\n3\n```\n",
        "```console\n$ seq 5\n1\n…\n5\n$ echo took 12 ms\ntook … ms\n```\n",
        "```console\n$ (exit 4)  # exit 4\n$ echo went on\nwent on\n```\n",
        "```console\n$ cat <<END\n> a\n> END\na\n```\n",
        "```bash\ncd /\ntest $PWD = /\n```\n",
        "<!-- file: part.py -->\n```python\nvalue = 7\n```\n\n```python\nimport part\nassert part.value == 7\n```\n",
        "<!-- no-test: needs a cluster -->\n```python\n1 / 0\n```\n",
        "```python\nx = 1\n```\n\n<!-- fresh -->\n```python\nassert 'x' not in globals()\n```\n",
        "```text\nnot code\n```\n",
        "1. In a list:\n\n   ```python\n   for a in [1]:\n       assert a\n   ```\n",
    ],
)
def test_a_page_that_holds(page: str, tmp_path: Path) -> None:
    assert run_text(page, tmp_path).returncode == 0, run_text(page, tmp_path).stdout


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("\n```python\nx = 1\nassert x == 2\n```\n", "line 4 raised AssertionError"),
        ("```python\nraise SystemExit(0)\n```\n", "SystemExit"),
        ("```python\nthis is no Python\n```\n", "SyntaxError"),
        ("```console\n$ echo one\ntwo\n```\n", "--- printed\none"),
        ("```console\n$ echo one; echo two\none\n```\n", "--- expected"),
        ("```console\n$ false\n```\n", "exit 1 instead of 0"),
        ("```console\n$ true  # exit 4\n```\n", "exit 0 instead of 4"),
        ("```console\n$ exit 0\n$ false\n```\n", "the shell ended"),
        ("```console\necho no dollar\n```\n", "begins with"),
        ("```bash\nfalse\ntrue\n```\n", "exit 1"),
        ("```python\nx = 1\n", "has no end"),
        ("<!-- no-test: -->\n```python\nx = 1\n```\n", "needs a text"),
        ("```python\nimport warnings\nwarnings.warn('old', DeprecationWarning)\n```\n", "DeprecationWarning"),
    ],
)
def test_a_page_that_does_not_hold(page: str, reason: str, tmp_path: Path) -> None:
    done = run_text(page, tmp_path)
    assert done.returncode == 1
    assert reason in done.stdout + done.stderr


def run_text(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    page = folder / "page.md"
    page.write_text(text)
    return run_page(page, folder)


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC"}
    return subprocess.run(
        [sys.executable, "-W", "error", RUNNER, page],
        env=os.environ | plain | {"PATH": path, "PAGE_FOLDER": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
