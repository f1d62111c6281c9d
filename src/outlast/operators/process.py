"""`ProcessJobOperator`: a command on this host that outlives the worker and the runner, and is found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from .. import config
from ..dags.arguments import duration
from ..dags.context import Context
from ..dags.operators import BaseOperator
from ..dags.resumable import JobNotFound, JobRefused, ResumableJobMixin
from ..errors import DagError
from . import launcher

__all__ = ["ProcessJobOperator"]

#: Seconds a launcher has to say that it is there.
_LAUNCH = 30.0
#: Bytes of output in the result or in the message of a failure, and of the line that is a JSON result.
_TAIL, _LINE = 16 * 1024, 1024 * 1024
_FIRST_LOOK = 0.05


class ProcessJobOperator(ResumableJobMixin, BaseOperator):
    """Runs a command in a session of its own; its output and exit status are files in a folder of its own.

    >>> ProcessJobOperator(task_id="index", command=["make", "index"], cwd="/srv/search")

    The result is `{"exit_status": 0, "output": …}` with the end of what it wrote to standard output, or, with
    `json_result`, the JSON value that is the last line of it. Any other exit status is a failure.
    """

    find_job_grace = timedelta(seconds=2)  # a launcher that comes later than that finds the folder taken

    def __init__(
        self,
        *,
        command: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        poll_interval: timedelta | float = 1.0,
        cancel_grace: timedelta | float = 5.0,
        json_result: bool = False,
        **kwargs: Any,
    ) -> None:
        """Define the task. A `command` that is a text is given to `/bin/sh -c`; `env` adds to the environment.

        The job's folder is made in `output_dir`, an absolute path; by default in your own state folder. It stays.
        A job that is cancelled has `cancel_grace` between SIGTERM and SIGKILL. Durations are timedeltas or seconds.
        """
        super().__init__(**kwargs)
        self.command, self.env, self.cwd = command, env, cwd
        self.output_dir = output_dir
        self.poll_interval = duration("poll_interval", poll_interval)
        self.cancel_grace = duration("cancel_grace", cancel_grace)
        self.json_result = json_result
        if not command:
            raise DagError('command is empty; give a list such as ["make", "index"], or a line for the shell')
        if isinstance(output_dir, str | os.PathLike) and not os.path.isabs(os.path.expanduser(output_dir)):
            raise DagError(
                f"output_dir is {os.fspath(output_dir)!r}; give an absolute path, so that an attempt begun in another "
                "folder finds the job as well"
            )

    def execute(self, context: Context) -> Any:
        return self.execute_resumable(context)

    # --- submitting and finding ------------------------------------------------------------------------------

    def submit_job(self, context: Context) -> dict[str, Any]:
        """Start the command under a launcher; return its host, folder and pid."""
        token: str = context["submission_token"]
        folder = self._folder(token)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise DagError(
                f"cannot make {folder} for what the job says and how it ends: {error.strerror}; give output_dir, a "
                "folder that the user this runs as may write to"
            ) from error
        command = ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)
        cwd = None if self.cwd is None else os.path.expanduser(self.cwd)
        spec = {"folder": folder, "command": [os.fspath(word) for word in command], "cwd": cwd}
        own = {"OUTLAST_SUBMISSION_TOKEN": token, "OUTLAST_JOB_FOLDER": folder}
        done = subprocess.run(
            [sys.executable, "-I", "-S", launcher.__file__],
            input=json.dumps(spec),
            env={**os.environ, **(self.env or {}), **own},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self._launched(folder, done.stderr)

    def _launched(self, folder: str, said: str) -> dict[str, Any]:
        """Wait until a launcher has begun; it says so before it starts the command."""
        deadline = time.monotonic() + _LAUNCH
        while (job := launcher.read(folder, launcher.JOB)) is None:
            if said:
                raise JobRefused(f"the command could not be launched: {said.strip()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the command has not been launched within {_LAUNCH:g} s; its folder is {folder}")
            time.sleep(0.005)
        return _id_of(job, folder)

    def find_job(self, token: str, context: Context) -> dict[str, Any] | None:
        """Return the id of the job that was launched with a token."""
        folder = self._folder(token)
        job = launcher.read(folder, launcher.JOB)
        return None if job is None else _id_of(job, folder)

    def _folder(self, token: str) -> str:
        if self.output_dir is not None:
            return os.path.join(os.path.expanduser(self.output_dir), token)
        state_folder = config.load().state_folder
        if state_folder is None:
            raise DagError("there is no home folder for the job's output; give output_dir")
        return os.path.join(state_folder, "jobs", token)

    # --- looking ---------------------------------------------------------------------------------------------

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return "running", "success" or "failed"; JobNotFound where it has ended without saying how."""
        folder = external_id["folder"]
        if (status := _exit_status(folder)) is not None:
            return status
        if external_id["host"] != launcher.host():
            raise RuntimeError(
                f"the job runs on {external_id['host']}, and this is {launcher.host()}; "
                "have the task run where its job is"
            )
        job = launcher.read(folder, launcher.JOB)
        if job is not None and launcher.is_alive(job):
            return "running"
        status = _exit_status(folder)  # which it may have written before it ended, just now
        if status is None:
            raise JobNotFound(
                f"the job in {folder} is gone and has left no exit status: it was killed, or the host was"
            )
        return status

    def is_job_active(self, status: Any) -> bool:
        return bool(status == "running")

    def is_job_succeeded(self, status: Any) -> bool:
        return bool(status == "success")

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait for the command's end; RuntimeError with the end of its output where it has failed."""
        pause, longest = _FIRST_LOOK, self.poll_interval.total_seconds()
        while (status := self.get_job_status(external_id, context)) == "running":
            time.sleep(min(pause, longest))
            pause *= 2
        if status != "success":
            folder = external_id["folder"]
            ended = (launcher.read(folder, launcher.STATUS) or {})["exit_status"]
            tail = _tail(folder, "stderr") or _tail(folder, "stdout")
            raise RuntimeError(f"the command ended with {_in_words(ended)}; its output is in {folder}\n{tail}".strip())

    def get_job_result(self, external_id: Any, context: Context) -> Any:
        """Return the exit status with the end of the output, or the JSON value that is its last line."""
        folder = external_id["folder"]
        if not self.json_result:
            return {"exit_status": 0, "output": _tail(folder, "stdout")}
        line = _tail(folder, "stdout", _LINE).rstrip().rpartition("\n")[2]
        try:
            return json.loads(line)
        except ValueError:
            raise ValueError(f"the last line of the command's output is no JSON: {line[:200]!r}") from None

    def cancel_job(self, external_id: Any, context: Context) -> None:
        """End the command and what it has started in its process group."""
        job = launcher.read(external_id["folder"], launcher.JOB)
        if job is None or external_id["host"] != launcher.host() or not launcher.is_alive(job):
            return
        os.killpg(job["pid"], signal.SIGTERM)
        deadline = time.monotonic() + self.cancel_grace.total_seconds()
        while launcher.is_alive(job) and time.monotonic() < deadline:
            time.sleep(0.02)
        if launcher.is_alive(job):
            os.killpg(job["pid"], signal.SIGKILL)
            launcher.write(external_id["folder"], launcher.STATUS, {"exit_status": -signal.SIGKILL})


def _id_of(job: dict[str, Any], folder: str) -> dict[str, Any]:
    return {"host": job["host"], "folder": folder, "pid": job["pid"]}


def _exit_status(folder: str) -> str | None:
    """Return how a job has ended; None if it has not said."""
    status = launcher.read(folder, launcher.STATUS)
    return None if status is None else "success" if status["exit_status"] == 0 else "failed"


def _in_words(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


def _tail(folder: str, name: str, most: int = _TAIL) -> str:
    """Return the end of what the command wrote, from the beginning of a line where it is longer than that."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            data = file.read()
    except FileNotFoundError:
        return ""
    whole = data if size <= most else data.partition(b"\n")[2] or data
    return whole.decode(errors="replace")
