"""Triggers behind a server: what a task decides to run has a token for triggers only, and is the workers' user's."""

from __future__ import annotations

import os
import pwd
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from support.deferring import WAITS
from support.remote import NOBODY, Remote
from support.running import Program

pytestmark = pytest.mark.http


@pytest.fixture
def walled(remote: Remote) -> Remote:
    if remote.user is None:
        pytest.skip("optional: only root can run something as another user")
    return remote


LOOK = """
def memory(pid):
    with open(f"/proc/{pid}/maps") as maps:
        start = int(maps.readline().partition("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb") as file:
        file.seek(start)
        return file.read(8)

def found():
    runner = os.getppid()
    with connect(URL) as store:
        connected = tried(store.task("d/r/t").items)
    return {
        "uid": [*os.getresuid(), *os.getresgid()],
        "env": dict(os.environ),
        "command": read("/proc/self/cmdline", 5000).decode(),
        "configured": load().client.token,
        "connected": connected,
        "environ": tried(read, f"/proc/{runner}/environ"),
        "mem": tried(memory, runner),
        "files": tried(os.listdir, f"/proc/{runner}/fd"),
        "kill": tried(os.kill, runner, 0),
        "store": tried(read, SECRET + "/s.db"),
        "logs": tried(os.listdir, SECRET + "/logs"),
    }

with DAG("d"):
    Wait("found", task_id="t")
"""


def looked(remote: Remote, **env: str) -> dict[str, Any]:
    remote.dag(f"URL = {remote.server.url!r}\nSECRET = {str(remote.secret)!r}\n" + WAITS + LOOK)
    told = remote.run("--run-id", "r", env=env)
    assert told.status == 0, told.err + remote.log("t")
    seen: dict[str, Any] = remote.state("t")["seen"]
    return seen


def test_a_trigger_has_no_token_that_is_another_s(remote: Remote) -> None:
    (remote.folder / "outlast.toml").write_text(f'[client]\ntoken = "{remote.token("admin")}"\n')
    seen = looked(remote)
    shown = [seen["command"], *seen["env"].values()]
    assert not [text for text in shown if "outl_" in text or "eyJ" in text]
    assert {"OUTLAST_TOKEN", "OUTLAST__CLIENT__TOKEN"}.isdisjoint(seen["env"])
    assert (seen["configured"], seen["connected"]) == (None, "unauthorized")


def test_a_trigger_is_the_workers_user_s_and_gets_nothing_of_the_runner_s(walled: Remote) -> None:
    seen = looked(walled, SECRET_OF_RUNNER="1")
    nobody = pwd.getpwnam(NOBODY)
    assert seen["uid"] == [nobody.pw_uid] * 3 + [nobody.pw_gid] * 3
    assert (seen["env"]["USER"], seen["env"]["OUTLAST_URL"]) == (NOBODY, walled.server.url)
    assert "SECRET_OF_RUNNER" not in seen["env"]
    refused = {name: seen[name] for name in ("environ", "mem", "files", "kill", "store", "logs")}
    assert refused == dict.fromkeys(refused, "PermissionError")


CHOOSES = """
from outlast import deferral_requests, run_requests

def get_secret():
    return [os.getuid(), tried(read, "/etc/shadow"), tried(read, SECRET + "/s.db")]

with DAG("d"):
    @task
    def t(task_state_store=None, event=None):
        if event is not None:
            task_state_store.set("seen", event)
            return
        backend, fence = task_state_store.backend, task_state_store.fence
        chosen = deferral_requests.Deferral("file:Calls", '{"name":"get_secret"}', "execute")
        backend.send(run_requests.Report(fence, "deferred", deferral=chosen))
        forever()

    t()
"""


def test_a_trigger_that_a_task_chooses_runs_as_the_task_s_user(walled: Remote) -> None:
    """A worker's own token says which class is to run with which arguments."""
    walled.dag(f"SECRET = {str(walled.secret)!r}\n" + WAITS + CHOOSES)
    told = walled.run("--run-id", "r")
    assert told.status == 0, told.err
    assert walled.state("t")["seen"] == [pwd.getpwnam(NOBODY).pw_uid, "PermissionError", "PermissionError"]


STEALS = """
from outlast.backends.http import HTTPBackend
from outlast.deferral_requests import *
from outlast.event_requests import *
from outlast.people_requests import *
from outlast.requests import *
from outlast.run_requests import *
from outlast.token_requests import *
from outlast.values import AssetScope, TaskScope, Writer

ROW, ME, LIAR = ProcessRef("h", 1, "s"), TaskScope("d", "r", "t"), Writer("library")

def attacks():
    yield Read(ME, None)
    yield Commit((Part(ME, (Put("k", "1", None),)),), None, LIAR)
    yield Commit((Part(AssetScope("a"), (Put("k", "1", None),)),), Fence(ME, 1, 1), LIAR)
    yield Open(ME, None)
    yield Begin(ME, 1, ROW, 9.0)
    yield StartRun("e", "r", (), "{}", "f", "d", 0, ROW, 9.0)
    yield HoldRun("d", "r", ROW, 9.0)
    yield GetRun("d", "r")
    yield Find()
    yield ListScopes()
    yield ListAudit()
    yield ListEvents()
    yield Report(Fence(ME, 1, 1), "success")
    yield PullResults("d", "r", ("t",), "return_value")
    yield CreateToken(b"x" * 32, "admin", "me", LIAR)
    yield ListDeferred((), entrust=True)
    yield Fire(1, 1, "{}", dag_id="hr")

def stolen():
    (backend,) = [found for found in gc.get_objects() if type(found) is HTTPBackend]
    mark(backend.own_token())
    allowed = backend.send(ListDeferred((1,))).rows[0].scope.task_id
    return [allowed, [tried(backend.send, request) for request in attacks()]]

with DAG("d"):
    Wait("stolen", task_id="t")
"""


def test_the_token_that_a_trigger_can_take_is_good_for_little(remote: Remote) -> None:
    remote.dag(WAITS + STEALS)
    told = remote.run("--run-id", "r", env={"OUTLAST_TOKEN": remote.token("runner", ("d",))})
    assert told.status == 0, told.err
    allowed, refused = remote.state("t")["seen"]
    assert allowed == "t"
    assert len(refused) == STEALS.count("    yield ")
    assert refused == ["unauthorized"] * (len(refused) - 1) + ["not_found"]
    assert not remote.marks[0].startswith("outl_")


# --- Logs ---------------------------------------------------------------------------------------------------


TALKS = """
class Talks(Calls):
    def serialize(self):
        return f"{__name__}.Talks", {"name": self.name}

    async def run(self):
        for number in range(1000):
            print(f"line {number}")
        self.log.info("logged by %s", "the trigger")
        await asyncio.to_thread(print, "from a thread")
        yield TriggerEvent(1)

class Says(Wait):
    def execute(self, context):
        self.defer(trigger=Talks("none"), method_name="done")

with DAG("d"):
    Says("none", task_id="t")
"""


def test_what_a_trigger_logs_lands_in_the_closed_folder_whole(remote: Remote) -> None:
    remote.dag(WAITS + TALKS)
    told = remote.run("--run-id", "r")
    assert told.status == 0, told.err
    log = remote.secret / "logs" / "d" / "r" / "t" / "trigger.log"
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("line ")] == [f"line {number}" for number in range(1000)]
    assert "from a thread" in lines
    assert any("logged by the trigger" in line for line in lines)
    assert log.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(remote.secret.stat().st_mode) == 0o700
    assert (remote.secret / "logs" / "triggerer.log").exists()


OWN = """
def own():
    import stat
    os.write(2, b"said by the trigger\\n")
    kind = stat.S_ISFIFO(os.fstat(2).st_mode)
    return [kind, tried(read, "/proc/self/fd/2"), tried(os.ftruncate, 2, 0), tried(os.ftruncate, 1, 0)]

with DAG("d"):
    Wait("own", task_id="t")
"""


def test_the_log_of_the_process_can_be_neither_read_nor_emptied_by_triggers(walled: Remote) -> None:
    walled.dag(WAITS + OWN)
    log = walled.secret / "logs" / "triggerer.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("what the one before has said\n")
    told = walled.run("--run-id", "r")
    assert told.status == 0, told.err
    assert walled.state("t")["seen"] == [True, "PermissionError", "OSError", "OSError"]
    assert log.read_text() == "what the one before has said\nsaid by the trigger\n"


def test_links_in_a_folder_that_the_user_may_write_to_lead_nowhere(walled: Remote) -> None:
    walled.dag(WAITS + TALKS)
    logs, elsewhere = walled.folder / "logs", walled.secret / "precious"
    elsewhere.write_text("precious\n")
    place = logs / "d" / "r" / "t"
    place.mkdir(parents=True)
    (place / "trigger.log").symlink_to(elsewhere)
    told = walled.run("--run-id", "r", env={"OUTLAST__RUNNER__LOGS_DIR": str(logs)})
    assert told.status == 0, told.err
    assert elsewhere.read_text() == "precious\n"


FLOODS = """
def flood():
    from outlast.runner import trigger_logs
    until = time.monotonic() + 2
    while time.monotonic() < until:
        print("x" * 100_000)
    return 1

with DAG("d"):
    Wait("flood", task_id="t")

    @task
    def beats():
        for number in range(30):
            time.sleep(0.1)

    beats()
"""


def test_a_flood_of_text_fills_no_memory_of_the_runner_s(walled: Remote) -> None:
    walled.dag(WAITS + FLOODS)
    program, most = walled.start("--run-id", "r"), 0
    while program.process.poll() is None:
        most = max(most, resident(program))
        time.sleep(0.02)
    assert program.ends().status == 0, program.err
    assert (walled.secret / "logs" / "d" / "r" / "t" / "trigger.log").stat().st_size > 10_000_000
    assert most < 200 * 1024 * 1024
    assert "stood still" not in program.err


def resident(program: Program) -> int:
    """Return the bytes of memory a process has."""
    try:
        pages = Path(f"/proc/{program.pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")


CUTS = """
def cut():
    if first("cut"):
        for number in range(3, 64):
            try:
                if os.fstat(number).st_size in range(1, 200):
                    os.ftruncate(number, 0)
            except OSError:
                pass
        time.sleep(60)
    return "after all"

with DAG("d"):
    Wait("cut", task_id="t")
"""


def test_cutting_short_what_it_shares_with_the_runner_ends_nobody_but_the_triggerer(remote: Remote) -> None:
    remote.dag(WAITS + CUTS)
    told = remote.run("--run-id", "r")
    assert told.status == 0, told.err
    assert "the process of the triggers has ended (signal 7)" in told.err
    assert remote.state("t") == {"seen": "after all"}
