"""The process of triggers behind a server: its death and others', its token's age, and who is blamed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from outlast import connect
from outlast.requests import LIBRARY
from outlast.runner.trigger_host import BLOCKS, TriggerHost
from outlast.runner.watching import Watcher
from outlast.token_requests import MakeSecret, RevokeToken
from support.deferring import WAITS, Kept
from support.remote import Remote
from support.running import Program, exists

pytestmark = pytest.mark.http


# --- Deaths -------------------------------------------------------------------------------------------------


LASTS = """
class File(Calls):
    def serialize(self):
        return f"{__name__}.File", {"name": self.name}

    async def run(self):
        mark(f"run {os.getpid()}")
        while not (HERE / "go").exists():
            await asyncio.sleep(0.02)
        yield TriggerEvent((HERE / "go").read_text())

class Lasts(Wait):
    def execute(self, context):
        self.defer(trigger=File("go"), method_name="done")

with DAG("d"):
    Lasts("go", task_id="t")
"""


def begun(remote: Remote, times: int = 1) -> int:
    """Wait until the trigger runs; return the process of triggers."""
    remote.until(lambda: len(remote.marks) >= times, "the trigger runs")
    return int(remote.marks[-1].split()[1])


def ended(remote: Remote, program: Program) -> None:
    (remote.folder / "go").write_text("x")
    told = program.ends()
    assert told.status == 0, told.err
    assert remote.state("t") == {"seen": "x"}
    assert remote.outcomes("t") == ["success"]
    assert remote.left_soon() == []


def test_a_triggerer_that_is_killed_is_followed_by_another(remote: Remote) -> None:
    remote.dag(WAITS + LASTS)
    program = remote.start("--run-id", "r")
    os.kill(begun(remote), signal.SIGKILL)
    begun(remote, 2)
    ended(remote, program)
    assert "the process of the triggers has ended (signal 9)" in program.err


def test_a_server_that_is_killed_while_something_is_deferred_is_waited_for(remote: Remote) -> None:
    remote.dag(WAITS + LASTS)
    program = remote.start("--run-id", "r")
    triggerer = begun(remote)
    remote.server.kill()
    time.sleep(1.5)
    remote.server.start()
    assert exists(triggerer)
    ended(remote, program)


def test_a_runner_that_is_killed_takes_its_triggerer_along_and_is_followed(remote: Remote) -> None:
    remote.dag(WAITS + LASTS)
    first = remote.start("--run-id", "r")
    triggerer = begun(remote)
    first.process.kill()
    remote.until(lambda: not exists(triggerer), "the triggerer ends")
    first.ends()
    second = remote.start("--run-id", "r")
    begun(remote, 2)
    ended(remote, second)


def test_a_secret_that_is_rotated_twice_gets_the_triggers_another_token(remote: Remote) -> None:
    remote.dag(WAITS + LASTS)
    program = remote.start("--run-id", "r")
    begun(remote)
    for _ in range(2):
        remote.send(MakeSecret(LIBRARY))
    begun(remote, 2)
    ended(remote, program)


def test_the_end_of_the_runner_s_token_ends_its_triggers(remote: Remote) -> None:
    remote.dag(WAITS + LASTS)
    program = remote.start("--run-id", "r")
    triggerer = begun(remote)
    remote.send(RevokeToken(1, LIBRARY))
    assert program.ends().status == 77, program.err
    assert remote.until(lambda: not exists(triggerer))


# --- Kept at work, as another user ---------------------------------------------------------------------------


def test_a_trigger_of_another_user_that_never_lets_go_is_blamed(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Kept(remote, monkeypatch, stuck_for=1.0)
    try:
        house.run("hog", "other")
        house.defer("Hogs", "hog")
        house.defer("Talks", "other")
        house.until(lambda: house.desk.task("hog").state == "scheduled", "it is given up")
        assert len(house.said) == house.marks.count("hogging") == BLOCKS
        log = house.logs / "d" / "r" / "hog" / "trigger.log"
        assert set(house.said) == {
            f"the triggers have stood still for 1 s in that of d/r/hog, so they begin again; see {log}"
        }
        assert "holds up the event loop that all triggers share" in house.log("hog")
        house.until(lambda: "from a thread" in house.log("other"), "the other has been heard")
    finally:
        house.end()


def test_a_token_of_triggers_is_renewed_in_time(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    house = Kept(remote, monkeypatch, renew_after=0.3)
    given: list[str | None] = []
    try:
        house.run()
        house.defer("File", name="go")
        house.until(lambda: house.marks == ["run go"], "its trigger begins")
        triggerer = house.host.triggerer
        assert triggerer is not None
        for _ in range(2):  # after the second, what the first token was signed with is good no more
            remote.send(MakeSecret(LIBRARY))
            time.sleep(1.2)
            given.append(triggerer.token)
            house.until(lambda: triggerer.token != given[-1], "it gets a younger one")
        (house.folder / "go").write_text("x")
        house.until(lambda: house.desk.task("t").state == "scheduled", "it goes on")
        assert (house.said, house.host.triggerer) == ([], triggerer)
    finally:
        house.end()


def test_a_watcher_behind_a_server_keeps_state_and_tells_events(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Kept(remote, monkeypatch)
    house.watchers = [Watcher("ticks", "file:Ticks", "{}", str(house.file), (("orders", "orders"),))]
    try:
        house.until(lambda: len(house.events()) == 5, "the events of three runs")
        payloads = [json.loads(event.extra)["payload"] for event in house.events()]
        assert payloads == [{"tick": 1}, "and", {"tick": 2}, {"tick": 3}, "and"]
        entry = house.store.asset("orders", uri="orders").entry("ticks")
        assert (entry.value, entry.writer.kind, entry.writer.name) == (3, "trigger", "file:Ticks")
        log = house.logs / "watchers" / "ticks.log"
        house.until(lambda: log.exists() and "RuntimeError: broken" in log.read_text(), "its log")
    finally:
        house.end()


def test_a_store_that_is_a_file_asks_for_no_token(tmp_path: Path) -> None:
    with connect(tmp_path / "s.db") as store:
        host = TriggerHost(store, print)
        assert (host.is_remote, host.user) == (False, None)
