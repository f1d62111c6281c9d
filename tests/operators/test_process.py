"""`ProcessJobOperator` with real commands, and real deaths of everything around them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.dags.job_cancelling import cancel_stored_job
from outlast.dags.resumable import JobNotFound, JobRefused
from outlast.operators import ProcessJobOperator, launcher
from support import attempting

ID, INTENT = "remote_job_id", "remote_job_id.intent"
PATIENCE = 30.0
#: Writes a line when it starts, and ends once there is a file `go`.
WAITS = "echo started $$ >> starts; while [ ! -e go ]; do sleep 0.02; done; echo the answer is 42"

linux = pytest.mark.skipif(sys.platform != "linux", reason="optional: processes are looked at in /proc")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Path]:
    """The folder for the jobs' folders; nothing of theirs runs afterwards."""
    folder = tmp_path / "jobs"
    yield folder
    for path in folder.glob("*/job.json"):
        job = json.loads(path.read_text())
        if launcher.is_alive(job):  # and not another process, for which some tests have it taken
            with suppress(ProcessLookupError):
                os.killpg(job["pid"], signal.SIGKILL)


Make = Callable[..., ProcessJobOperator]


@pytest.fixture
def make(tmp_path: Path, jobs: Path) -> Make:
    """Make an operator whose command runs in `tmp_path`."""

    def made(command: Any, kind: type[ProcessJobOperator] = ProcessJobOperator, **more: Any) -> ProcessJobOperator:
        defaults: dict[str, Any] = {"cwd": tmp_path, "output_dir": jobs, "poll_interval": 0.02, "task_id": "t"}
        operator = kind(command=command, **defaults | more)
        operator.find_job_grace = 0.3
        operator.status_retry_for = 0
        return operator

    return made


def run(operator: ProcessJobOperator, state: outlast.TaskState) -> Any:
    return operator.execute({"task_state_store": state})


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.005)
    return found


def stored(folder: Path) -> bool:
    with outlast.connect(folder / "s.db") as store:
        return ID in store.task("d/r/t").keys()  # noqa: SIM118


def starts(folder: Path) -> list[str]:
    path = folder / "starts"
    return path.read_text().splitlines() if path.exists() else []


def attempt_killed(folder: Path, kind: str, when: Callable[[], Any]) -> None:
    """Run an attempt in a process and session of its own, and kill all of that as soon as something holds."""
    arguments = {"command": WAITS, "cwd": folder, "output_dir": folder / "jobs"}
    process = attempting.begin(store=folder / "s.db", attempt="new", kind=kind, arguments=arguments)
    until(when, "the moment to kill the attempt")
    attempting.kill(process)


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Callable[[], outlast.TaskState]]:
    """Open the store as the next attempt."""
    opened: list[outlast.Store] = []

    def state() -> outlast.TaskState:
        opened.append(outlast.connect(tmp_path / "s.db"))
        return opened[-1].task("d/r/t", attempt="new")

    yield state
    for store in opened:
        store.close()


# --- What it does ----------------------------------------------------------------------------------------------


def test_a_list_is_a_command(make: Make, state: outlast.TaskState, jobs: Path) -> None:
    code = "import sys; print('out', sys.argv[1:]); print('err', file=sys.stderr)"
    assert run(make([sys.executable, "-c", code, "$HOME", "a b"]), state) == {
        "exit_status": 0,
        "output": "out ['$HOME', 'a b']\n",
    }
    (folder,) = jobs.iterdir()
    assert (folder / "stderr").read_text() == "err\n"
    assert json.loads((folder / "status.json").read_text())["exit_status"] == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert state.get(ID)["folder"] == str(folder)
    assert folder.name.startswith("outlast-")


def test_a_text_is_for_the_shell(make: Make, state: outlast.TaskState) -> None:
    assert run(make("echo a; echo b | tr b c"), state)["output"] == "a\nc\n"


def test_the_environment_and_the_folder_of_a_command(make: Make, state: outlast.TaskState, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    operator = make("pwd; echo $COLOUR $OUTLAST_SUBMISSION_TOKEN $OUTLAST_JOB_FOLDER", env={"COLOUR": "blue"})
    operator.cwd = tmp_path / "in"
    where, words = run(operator, state)["output"].splitlines()
    folder = Path(state.get(ID)["folder"])
    assert (Path(where), words.split()) == (tmp_path / "in", ["blue", folder.name, str(folder)])


def test_no_variable_of_the_environment_is_written_down(make: Make, state: outlast.TaskState, jobs: Path) -> None:
    run(make("true", env={"PASSWORD": "s3cret"}), state)
    assert all(b"s3cret" not in path.read_bytes() for path in jobs.rglob("*") if path.is_file())


def test_the_last_line_as_json(make: Make, state: outlast.TaskState) -> None:
    command = """echo working; echo '{"rows": [1, 2]}'; echo"""
    assert run(make(command, json_result=True), state) == {"rows": [1, 2]}


def test_a_last_line_that_is_no_json_fails(make: Make, state: outlast.TaskState) -> None:
    with pytest.raises(ValueError, match="'rows: 3'"):
        run(make("echo rows: 3", json_result=True), state)


def test_of_long_output_the_end_is_the_result(make: Make, state: outlast.TaskState, jobs: Path) -> None:
    output = run(make("seq 100000"), state)["output"]
    lines = output.splitlines()
    assert len(output) <= 16 * 1024
    assert lines == [str(number) for number in range(100_001 - len(lines), 100_001)]
    assert len((next(jobs.iterdir()) / "stdout").read_text().splitlines()) == 100_000


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo out; echo reason >&2; exit 3", r"exit status 3; its output is in .*\nreason"),
        ("echo only out; exit 1", r"exit status 1; its output is in .*\nonly out"),
        ("kill -SEGV $$", "signal SIGSEGV"),
        (["no-such-command"], r"exit status 127; .*\nno-such-command: No such file or directory"),
        (["/"], r"exit status 126; .*\n/: Permission denied"),
    ],
)
def test_a_failure(make: Make, state: outlast.TaskState, command: Any, told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        run(make(command), state)
    assert make(command).resume_decision({"task_state_store": state}).kind == "terminal_resubmit"


def test_a_retry_after_a_failure_is_another_job(make: Make, state: outlast.TaskState, jobs: Path) -> None:
    operator = make("echo x >> starts; [ $(wc -l < starts) = 2 ]")
    with pytest.raises(RuntimeError):
        run(operator, state)
    assert run(operator, state)["exit_status"] == 0
    assert len(list(jobs.iterdir())) == 2


def test_a_folder_that_is_not_there_is_a_refusal(make: Make, state: outlast.TaskState, tmp_path: Path) -> None:
    with pytest.raises(JobRefused, match="No such file or directory: '/no/such/place'"):
        run(make("true", cwd="/no/such/place"), state)
    assert state.keys() == []


def test_without_output_dir_jobs_are_in_the_state_folder(state: outlast.TaskState, clean_env: Path) -> None:
    run(ProcessJobOperator(task_id="t", command="true", poll_interval=0.02), state)
    assert Path(state.get(ID)["folder"]).is_relative_to(clean_env / "state")


def test_a_folder_that_cannot_be_made_is_said_with_what_to_do(state: outlast.TaskState, tmp_path: Path) -> None:
    """A user without a home has a bare PermissionError otherwise."""
    (tmp_path / "file").touch()
    operator = ProcessJobOperator(task_id="t", command="true", output_dir=tmp_path / "file", poll_interval=0.02)
    with pytest.raises(outlast.DagError, match=f"cannot make {tmp_path}/file/.*: Not a directory; give output_dir"):
        run(operator, state)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"command": "x", "output_dir": "jobs"}, "give an absolute path"),
        ({"command": []}, "command is empty"),
        ({"command": "x", "poll_interval": "1s"}, "poll_interval"),
        ({"command": "x", "comand": "y"}, "did you mean 'command'"),
    ],
)
def test_wrong_arguments(what: dict[str, Any], told: str) -> None:
    with pytest.raises(outlast.DagError, match=told):
        ProcessJobOperator(task_id="t", **what)


# --- Deaths ------------------------------------------------------------------------------------------------------


def test_a_job_outlives_its_worker_and_is_found_again(
    make: Make, tmp_path: Path, again: Callable[[], outlast.TaskState]
) -> None:
    operator = make(WAITS)
    attempt_killed(tmp_path, "ProcessJobOperator", lambda: starts(tmp_path) and stored(tmp_path))
    state = again()
    assert operator.resume_decision({"task_state_store": state}).kind == "reconnect"
    (tmp_path / "go").touch()
    assert run(operator, state) == {"exit_status": 0, "output": "the answer is 42\n"}
    assert len(starts(tmp_path)) == 1


def test_a_job_that_ends_meanwhile_has_left_its_result(
    make: Make, tmp_path: Path, jobs: Path, again: Callable[[], outlast.TaskState]
) -> None:
    operator = make(WAITS)
    attempt_killed(tmp_path, "ProcessJobOperator", lambda: starts(tmp_path) and stored(tmp_path))
    (tmp_path / "go").touch()
    until(lambda: list(jobs.glob("*/status.json")), "the job ends")
    state = again()
    assert operator.resume_decision({"task_state_store": state}).kind == "already_succeeded"
    assert run(operator, state) == {"exit_status": 0, "output": "the answer is 42\n"}
    assert len(starts(tmp_path)) == 1


def test_a_death_between_the_launch_and_its_record(
    make: Make, tmp_path: Path, jobs: Path, again: Callable[[], outlast.TaskState]
) -> None:
    operator = make(WAITS)
    attempt_killed(tmp_path, "DiesUnrecorded", lambda: starts(tmp_path))
    state = again()
    assert state.keys() == [INTENT]
    decision = operator.resume_decision({"task_state_store": state})
    assert (decision.kind, decision.found) == ("reconnect", True)
    (tmp_path / "go").touch()
    assert run(operator, state)["output"] == "the answer is 42\n"
    assert (len(starts(tmp_path)), len(list(jobs.iterdir()))) == (1, 1)
    assert state.keys() == [ID, f"{ID}.status"]


def test_of_many_launchers_for_one_folder_the_first_runs_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    spec = json.dumps(
        {"folder": str(folder), "command": ["sh", "-c", "echo x >> starts; sleep 0.2"], "cwd": str(tmp_path)}
    )
    command = [sys.executable, "-I", "-S", launcher.__file__]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(6)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(spec)
        process.stdin.close()
    assert [process.wait(PATIENCE) for process in started] == [0] * 6
    until(lambda: launcher.read(str(folder), "status.json"), "the command ends")
    subprocess.run(command, input=spec, text=True, check=True)  # one that comes when all is over
    time.sleep(0.1)
    assert len(starts(tmp_path)) == 1


def test_the_same_token_submitted_twice_is_one_job(make: Make, tmp_path: Path, state: outlast.TaskState) -> None:
    operator = make(WAITS)
    context = {"submission_token": "outlast-1", "task_state_store": state}
    assert operator.submit_job(context) == operator.submit_job(context)
    (tmp_path / "go").touch()
    operator.poll_until_complete(operator.find_job("outlast-1", context), context)
    assert len(starts(tmp_path)) == 1


@linux
def test_a_launcher_that_is_killed_leaves_a_command_that_counts_as_running(
    make: Make, tmp_path: Path, state: outlast.TaskState
) -> None:
    operator = make(WAITS)
    job = operator.submit_job({"submission_token": "a"})
    until(lambda: starts(tmp_path), "the command starts")
    os.kill(job["pid"], signal.SIGKILL)
    until(lambda: launcher.started(job["pid"]) is None, "the launcher is gone")
    assert operator.get_job_status(job, {}) == "running"
    (tmp_path / "go").touch()
    until(lambda: not launcher.is_alive(launcher.read(job["folder"], "job.json") or {}), "the command ends")
    with pytest.raises(JobNotFound, match="has left no exit status"):
        operator.get_job_status(job, {})


def altered(make: Make, tmp_path: Path, **facts: Any) -> tuple[ProcessJobOperator, dict[str, Any]]:
    """Submit a job, and change what is written down of its launcher."""
    operator = make(WAITS)
    job = operator.submit_job({"submission_token": "a"})
    known = launcher.read(job["folder"], "job.json") or {}
    assert operator.get_job_status(job, {}) == "running"
    launcher.write(job["folder"], "job.json", known | facts)
    (tmp_path / "jobs" / "b").mkdir()
    launcher.write(str(tmp_path / "jobs" / "b"), "job.json", known)  # for the end of the test to find it
    return operator, job


def test_a_pid_given_to_another_process_is_not_the_job(make: Make, tmp_path: Path) -> None:
    operator, job = altered(make, tmp_path, pid=os.getpid())
    with pytest.raises(JobNotFound):
        operator.get_job_status(job, {})
    operator.cancel_job(job, {})  # which must not end this process


@linux
def test_after_a_reboot_a_running_job_is_gone(make: Make, tmp_path: Path) -> None:
    operator = make(WAITS)
    known = launcher.read(operator.submit_job({"submission_token": "z"})["folder"], "job.json") or {}
    ticks = known["started"].partition(":")[2]
    operator, job = altered(make, tmp_path, started=f"11111111-2222-3333-4444-555555555555:{ticks}")
    with pytest.raises(JobNotFound):
        operator.get_job_status(job, {})


@linux
def test_after_a_reboot_a_free_pid_is_gone_too(make: Make, tmp_path: Path) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    operator, job = altered(make, tmp_path, pid=done.pid, started="11111111-2222-3333-4444-555555555555:1")
    with pytest.raises(JobNotFound):
        operator.get_job_status(job, {})


def test_a_job_of_another_host_is_not_taken_for_gone(make: Make, tmp_path: Path) -> None:
    operator, job = altered(make, tmp_path)
    elsewhere = {**job, "host": "elsewhere.test"}
    with pytest.raises(RuntimeError, match=r"the job runs on elsewhere\.test"):
        operator.get_job_status(elsewhere, {})
    operator.cancel_job(elsewhere, {})
    (tmp_path / "go").touch()  # its end is seen where the folder is shared
    until(lambda: launcher.read(job["folder"], "status.json"), "the job ends")
    assert operator.get_job_status(elsewhere, {}) == "success"


def test_a_folder_that_was_removed_is_a_job_that_is_gone(make: Make, tmp_path: Path) -> None:
    operator, job = altered(make, tmp_path)
    with pytest.raises(JobNotFound):
        operator.get_job_status({**job, "folder": "/no/such/folder"}, {})


# --- Cancelling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trap", "signal_"), [("", signal.SIGTERM), ("trap '' TERM; ", signal.SIGKILL)])
def test_a_cancelled_job_ends_with_what_it_has_started(
    make: Make, tmp_path: Path, state: outlast.TaskState, trap: str, signal_: signal.Signals
) -> None:
    operator = make(f"{trap}(sleep 100; touch late) & echo $! > child; echo started >> starts; wait; sleep 100")
    operator.cancel_grace = operator.poll_interval * 10
    context: dict[str, Any] = {"task_state_store": state}
    job = operator.submit_once(operator.resume_decision(context), context)
    until(lambda: starts(tmp_path), "the command starts")
    assert cancel_stored_job(operator, context) == f"job {job!r} was cancelled"
    until(lambda: launcher.started(int((tmp_path / "child").read_text())) is None, "what it started ends")
    until(lambda: launcher.read(job["folder"], "status.json"), "its end is written down")
    assert launcher.read(job["folder"], "status.json")["exit_status"] == -signal_  # type: ignore[index]
    assert operator.get_job_status(job, {}) == "failed"
    assert cancel_stored_job(operator, context) == f"job {job!r} is failed already"
