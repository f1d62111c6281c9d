"""Start a job elsewhere and wait for it; a task killed while it waits finds the job again and starts no second one.

    outlast run examples/external_job.py --param folder=/tmp/job

The job is a process of its own session with its output and exit status in files: it knows nothing of the task and
outlives it, as a query in a warehouse would. What the task stores is the job's id: pid and start time, for a pid
alone may be given to another process later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from outlast import DAG, task

JOB = """
echo "started as process $$" >> starts.txt
(sleep "$1" && echo "the answer is 42") > output.txt 2>&1
echo $? > status.part && mv status.part status.txt
"""


@task
def run_job(params=None, task_state_store=None, ti=None):
    """Submit the job unless an attempt before has, wait for it, and return its output."""
    folder = Path(params["folder"])
    job = task_state_store.get("job")
    if job is None:
        job = submit(folder, params["seconds"])
        task_state_store.set("job", job)
        print(f"submitted {job}")
        if params["kill"] and ti.try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # the demo: nothing runs after this, the job apart
    else:
        print(f"found {job}")

    while (status := status_of(job, folder)) is None:
        time.sleep(0.1)
    if status != 0:
        raise RuntimeError(f"the job ended with status {status}; its output is in {folder / 'output.txt'}")
    return {"job": job, "output": (folder / "output.txt").read_text().strip()}


@task
def check(done, params=None):
    """Prove that the job was started exactly once: it writes a line when it starts."""
    starts = (Path(params["folder"]) / "starts.txt").read_text().splitlines()
    if starts != [f"started as process {done['job']['pid']}"]:
        raise ValueError(f"the job was to be started once, but: {starts}")
    return {"starts": len(starts), "output": done["output"]}


with DAG(
    "external_job",
    params={
        "folder": "job",  # where the job leaves its output
        "seconds": 3,  # how long it takes
        "kill": False,  # whether the first attempt dies when it has submitted the job
    },
) as dag:
    check(run_job())


# --- The job's side ------------------------------------------------------------------------------------------


def submit(folder, seconds) -> dict:
    """Start the job and return its id."""
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        ["sh", "-c", JOB, "job", str(seconds)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return {"pid": process.pid, "started": started(process.pid)}


def status_of(job, folder) -> int | None:
    """Return the job's exit status, None while it runs."""
    runs = started(job["pid"]) == job["started"]  # looked at first: a job writes its status before it ends
    try:
        return int((folder / "status.txt").read_text())
    except FileNotFoundError:
        if not runs:
            raise RuntimeError(f"the job {job} is gone and has left no status") from None
        return None


def started(pid) -> str:
    """Return when a process was started, in the system's own words; "" if it has ended."""
    if not os.path.isdir("/proc/self"):  # not Linux
        return subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else fields[18]
