"""Event streams of several servers over one PostgreSQL, with writers in all of them: each ends up with the truth."""

from __future__ import annotations

import itertools
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from outlast import Store, connect
from outlast.config import ClientSettings, Config
from outlast.values import system_clock
from support.homes import PostgresHome
from support.postgres import server
from support.servers import house
from support.streams import EventStream

pytestmark = pytest.mark.postgres


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[tuple[str, str]]]:
    """Serve one database twice: URLs and tokens."""
    home = PostgresHome(tmp_path)
    places = [house().move_in(connect(home.url)) for _ in range(2)]
    yield places
    for url, _ in places:
        house().move_out(url)
    home.close()


def opened(place: tuple[str, str]) -> Store:
    return connect(place[0], config=Config(client=ClientSettings(token=place[1])))


def write(store: Store, task: str, over: threading.Event) -> None:
    state = store.task(f"etl/r1/{task}")
    for number in itertools.count(1):
        if over.is_set():
            return
        state.set_many({f"k{key}": number for key in range(number % 4 + 1)})
        if number % 5 == 0:
            state.delete("k0")


class Follower:
    """Keeps what a stream tells, and holds it to what a stream promises."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Any] = {}
        self.revisions: dict[tuple[str, str], int] = {}

    def follow(self, stream: EventStream, events: int) -> None:
        """Take so many events, or all up to the end of all."""
        for _ in range(events):
            told = stream.next()
            assert told is not None
            if told.name == "reset":
                self.known = {}
            if told.name != "entry":
                continue
            place = told.data["scope"]["task_id"], told.data["key"]
            assert told.data["revision"] > self.revisions.get(place, 0)
            self.revisions[place] = told.data["revision"]
            self.known.pop(place, None)
            if not told.data["deleted"]:
                self.known[place] = told.data["value"]
            if place[0] == "end":
                return


@pytest.mark.parametrize("begin", [None, "start"])
def test_a_client_that_goes_from_server_to_server_ends_up_with_the_truth(
    servers: list[tuple[str, str]], begin: str | None
) -> None:
    stores = [opened(place) for place in servers]
    over = threading.Event()
    writers = [threading.Thread(target=write, args=(stores[number % 2], f"t{number}", over)) for number in range(4)]
    follower, last_id = Follower(), None
    with EventStream(*servers[0], **({} if begin is None else {"after": begin})) as stream:
        assert stream.take(1 if begin is None else 2)[-1] == "position"
        for writer in writers:
            writer.start()
        follower.follow(stream, 7)
        last_id = stream.last_id
    for hop in range(1, 8):
        with EventStream(*servers[hop % 2], last_id, **({} if begin is None else {"after": begin})) as stream:
            follower.follow(stream, 9)
            last_id = stream.last_id
    over.set()
    for writer in writers:
        writer.join()
    stores[0].task("etl/r1/end").set("end", 1)
    with EventStream(*servers[1], last_id) as stream:
        follower.follow(stream, 10_000)
    truth = {(f"t{n}", key): value for n in range(4) for key, value in stores[0].task(f"etl/r1/t{n}").items()}
    assert follower.known == {**truth, ("end", "end"): 1}
    for store in stores:
        store.close()


def test_what_one_server_writes_is_on_a_stream_of_another_within_a_second(servers: list[tuple[str, str]]) -> None:
    with opened(servers[0]) as store, EventStream(*servers[1]) as stream:
        stream.take(1)
        state = store.task("etl/r1/load")
        for number in range(3):
            state.set("a", number)
            began = time.monotonic()
            assert stream.take(1) == [("a", number)]
            assert time.monotonic() - began < 1


# --- Behind a transaction of somebody else's ------------------------------------------------------------------

KEYS = ["before", "k0", "k1", "k2"]


@contextmanager
def foreign_transaction() -> Iterator[psycopg.Connection[Any]]:
    """Keep a transaction open that has a number, in another database of the cluster."""
    with psycopg.connect(server().url.replace("/postgres", "/template1"), application_name="foreign") as connection:
        connection.execute("select pg_current_xact_id()")
        yield connection
        connection.rollback()


def test_a_foreign_transaction_delays_events_and_none_is_lost(servers: list[tuple[str, str]]) -> None:
    with opened(servers[0]) as store, EventStream(*servers[0]) as here, EventStream(*servers[1]) as there:
        state = store.task("etl/r1/load")
        for stream in (here, there):
            assert stream.take(1) == ["position"]
        state.set("before", 0)
        for stream in (here, there):
            assert stream.take(1) == [("before", 0)]
        with foreign_transaction():
            for number in range(3):
                state.set(f"k{number}", number)
            assert state.get("k2") == 2
            (reset,) = state.watch(timeout=0)
            assert [entry.key for entry in reset.entries] == KEYS
            assert there.rest(0.6) == []
            with EventStream(*servers[1], here.last_id) as again:  # who comes back meanwhile waits as well
                assert again.rest(0.3) == []
        began = time.monotonic()
        assert here.take(3) == [("k0", 0), ("k1", 1), ("k2", 2)]
        assert time.monotonic() - began < 1
    with EventStream(*servers[1], there.last_id) as there:
        assert there.take(3) == [("k0", 0), ("k1", 1), ("k2", 2)]
        assert there.rest(0.3) == []


def test_what_was_present_is_not_told_again_when_a_foreign_transaction_ends(servers: list[tuple[str, str]]) -> None:
    """However long that has lasted; what was written after the present state is told then."""
    with opened(servers[0]) as store, EventStream(*servers[1], after="start") as stream:
        state = store.task("etl/r1/load")
        assert stream.take(2) == ["reset", "position"]
        with ExitStack() as opened_meanwhile:
            with foreign_transaction():
                state.set("k0", 1)
                state.set("k0", 2)
                later = opened_meanwhile.enter_context(EventStream(*servers[1], after="start"))
                assert later.take(3) == ["reset", ("k0", 2), "position"]
                state.set("k1", 3)
                with EventStream(*servers[1], later.last_id) as again:
                    assert again.rest(0.3) == []
            assert later.take(1) == [("k1", 3)]
        assert stream.take(2) == [("k0", 2), ("k1", 3)]


@pytest.mark.parametrize("age", [5, 15])
def test_health_names_the_transaction_that_delays_events_for_long(tmp_path: Path, age: int) -> None:
    home = PostgresHome(tmp_path)
    url, token = house().move_in(connect(home.url, clock=lambda: system_clock() - age * 1_000_000))
    with opened((url, token)) as store, foreign_transaction() as foreign:
        store.task("etl/r1/load").set("key", 1)
        told = health(url, token)["problems"]
        inspected = store.inspect().problems
        pid = foreign.info.backend_pid
    house().move_out(url)
    home.close()
    if age < 10:
        assert (told, inspected) == ([], ())
    else:
        assert [f"select pg_terminate_backend({pid}) ends it" in text for text in (*told, *inspected)] == [True, True]
        assert told[0].startswith("events are held back since 20")
        assert ("template1" in told[0], "template1" in inspected[0]) == (False, True)


def health(url: str, token: str) -> Any:
    asked = urllib.request.Request(f"{url}/api/outlast/v1/health", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return msgspec.json.decode(answer.read())
