"""What a worker behind a server knows: one token, which stays young, and a user that can do no more than that."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast import ConfigError, StaleAttempt, Store, Unauthorized, connect
from outlast.config import ClientSettings, Config, RunnerSettings, load
from outlast.requests import Fence, Read
from outlast.run_requests import NoteAftermath, TaskRow
from outlast.runner import processes, users
from outlast.runner.aftermath import Aftermath
from outlast.runner.job import Job
from outlast.runner.remote import Renewed, entrusted, opened
from support.clock import Clock
from support.runs import CHILD, Desk
from support.servers import house


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def served(tmp_path: Path, clock: Clock) -> Iterator[tuple[str, str]]:
    """A server with a clock of its own: its URL, and an admin's token."""
    url, token = house().move_in(connect(tmp_path / "store.db", clock=clock))
    yield url, token
    house().move_out(url)


@pytest.fixture
def runner(served: tuple[str, str]) -> Iterator[Store]:
    url, token = served
    with connect(url, config=Config(client=ClientSettings(token=token))) as store:
        yield store


@pytest.fixture
def begun(runner: Store) -> TaskRow:
    desk = Desk(runner.backend)
    desk.start("t")
    return desk.begin("t")


def job(runner: Store, task: TaskRow) -> Job:
    """Return what a worker is given."""
    backend: Any = runner.backend
    token = backend.attempt_token(Fence(task.scope, task.attempt, task.scope_id))
    client = ClientSettings(token=token, find_token=False)
    return Job(runner.url, task.scope, 0, "d.py", "{}", 0, "/logs", 30.0, 3, begun=task, client=client)


@pytest.mark.http
def test_a_child_that_asks_for_nothing_for_days_has_the_token_its_supervisor_got(
    runner: Store, begun: TaskRow, clock: Clock
) -> None:
    given, fence = job(runner, begun), Fence(begun.scope, begun.attempt, begun.scope_id)
    with opened(given) as supervisor, opened(given) as alone, closing(Renewed(supervisor)) as renewed:
        desk = Desk(supervisor.backend)
        with renewed.opened(given) as child:
            for _ in range(5):
                clock.move(hours=13)
                desk.renew(fence)
                renewed.note()
            with pytest.raises(Unauthorized, match="expired"):
                alone.backend.send(Read(begun.scope, None, fence=fence))
            assert child.backend.send(Read(begun.scope, None, fence=fence)).rows == ()


@pytest.mark.http
def test_a_job_behind_a_server_takes_no_settings_but_its_own(
    runner: Store, begun: TaskRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_TOKEN", "outl_a_wrong")
    given = job(runner, begun)
    with opened(given) as store:
        assert store.config.client == given.client
        assert store.config.state_folder is None
        fence = Fence(begun.scope, begun.attempt, begun.scope_id)
        assert store.backend.send(Read(begun.scope, None, fence=fence)).rows == ()


@pytest.mark.http
def test_what_is_due_after_an_attempt_has_a_token_for_that_alone(runner: Store, begun: TaskRow) -> None:
    desk = Desk(runner.backend)
    desk.report(desk.fence("t"), "failed")
    given = msgspec.structs.replace(job(runner, begun), client=None, begun=None)
    aftermath = entrusted(runner, Aftermath(given, 1, "why"), ClientSettings())
    assert desk.task("t").aftermath == 1
    with opened(aftermath.job) as store:
        assert store.backend.send(Read(begun.scope, None)).rows == ()
        runner.task(begun.scope, attempt="new").set("k", "newer")
        with pytest.raises(StaleAttempt):
            store.backend.send(Read(begun.scope, None))
        assert store.backend.send(NoteAftermath(begun.scope, 1, done=True)).aftermath is None
        with pytest.raises(Unauthorized):
            Desk(store.backend).renew(Fence(begun.scope, 1, begun.scope_id), child=CHILD)


def test_workers_look_for_no_token(tmp_path: Path) -> None:
    (tmp_path / "outlast.toml").write_text('[client]\ntoken = "outl_a_admin"\ntimeout = 5\n')
    assert load(tmp_path, {}).client.token == "outl_a_admin"
    off = {"OUTLAST__CLIENT__FIND_TOKEN": "false"}
    assert load(tmp_path, off).client == ClientSettings(timeout=5.0, find_token=False)
    assert load(tmp_path, {**off, "OUTLAST_TOKEN": "outl_w_own"}).client.token == "outl_w_own"


# --- another user ------------------------------------------------------------------------------------------------


def settings(name: str, **more: Any) -> RunnerSettings:
    return RunnerSettings(run_as=name, **more)


def nobody() -> users.User:
    if os.geteuid() != 0:
        pytest.skip("optional: only root can run something as another user")
    user = users.user_of(settings("nobody"))
    assert user is not None
    return user


def test_a_user_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no user 'no-such-user'"):
        users.user_of(settings("no-such-user"))


def test_ones_own_user_is_no_other() -> None:
    assert users.user_of(settings(pwd.getpwuid(os.geteuid()).pw_name)) is None
    assert users.user_of(RunnerSettings()) is None


def test_a_worker_of_another_user_gets_a_small_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    user = users.User("ann", 4711, 4711, (4711,), "/home/ann")
    given = {"PATH": "/bin", "LC_ALL": "C", "AWS_REGION": "x", "SECRET": "x", "OUTLAST_TOKEN": "t", "HOME": "/root"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = users.environment(user, settings("ann", pass_environment=("AWS_*", "OUTLAST_*")), "http://here:1")
    assert {name: found.get(name) for name in given} == {
        "PATH": "/bin", "LC_ALL": "C", "AWS_REGION": "x", "SECRET": None, "OUTLAST_TOKEN": None, "HOME": "/home/ann",
    }  # fmt: skip
    assert found["OUTLAST_URL"] == "http://here:1"
    assert found["OUTLAST__CLIENT__FIND_TOKEN"] == "false"
    own = users.environment(None, RunnerSettings(), "http://here:1")
    assert (own["SECRET"], own.get("OUTLAST_TOKEN"), own["OUTLAST__CLIENT__FIND_TOKEN"]) == ("x", None, "false")


def test_a_file_that_the_user_cannot_read_is_named(tmp_path: Path) -> None:
    user = nobody()
    (tmp_path / "d.py").touch(0o600)
    with pytest.raises(ConfigError, match=r"workers cannot run as nobody: .*that user must be able to"):
        users.check(user, {"PYTHONPATH": os.pathsep.join(sys.path)}, [str(tmp_path / "d.py")])


def test_nothing_is_killed_that_the_user_could_not_kill() -> None:
    """The store says which process group an attempt's is, and that an attempt may have made up."""
    user = nobody()
    sleep = ["/bin/sleep", "60"]
    ours = subprocess.Popen(sleep, start_new_session=True)
    theirs = subprocess.Popen(sleep, start_new_session=True, **user.options)
    try:
        users.kill_groups(user, [None, processes.identify(ours.pid), processes.identify(theirs.pid)])
        assert theirs.wait(10) == -signal.SIGKILL
        assert ours.poll() is None
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()


# --- the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--server", "http://127.0.0.1:1", "--store", "s.db"], 2, "--server and --store exclude each other"),
        (["--server", "s.db"], 2, "is no URL of a server; write https://HOST:PORT"),
        (["--run-as", "no-such-user"], 78, "there is no user 'no-such-user'"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: list[str], status: int, said: str) -> None:
    told = _run(tmp_path, *options)
    assert (told.returncode, said in told.stderr) == (status, True), told.stderr


def test_another_users_workers_need_a_server(tmp_path: Path) -> None:
    nobody()
    told = _run(tmp_path, "--run-as", "nobody", "--store", "s.db")
    assert told.returncode == 78
    assert "workers can run as nobody only with a store behind a server" in told.stderr


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = _run(tmp_path, "--server", f"unix://{folder}/none", OUTLAST__CLIENT__RETRY_FOR="0.5")
    assert told.returncode == 69
    assert "is the server running?" in told.stderr


def _run(folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "d.py").write_text(
        "from outlast import DAG, task\nwith DAG('d'):\n    @task\n    def t(): ...\n    t()\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "outlast.cli", "run", "d.py", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | env,
        timeout=60,
        check=False,
    )
