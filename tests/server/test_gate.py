"""The way from a route to the backend: rights, batches, call ids, the library's verbs in somebody's name."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from outlast import Conflict, InvalidValue, NotFound, Store, Unauthorized, connect, wire
from outlast.backends.sqlite import SQLiteBackend
from outlast.people_requests import MarkTask
from outlast.requests import Check, Commit, Found, Increment, Open, Opened, Part, Put, Read
from outlast.server.gate import MOST_TOGETHER, Gate
from outlast.server.identity import Who
from outlast.state import TaskState
from outlast.values import TaskScope, Writer
from support.clock import Clock
from support.homes import settings
from support.public import open_door
from support.runs import ANN

pytestmark = pytest.mark.http

ADMIN = Who("admin", "ann@desk", token_id=1)
OTHER = Who("admin", "bob@desk", token_id=2)
SCOPE = TaskScope("dag", "run", "task")
NOW, SECOND = 10**15, 1_000_000


class Slow(SQLiteBackend):
    """Writes nothing before it is told to, and tells what came together."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.go = threading.Event()
        self.sizes: list[int] = []

    def send(self, request: Any) -> Any:
        if type(request) is Commit:
            self._come(1)
        return super().send(request)

    def send_batch(self, requests: Sequence[Any]) -> list[Any]:
        self._come(len(requests))
        return super().send_batch(requests)

    def _come(self, number: int) -> None:
        self.go.wait(20)
        self.sizes.append(number)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with connect(tmp_path / "store.db", config=settings()) as store:
        yield store


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Store]:
    config = settings()
    backend = Slow(str(tmp_path / "store.db"), config, lambda: NOW)
    with Store(backend, "store.db", "argument", config, lambda: NOW) as store:
        yield store


def increment(key: str = "number", scope: TaskScope = SCOPE) -> Commit:
    return Commit((Part(scope, (Increment(key, 1, None),)),))


def asked(store: Store, *calls: Any) -> list[Any]:
    """Make calls of a gate all at once; return replies and errors."""

    async def main() -> list[Any]:
        gate = Gate(store)
        try:
            return await asyncio.gather(*(call(gate) for call in calls), return_exceptions=True)
        finally:
            await gate.close()

    return asyncio.run(main())


def test_what_queues_up_while_a_batch_is_written_is_the_next_batch(slow: Store) -> None:
    backend: Any = slow.backend

    async def main() -> list[Any]:
        gate = Gate(slow)
        calls = [asyncio.ensure_future(gate.ask(increment(), ADMIN))]
        await asyncio.sleep(0.05)
        calls += [asyncio.ensure_future(gate.ask(increment(), ADMIN)) for _ in range(99)]
        await asyncio.sleep(0.05)
        backend.go.set()
        answers = await asyncio.gather(*calls)
        await gate.close()
        return answers

    answers = asyncio.run(main())
    assert [answer.rows[0][0].text for answer in answers] == [str(number) for number in range(1, 101)]
    assert backend.sizes == [1, MOST_TOGETHER, 99 - MOST_TOGETHER]


def test_a_batch_is_not_larger_than_its_bytes(slow: Store) -> None:
    backend: Any = slow.backend
    text = '"' + "x" * 400_000 + '"'

    async def main() -> None:
        gate = Gate(slow)
        puts = [Commit((Part(SCOPE, (Put(f"key{number}", text, None),)),)) for number in range(5)]
        calls = [asyncio.ensure_future(gate.ask(put, ADMIN)) for put in puts]
        await asyncio.sleep(0.05)
        backend.go.set()
        await asyncio.gather(*calls)
        await gate.close()

    asyncio.run(main())
    assert backend.sizes == [2, 2, 1]


def test_in_a_batch_each_fails_alone(store: Store) -> None:
    wrong = Commit((Part(SCOPE, (Check("number", 77), Put("number", "1", None))),))
    answers = asked(store, *(lambda gate, one=one: gate.ask(one, ADMIN) for one in [increment(), wrong, increment()]))
    assert [type(answer).__name__ for answer in answers] == ["Receipt", "Conflict", "Receipt"]
    assert store.task(SCOPE).get("number") == 2


def test_what_no_backend_expects_fails_alone_too(store: Store) -> None:
    odd = Commit((Part(SCOPE, (Put("key", "1", 2**70),)),))  # more than a database's integer
    answers = asked(store, *(lambda gate, one=one: gate.ask(one, ADMIN) for one in [increment(), odd, increment()]))
    assert [type(answer).__name__ for answer in answers] == ["Receipt", "OverflowError", "Receipt"]


def test_reads_do_not_wait_for_writes(slow: Store) -> None:
    backend: Any = slow.backend

    async def main() -> Any:
        gate = Gate(slow)
        write = asyncio.ensure_future(gate.ask(increment(), ADMIN))
        async with asyncio.timeout(10):
            found = await gate.ask(Read(SCOPE, None), ADMIN)
        assert not write.done()
        backend.go.set()
        await write
        await gate.close()
        return found

    assert asyncio.run(main()) == Found(0, 0, ())


def test_one_who_gives_up_does_not_stop_the_others(slow: Store) -> None:
    backend: Any = slow.backend

    async def main() -> Any:
        gate = Gate(slow)
        first, second = (asyncio.ensure_future(gate.ask(increment(), ADMIN)) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        backend.go.set()
        answer = await second
        await gate.close()
        return answer.rows[0][0].text

    assert asyncio.run(main()) == "2"


# --- call ids ----------------------------------------------------------------------------------------------


def test_under_one_call_id_a_commit_is_applied_once(store: Store) -> None:
    first, second = asked(store, *[lambda gate: gate.ask(increment(), ADMIN, "call")] * 2)
    assert first == second
    assert store.task(SCOPE).get("number") == 1


def test_any_other_write_too(store: Store) -> None:
    open_new = Open(SCOPE, None)
    answers = asked(store, *[lambda gate: gate.ask(open_new, ADMIN, "call")] * 2)
    assert answers == [Opened(1, answers[0].scope_id)] * 2


def test_nobody_gets_the_receipt_of_another(store: Store) -> None:
    open_new = Open(SCOPE, None)
    answers = asked(
        store,
        lambda gate: gate.ask(increment(), ADMIN, "call"),
        lambda gate: gate.ask(increment(), OTHER, "call"),
        lambda gate: gate.ask(open_new, ADMIN, "open"),
        lambda gate: gate.ask(open_new, OTHER, "open"),
    )
    assert store.task(SCOPE).get("number") == 2
    assert {answer.attempt for answer in answers[2:]} == {1, 2}


def test_a_commit_id_of_ones_own_making_counts_for_nothing(store: Store) -> None:
    forged = Commit((Part(SCOPE, (Increment("number", 1, None),)),), commit_id="token 1:call")
    asked(store, lambda gate: gate.ask(increment(), ADMIN, "call"))
    asked(store, *[lambda gate: gate.ask(forged, OTHER)] * 2)
    assert store.task(SCOPE).get("number") == 3


# --- clocks that differ (contract 3.2) ---------------------------------------------------------------------


@pytest.mark.parametrize("away", [-6 * SECOND, 6 * SECOND, 3600 * SECOND])
def test_expiry_is_corrected_for_a_writer_whose_clock_is_wrong(
    slow: Store, away: int, caplog: pytest.LogCaptureFixture
) -> None:
    slow.backend.go.set()  # type: ignore[attr-defined]
    sent = NOW + away
    puts = (Put("x", "1", sent + 60 * SECOND), Increment("y", 1, sent + 60 * SECOND), Put("z", "1", None))
    request = Commit((Part(SCOPE, puts),), sent_at=sent)
    with caplog.at_level(logging.WARNING, "outlast.server"):
        receipts = asked(slow, *[lambda gate: gate.ask(request, ADMIN)] * 3)
    ends = [[row.expires_at for row in receipt.rows[0]] for receipt in receipts]
    assert ends == [[NOW + 60 * SECOND, NOW + 60 * SECOND, None]] * 3
    [said] = [record.message for record in caplog.records if "clock" in record.message]
    assert f"of ann@desk is {away / SECOND:.1f} s away" in said


def test_what_a_commit_waits_for_in_the_server_is_no_skew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A database that is away for a minute made every writer's clock look wrong."""
    clock, config = Clock(), settings()
    backend = Slow(str(tmp_path / "store.db"), config, clock)
    sent = clock.now
    request = Commit((Part(SCOPE, (Put("x", "1", sent + 90 * SECOND),)),), sent_at=sent)

    async def main(store: Store) -> Any:
        gate = Gate(store)
        answer = asyncio.ensure_future(gate.ask(request, ADMIN))
        await asyncio.sleep(0.05)
        clock.move(seconds=60)
        backend.go.set()
        receipt = await answer
        await gate.close()
        return receipt.rows[0][0].expires_at

    with Store(backend, "store.db", "argument", config, clock) as store:
        expires_at = asyncio.run(main(store))
    assert expires_at == sent + 90 * SECOND
    assert not [record for record in caplog.records if "clock" in record.message]


# --- rights ------------------------------------------------------------------------------------------------


def test_rights_hold_before_anything_is_done(store: Store) -> None:
    viewer = Who("viewer", "vic@desk", ("other*",))
    (refused, unseen) = asked(
        store, lambda gate: gate.ask(increment(), viewer), lambda gate: gate.ask(Read(SCOPE, None), viewer)
    )
    assert (type(refused), type(unseen)) == (Unauthorized, NotFound)
    assert store.scopes() == []


def test_a_secret_in_a_conflict_is_masked(tmp_path: Path) -> None:
    config = settings(secret_keys=("password",))
    with connect(tmp_path / "store.db", config=config) as store:
        store.task(SCOPE).set("password", "hunter2")
        commit = Commit((Part(SCOPE, (Check("password", None), Put("password", "1", None))),))
        (refused,) = asked(store, lambda gate: gate.ask(commit, Who("editor", "eve@desk")))
    assert isinstance(refused, Conflict)
    assert "hunter2" not in repr(refused.current)


def test_the_librarys_verbs_go_through_the_gate(store: Store) -> None:
    async def main() -> None:
        gate = Gate(store)
        state = TaskState(gate.backend_for(ADMIN), SCOPE, store.config, store.clock, Writer("person", name="forged"))
        await state.aset("key", [1])
        assert await state.aget("key") == [1]
        assert (await state.aentry("key")).writer == Writer("person", name="ann@desk")  # type: ignore[union-attr]
        with pytest.raises(InvalidValue):
            await state.aset("key", None)
        with pytest.raises(TypeError, match="awaiting twin"):
            state.get("key")
        await gate.close()

    asyncio.run(main())


@pytest.mark.parametrize("clears", [False, True])
def test_whether_success_takes_the_state_away_is_the_server_s_to_say(tmp_path: Path, clears: bool) -> None:
    with open_door(tmp_path, clear_on_success=clears) as door:
        door.desk().start("load")
        state = door.store.task("etl/r1/load")
        state.set("page", 7)
        marking = wire.encode_call(MarkTask(state.scope, "success", ANN, clear_state=not clears))
        assert door.as_role("editor").post("/execution/call", text=marking).status == 200
        kept = [version.value for version in state.history("page") if not version.deleted]
        assert kept == ([] if clears else [7])
