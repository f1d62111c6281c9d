"""One Airflow home: its settings, its commands, and the real processes of a scheduler with all that belongs to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from .airflow_install import Installed
from .servers import free_port

SETTINGS = {
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__FERNET_KEY": "b3V0bGFzdC10ZXN0cy1vbmx5LTAxMjM0NTY3ODlhYmM=",
    "AIRFLOW__CORE__PARALLELISM": "3",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    "AIRFLOW__API__HOST": "127.0.0.1",
    "AIRFLOW__API__WORKERS": "1",
    "AIRFLOW__API_AUTH__JWT_SECRET": "for-tests-only-" * 5,
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__MIN_FILE_PROCESS_INTERVAL": "5",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
}
ENDED = {"success", "failed"}
PASSED_ON = ("LANG", "LC_ALL", "TMPDIR", "TZ")


class Airflow:
    """An installation with a home of its own; `env` holds everything its processes are told."""

    def __init__(self, installed: Installed, folder: Path, dags: Path, settings: Mapping[str, str] = {}) -> None:
        self.installed, self.folder, self.port, self.serialized = installed, folder, free_port(), False
        self.dags, self.notes = folder / "dags", folder / "notes.jsonl"
        shutil.copytree(dags, self.dags, ignore=shutil.ignore_patterns("__pycache__"))
        url = f"http://127.0.0.1:{self.port}"
        self.url = url
        self.env = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
            **SETTINGS,
            "PATH": f"{installed.programs}:/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": str(self.dags),  # triggers are imported by name
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "SequentialExecutor" if installed.since < (3,) else "LocalExecutor",
            "NOTES": str(self.notes),
            **settings,
        }
        self._migrated()

    def command(self, *arguments: str, timeout: float = 300, env: Mapping[str, str] = {}) -> str:
        """Run `airflow …` to its end; return what it printed, or fail with it."""
        return self.run("airflow", *arguments, timeout=timeout, env=env)

    def run(self, program: str, *arguments: str, timeout: float = 300, env: Mapping[str, str] = {}) -> str:
        """Run a program of this installation to its end; return what it printed, or fail with it."""
        done = self.attempt(program, *arguments, timeout=timeout, env=env)
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.returncode}\n{done.stdout[-20_000:]}"
        return done.stdout

    def attempt(
        self, program: str, *arguments: str, timeout: float = 300, env: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this installation to its end, whatever end that is."""
        command = ["nice", "-n", "5", str(self.installed.programs / program), *arguments]
        whole = {**self.env, **env}
        process = subprocess.Popen(
            command, env=whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            raise AssertionError(f"{program} {' '.join(arguments)} took over {timeout} s\n{said[-20_000:]}") from None
        return subprocess.CompletedProcess(command, process.returncode, said)

    def dags_test(self, dag_id: str, *when: str, timeout: float = 900, env: Mapping[str, str] = {}) -> str:
        """Run a DAG in one process, as `airflow dags test` does; return its log, whether or not the run succeeded."""
        if self.installed.since >= (3,) and not self.serialized:
            self.command("dags", "reserialize", env=env)
            self.serialized = True
        return self.attempt("airflow", "dags", "test", dag_id, *when, timeout=timeout, env=env).stdout

    def noted(self) -> list[dict[str, Any]]:
        """Return what the tasks have noted: one object a line in the file $NOTES."""
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what Airflow's own database says."""
        with closing(sqlite3.connect(self.folder / "airflow.db", timeout=30)) as connection:
            return connection.execute(query, values).fetchall()

    def _migrated(self) -> None:
        """Give the home a database, migrated once an installation: that takes ten seconds."""
        kept, own = self.installed.folder / "migrated.db", self.folder / "airflow.db"
        if not kept.exists():
            self.command("db", "migrate")
            shutil.copy(own, kept)
        else:
            shutil.copy(kept, own)

    @contextmanager
    def running(self) -> Iterator[Stack]:
        """Start scheduler, triggerer and what else the version has, and end them afterwards."""
        stack = Stack(self)
        try:
            stack.start()
            yield stack
        finally:
            stack.stop()


class Stack:
    """The running processes of one home, on loopback; each is ended by its own process group."""

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start every component; the API server first, and only when it answers the others."""
        if self.airflow.installed.since >= (3,):
            self.component("api-server")
            self.wait("the API server", self.answers, 120)
            self.component("dag-processor")
        self.component("scheduler", "--skip-serve-logs")
        self.component("triggerer", "--skip-serve-logs")

    def component(self, name: str, *options: str) -> None:
        """Start one component; what it says goes to NAME.log in the home."""
        command = ["nice", "-n", "5", str(self.airflow.installed.programs / "airflow"), name, *options]
        with open(self.airflow.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.airflow.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def restart(self, name: str, *options: str) -> None:
        """Kill one component with SIGKILL, group and all, and start it again."""
        self._end([self.processes.pop(name)], signal.SIGKILL)
        self.component(name, *options)
        if name == "api-server":
            self.wait("the API server", self.answers, 120)

    def stop(self) -> None:
        """End every component."""
        processes = list(self.processes.values())
        self._end(processes, signal.SIGTERM)
        self.processes.clear()

    def _end(self, processes: list[subprocess.Popen[bytes]], number: int) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + 10
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def trigger(self, dag_id: str, run_id: str = "run1", timeout: float = 300) -> str:
        """Run a DAG to its end, as soon as it has been parsed; return the run's state."""
        self.begin(dag_id, run_id)
        return self.ended(dag_id, run_id, timeout)

    def begin(self, dag_id: str, run_id: str = "run1") -> None:
        """Start a run of a DAG, as soon as it has been parsed."""
        known = "select 1 from serialized_dag where dag_id = ?"
        self.wait(f"DAG {dag_id}", lambda: bool(self.airflow.rows(known, dag_id)), 120)
        self.airflow.command("dags", "unpause", dag_id)
        self.airflow.command("dags", "trigger", "-r", run_id, dag_id)

    def ended(self, dag_id: str, run_id: str = "run1", timeout: float = 300) -> str:
        """Wait for a run's end; return its state."""
        self.wait(f"the end of {dag_id}/{run_id}", lambda: self.state(dag_id, run_id) in ENDED, timeout)
        return self.state(dag_id, run_id)

    def state(self, dag_id: str, run_id: str) -> str:
        """Return the state a run is in."""
        found = self.airflow.rows("select state from dag_run where dag_id = ? and run_id = ?", dag_id, run_id)
        return str(found[0][0]) if found else "absent"

    def wait(self, what: str, holds: Any, timeout: float) -> None:
        """Wait until something holds; a component that ends meanwhile is a failure."""
        deadline = time.monotonic() + timeout
        while not holds():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, f"{ended} ended\n{self.logs()}"
            assert time.monotonic() < deadline, f"waited {timeout} s for {what}\n{self.logs()}"
            time.sleep(0.5)

    def answers(self) -> bool:
        """Say whether the API server answers."""
        with suppress(OSError):
            urllib.request.urlopen(f"{self.airflow.url}/api/v2/version", timeout=5).close()
            return True
        return False

    def api(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Call the public REST API as an admin; return the status and the answer."""
        headers = {"content-type": "application/json"}
        if path != "/auth/token":
            headers["authorization"] = f"Bearer {self.token()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.airflow.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    def token(self) -> str:
        """Return an admin's token."""
        token: str = self.api("GET", "/auth/token")[1]["access_token"]
        return token

    def logs(self) -> str:
        """Return the end of what each component said, and which tasks the scheduler failed over old news of them."""
        files = sorted(self.airflow.folder.glob("*.log"))
        said = [f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files]
        mistaken = self.airflow.rows("select extra from log where event = 'state mismatch'")
        return "\n".join([*said, *(f"--- state mismatch\n{extra}" for (extra,) in mistaken)])
