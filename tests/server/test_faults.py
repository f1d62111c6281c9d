"""Faults by the hundred between client, server and database: every acknowledged commit is there, and none twice.

Each commit adds one to a number and leaves a key of its own, so that the store holds a ledger to compare with what was
acknowledged. A long run has ten times as many faults.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from outlast import Store, connect
from outlast.config import ClientSettings
from outlast.requests import Commit, Increment, Part, Put, Receipt
from outlast.values import TaskScope
from support.cutting import Cutter, PostgresCutter
from support.homes import PostgresHome, settings
from support.postgres import Server, made, server
from support.restarting import RestartingServer, Shared
from support.servers import house

SCOPE = TaskScope("dag", "run", "task")
SENDERS = 4


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and databases are back at once."""
    monkeypatch.setattr("outlast.backends.http.LONGEST_PAUSE", 0.1)


@pytest.fixture
def times(soak: bool) -> int:
    return 10 if soak else 1


class Ledger:
    """Sends commits from several threads, each until it is acknowledged, and holds the store to it."""

    def __init__(self, stores: list[Store]) -> None:
        self.stores = stores
        self.acknowledged: dict[str, int] = {}
        self.failed: list[BaseException] = []

    def write_until(self, enough: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Write while something else is done, and until there was enough of what goes wrong."""
        over = threading.Event()
        threads = [threading.Thread(target=self._write, args=(number, over)) for number in range(SENDERS)]
        for thread in threads:
            thread.start()
        try:
            meanwhile()
            while not enough() and not self.failed:
                time.sleep(0.005)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert self.failed == []

    def _write(self, sender: int, over: threading.Event) -> None:
        backend, number = self.stores[sender % len(self.stores)].backend, 0
        try:
            while not over.is_set():
                number += 1
                name = f"{sender}.{number}"
                adding = Part(SCOPE, (Increment("n", 1, None), Put(name, "1", None)))
                receipt: Receipt = backend.send(Commit((adding,)))
                row = receipt.rows[0][0]
                assert row is not None
                assert row.text is not None
                self.acknowledged[name] = int(row.text)
        except BaseException as error:
            self.failed.append(error)

    def holds(self, store: Store) -> None:
        """Compare what was acknowledged with what is stored: each is there, once, and nothing else."""
        values = dict(store.task(SCOPE).items())
        count = len(self.acknowledged)
        assert values.pop("n") == count
        assert values.keys() == self.acknowledged.keys()
        assert sorted(self.acknowledged.values()) == list(range(1, count + 1))
        (info,) = store.scopes()
        assert info.revision == count


def client(url: str, token: str) -> Store:
    return connect(url, config=msgspec.structs.replace(settings(), client=ClientSettings(token=token, retry_for=120)))


@contextmanager
def behind_cutter(store: Store, cutter: Cutter) -> Iterator[Store]:
    """Serve a store, and open it through what cuts connections."""
    url, token = house().move_in(store)
    with client(f"http://{cutter.place}/{url.rpartition('/')[2]}", token) as opened:
        yield opened
    cutter.close()
    house().move_out(url)


def port() -> int:
    return int(house().url.rpartition(":")[2])


@pytest.mark.timeout(900)
def test_connections_to_a_server_are_cut(tmp_path: Path, times: int) -> None:
    """Before a call, in the middle of it, before its answer and in the middle of that."""
    store, cutter, wanted = connect(tmp_path / "store.db", config=settings()), Cutter(port()), 600 * times
    with behind_cutter(store, cutter) as opened:
        ledger = Ledger([opened])
        cutter.chance = 0.4
        ledger.write_until(lambda: cutter.cuts >= wanted)
        cutter.chance = 0.0
        ledger.holds(store)
    assert (cutter.cuts >= wanted, cutter.swallowed > wanted / 2) == (True, True)


@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_connections_to_two_servers_and_from_them_to_the_database_are_cut(tmp_path: Path, times: int) -> None:
    home, wanted = PostgresHome(tmp_path), 150 * times
    backs = [PostgresCutter(server().port, seed, home.schema) for seed in range(2)]
    fronts = [Cutter(port(), seed) for seed in range(2)]
    stores = [connect(back.url, config=settings()) for back in backs]
    with behind_cutter(stores[0], fronts[0]) as first, behind_cutter(stores[1], fronts[1]) as second:
        ledger = Ledger([first, second])
        for cutter in (*backs, *fronts):
            cutter.chance = 0.3
        ledger.write_until(lambda: min(sum(each.cuts for each in row) for row in (backs, fronts)) >= wanted)
        for cutter in (*backs, *fronts):
            cutter.chance = 0.0
        ledger.holds(stores[0])
    for back in backs:
        back.close()
    home.close()


@pytest.mark.timeout(900)
def test_the_server_is_killed(tmp_path: Path, times: int) -> None:
    shared, wanted = Shared(str(tmp_path / "shared")), 60 * times
    place = str(tmp_path / "store.db")
    served = RestartingServer(place, settings(), shared)
    with client(served.url, served.token) as opened:
        ledger = Ledger([opened])
        ledger.write_until(lambda: served.lives > wanted)
        served.close()
    with connect(place) as store:
        ledger.holds(store)
        assert store.inspect(deep=True).problems == ()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A PostgreSQL of the test's own, which may be restarted."""
    own = made()
    yield own
    own.remove()


@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_two_servers_are_killed_and_their_database_crashes(own_server: Server, tmp_path: Path, times: int) -> None:
    with connect(own_server.url):
        pass
    shared = [Shared(str(tmp_path / f"shared{number}")) for number in range(2)]
    served = [RestartingServer(own_server.url, settings(), each, chance=0.03) for each in shared]
    stores = [client(each.url, each.token) for each in served]
    ledger = Ledger(stores)

    def crash() -> None:
        for _ in range(4 * times):
            time.sleep(0.5)
            own_server.restart("immediate")

    ledger.write_until(lambda: sum(each.lives for each in served) > 40 * times, crash)
    for each, store in zip(served, stores, strict=True):
        each.close()
        store.close()
    with connect(own_server.url) as store:
        ledger.holds(store)
