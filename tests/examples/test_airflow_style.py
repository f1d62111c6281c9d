"""DAG files written for Airflow run as they stand with `outlast run`, killed workers included."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.run_requests import AttemptRow, GetRun, ListAttempts, ListRuns, PullResults
from outlast.values import TaskScope

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "airflow"
FILES = sorted(EXAMPLES.glob("*.py"))
PATIENCE = 30.0


class Runs:
    """Runs the examples with a store of the test's own, and looks at what became of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs, self.incoming = folder, folder / "jobs", folder / "incoming"
        self.incoming.mkdir()
        self.env = os.environ | {
            "OUTLAST_URL": str(folder / "outlast.db"),
            "OUTLAST__STATE_STORE__DURABILITY": "process",
            "JOBS": str(self.jobs),
            "INCOMING": str(self.incoming),
        }
        self.store = outlast.connect(folder / "outlast.db")

    def start(self, file: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-W", "error", "-m", "outlast.cli", "run", str(EXAMPLES / file), *words]
        return subprocess.Popen(
            command, env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __call__(self, file: str, *words: str, run_id: str | None = "r") -> str:
        """Run one to its successful end; return what was said."""
        process = self.start(file, *(() if run_id is None else ("--run-id", run_id)), *words)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        return said

    def ids(self, dag_id: str) -> list[str]:
        """Return the ids of a DAG's runs that have succeeded, oldest first."""
        page = self.store.backend.send(ListRuns(dag_id, ("success",)))
        return [run.run_id for run, _ in page.runs][::-1]

    def result(self, address: str) -> Any:
        dag_id, run_id, task_id = address.split("/")
        found = self.store.backend.send(PullResults(dag_id, run_id, (task_id,), "return_value"))
        values = [json.loads(text) for _, _, text in found.rows]
        return values[0] if len(values) == 1 else values

    def attempts(self, address: str, map_index: int = -1) -> list[AttemptRow]:
        scope = TaskScope(*address.split("/"), map_index)
        return list(self.store.backend.send(ListAttempts(scope)).attempts)

    def ends(self, address: str, map_index: int = -1) -> list[str]:
        return [attempt.state for attempt in self.attempts(address, map_index)]

    def until(self, condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"exit status {process.poll()}:\n{process.communicate()[0]}")
            time.sleep(0.02)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    runs.store.close()


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_file_imports_nothing_of_outlasts(file: Path) -> None:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
    assert "airflow" in modules
    assert modules - {"airflow"} <= sys.stdlib_module_names


def test_every_file_is_listed_and_run() -> None:
    listed = re.findall(r"^\| `(\w+\.py)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [file.name for file in FILES]
    here = Path(__file__).read_text()
    assert [name for name in listed if f'"{name}"' not in here] == []


def test_a_job_is_found_again(runs: Runs) -> None:
    runs("job_resumption.py")
    state = dict(runs.store.task("job_resumption/r/run_job").items())
    assert runs.ends("job_resumption/r/run_job") == ["crashed", "success"]
    assert [path.stem for path in runs.jobs.iterdir()] == [state["job_id"]]
    assert state["result"] == {"job_id": state["job_id"], "rows": 1234}
    entry = runs.store.task("job_resumption/r/run_job").entry("job_id")
    assert entry is not None
    assert entry.expires_at is None
    assert runs.result("job_resumption/r/run_job") == 1234


def test_pages_are_fetched_once(runs: Runs) -> None:
    runs("page_checkpoint.py")
    assert runs.ends("page_checkpoint/r/ingest_pages") == ["crashed", "success"]
    assert runs.result("page_checkpoint/r/ingest_pages") == [4, 5, 6]
    runs("page_checkpoint.py", "--param", "killed_in_page=0", run_id="undisturbed")
    assert runs.result("page_checkpoint/undisturbed/ingest_pages") == [1, 2, 3, 4, 5, 6]


def test_progress_is_seen_from_outside(runs: Runs) -> None:
    runs("progress.py", "--param", "batches=3")
    entry = runs.store.task("progress/r/ingest_rows").entry("progress")
    assert entry is not None
    assert (entry.value, entry.revision) == ({"rows": 60, "status": "done"}, 4)
    assert entry.expires_at is not None
    assert round((entry.expires_at - entry.updated_at).total_seconds()) == 7 * 86_400


def test_a_task_that_fails_goes_on_with_the_next_file(runs: Runs) -> None:
    runs("file_list.py")
    assert runs.ends("file_list/r/process_files") == ["failed", "failed", "failed", "success"]
    assert "lost the connection at b.csv" in str(runs.attempts("file_list/r/process_files")[0].error)
    assert runs.store.task("file_list/r/process_files").get("last_processed") == "d.csv"


def test_mapped_instances_have_their_own_state(runs: Runs) -> None:
    runs("mapped_isolation.py")
    states = [dict(runs.store.task("mapped_isolation/r/copy_table", map_index=index).items()) for index in range(3)]
    assert states == [
        {"status": "complete", "tables_seen": ["orders"]},
        {"status": "complete", "tables_seen": ["customers", "customers"]},
        {"status": "complete"},
    ]
    assert [len(runs.attempts("mapped_isolation/r/copy_table", index)) for index in range(3)] == [1, 2, 1]
    assert runs.result("mapped_isolation/r/summarize") == ["orders", "customers", "products"]


def test_an_async_task_goes_on_where_it_was(runs: Runs) -> None:
    runs("async_checkpoint.py")
    assert runs.ends("async_checkpoint/r/ingest_pages") == ["failed", "success"]
    assert runs.result("async_checkpoint/r/ingest_pages") == {"rows": 450, "fetched_by_this_attempt": 3}
    progress = runs.store.task("async_checkpoint/r/ingest_pages").get("progress")
    assert progress == {"done": [1, 2, 3, 4, 5, 6, 7, 8, 9], "rows": 450}


def test_a_watermark_outlives_runs_and_starts_the_consumer(runs: Runs) -> None:
    for _ in range(2):
        runs("asset_watermark.py", run_id=None)
    loaded = [runs.result(f"watermark_producer/{run_id}/load") for run_id in runs.ids("watermark_producer")]
    assert loaded == [[2, 3, 4, 5, 6], [7]]
    consumed = [runs.result(f"watermark_consumer/{run_id}/consume") for run_id in runs.ids("watermark_consumer")]
    assert consumed == [
        {"rows": 5, "watermark": "2026-01-06T00:00:00+00:00", "loads": 1},
        {"rows": 1, "watermark": "2026-01-07T00:00:00+00:00", "loads": 2},
    ]
    by_uri = runs.store.asset(uri="s3://warehouse/orders/daily")
    assert by_uri.get("loads") == 2


def test_a_watcher_starts_its_dag_for_what_is_new(runs: Runs) -> None:
    (runs.incoming / "a.csv").touch()
    process = runs.start("asset_watcher.py", "--keep")
    runs.until(lambda: len(runs.ids("asset_watcher")) == 1, process)
    assert runs.store.asset("incoming_files").get("last_file") == "a.csv"
    (runs.incoming / "b.csv").touch()
    runs.until(lambda: len(runs.ids("asset_watcher")) == 2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    taken = [runs.result(f"asset_watcher/{run_id}/take_in") for run_id in runs.ids("asset_watcher")]
    assert taken == ["a.csv", "b.csv"]
    entry = runs.store.asset("incoming_files").entry("last_file")
    assert entry is not None
    assert entry.writer.kind == "trigger"


def test_a_resumable_operator_reconnects(runs: Runs) -> None:
    runs("resumable_operator.py")
    jobs = sorted(path.stem for path in runs.jobs.iterdir())
    tasks = {
        "reconnects": ["crashed", "success"],
        "has_ended_meanwhile": ["crashed", "success"],
        "undisturbed": ["success"],
    }
    assert {name: runs.ends(f"resumable_operator/r/{name}") for name in tasks} == tasks
    assert sorted(runs.store.task(f"resumable_operator/r/{name}").get("batch_job_id") for name in tasks) == jobs
    assert sorted(runs.result(f"resumable_operator/r/{name}")["job"] for name in tasks) == jobs
    detail = runs.store.backend.send(GetRun("resumable_operator", "r"))
    assert {task.state for task in detail.tasks} == {"success"}


def test_a_deferrable_operator_waits_without_a_process(runs: Runs) -> None:
    said = runs("deferrable_operator.py")
    assert runs.result("deferrable_operator/r/wait") == "waited, try 1"
    state = dict(runs.store.task("deferrable_operator/r/job").items())
    assert runs.result("deferrable_operator/r/job") == state["job_id"]
    assert state["status"] == "done"
    assert runs.ends("deferrable_operator/r/wait") == runs.ends("deferrable_operator/r/job") == ["success"]
    assert "job: attempt 1 waits for a trigger, without a process" in said


def test_a_deferrable_operator_finds_its_job_after_a_kill(runs: Runs) -> None:
    said = runs("deferrable_resumable.py")
    tasks = {
        "undisturbed": ["success"],
        "killed_before_waiting": ["crashed", "success"],
        "killed_after_waiting": ["crashed", "success"],
    }
    assert {name: runs.ends(f"deferrable_resumable/r/{name}") for name in tasks} == tasks
    stored = {name: runs.store.task(f"deferrable_resumable/r/{name}").get("remote_job_id") for name in tasks}
    assert sorted(stored.values()) == sorted(path.name for path in runs.jobs.iterdir())
    results = {name: runs.result(f"deferrable_resumable/r/{name}") for name in tasks}
    assert results == {name: {"job": job, "rows": 42} for name, job in stored.items()}
    assert "undisturbed: attempt 1 waits for a trigger, without a process" in said
    assert "killed_before_waiting: attempt 2 waits for a trigger" in said
    assert "killed_after_waiting: attempt 2 waits" not in said
