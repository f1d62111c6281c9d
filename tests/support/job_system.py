"""A job system in a folder and a process of its own: requests are files, so they arrive whatever becomes of the sender.

Run as a script with the folder and its ways: `dedupes` (one job for a token, however often it is asked for) and a seed
for how long it takes over each request, at most `SLOW` seconds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from outlast import BaseOperator
from outlast.dags.resumable import JobNotFound, ResumableJobMixin

#: Seconds the system takes at most over a request, and a job until it is done.
SLOW, JOB = 0.06, 0.05


def main() -> None:
    """Start jobs until there is a file `end`."""
    folder, dedupes, chance = Path(sys.argv[1]), sys.argv[2] == "dedupes", random.Random(sys.argv[3])
    by_token: dict[str, str] = {}
    seen: set[str] = set()
    put(folder / "ready", {})
    while not (folder / "end").exists():
        for request in [path for path in (folder / "requests").iterdir() if path.suffix == ".json"]:
            if request.name in seen:
                continue
            seen.add(request.name)
            time.sleep(chance.uniform(0, SLOW))
            token = json.loads(request.read_text())["token"]
            if not (dedupes and token in by_token):
                by_token[token] = f"job-{len(list((folder / 'jobs').iterdir()))}"
                put(folder / "jobs" / by_token[token], {"token": token, "done_at": time.time() + JOB})
                put(folder / "tokens" / token, {"job": by_token[token]})
            put(folder / "replies" / request.name, {"job": by_token[token]})
        time.sleep(0.001)


def put(path: Path, facts: dict[str, Any]) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    if path.parent.name == "jobs":  # where every name counts as a job
        part = path.parent.parent / part.name
    part.write_text(json.dumps(facts))
    part.rename(path)


class Client(ResumableJobMixin, BaseOperator):
    """A task that has the system do a job."""

    find_job_grace = 0.5

    def __init__(self, *, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = Path(folder)

    def execute(self, context: Any) -> Any:
        return self.execute_resumable(context)

    def submit_job(self, context: Any) -> str:
        name = f"{uuid.uuid4().hex}.json"
        put(self.folder / "requests" / name, {"token": context["submission_token"]})
        while not (reply := self.folder / "replies" / name).exists():
            time.sleep(0.001)
        job: str = json.loads(reply.read_text())["job"]
        return job

    def get_job_status(self, external_id: Any, context: Any) -> str:
        try:
            done_at = json.loads((self.folder / "jobs" / external_id).read_text())["done_at"]
        except FileNotFoundError:
            raise JobNotFound(external_id) from None
        return "done" if time.time() >= done_at else "running"

    def is_job_active(self, status: str) -> bool:
        return status == "running"

    def is_job_succeeded(self, status: str) -> bool:
        return status == "done"

    def poll_until_complete(self, external_id: Any, context: Any) -> None:
        while self.get_job_status(external_id, context) == "running":
            time.sleep(0.002)

    def get_job_result(self, external_id: Any, context: Any) -> Any:
        return {"job": external_id}


class FindingClient(Client):
    """The same with a lookup by token."""

    def find_job(self, token: str, context: Any) -> str | None:
        try:
            job: str = json.loads((self.folder / "tokens" / token).read_text())["job"]
            return job
        except FileNotFoundError:
            return None


if __name__ == "__main__":
    main()
