"""One attempt of a resumable operator in a process and session of its own, to be killed; run as a script.

Its argument is JSON: `store`, `attempt` (a number or "new"), `kind` and `arguments` of the operator, `attributes` to
set on it, and `log` and `result`, files for the events and for what it returned. It writes `x` when it has begun.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from outlast import connect
from outlast.config import Config, StateStoreSettings
from outlast.dags.job_events import logger
from outlast.operators import HttpJobOperator, ProcessJobOperator
from support.job_system import Client, FindingClient


class DiesUnrecorded(ProcessJobOperator):
    """Dies when its job has been launched and not been recorded."""

    def _launched(self, folder: str, said: str) -> dict[str, Any]:
        super()._launched(folder, said)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Client, FindingClient, ProcessJobOperator, HttpJobOperator, DiesUnrecorded)
}


def begin(**job: Any) -> subprocess.Popen[bytes]:
    """Begin an attempt; its first byte of output says that it runs."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", __file__, json.dumps(job, default=str)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def kill(attempt: subprocess.Popen[bytes]) -> None:
    """End an attempt and all of its group."""
    os.killpg(attempt.pid, signal.SIGKILL)
    attempt.wait()
    assert attempt.stdout is not None
    attempt.stdout.close()


def main() -> None:
    job = json.loads(sys.argv[1])
    if "log" in job:
        logger.addHandler(logging.FileHandler(job["log"]))
        logger.setLevel(logging.INFO)
    operator = KINDS[job["kind"]](task_id="t", **job["arguments"])
    for name, value in job.get("attributes", {}).items():
        setattr(operator, name, value)
    config = Config(state_store=StateStoreSettings(durability="process"))
    with connect(job["store"], config=config) as store:
        state = store.task("d/r/t", attempt=job["attempt"])
        os.write(1, b"x")
        result = operator.execute({"task_state_store": state, "params": {}})
    if "result" in job:
        Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
