"""Every request that writes, with its answer lost: it happens once, and the store is as if nothing had been lost.

Two stores are brought to the same state; one gets the request over a connection that is cut: to PostgreSQL, where the
COMMIT or its answer is lost, or to a server, where the answer to the call is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from outlast import Store, connect
from outlast.backends import open_backend
from outlast.backends.answers import WRITES
from outlast.backends.postgres import PostgresBackend
from outlast.backends.postgres_session import CommitLost
from outlast.config import ClientSettings
from outlast.run_requests import ListRuns
from outlast.wire import REPLIES
from support.clock import Clock
from support.cutting import CommitCutter
from support.homes import PostgresHome, settings
from support.postgres import server
from support.servers import Proxy, house
from support.writing import MADE, Stage, type_of

pytestmark = pytest.mark.postgres

#: What differs from store to store, whatever is asked: numbers of transactions, and random bytes.
RANDOM = {"feed": {"xid", "number"}, "secret": {"content"}, "meta": {"content"}}


class Twin:
    """A store with one stage after the other, and what is in it."""

    def __init__(self) -> None:
        self.home, self.clock = PostgresHome(Path()), Clock()
        self.store = self.home.open(settings(), self.clock)
        self.stages = 0

    def begin(self) -> Twin:
        """Set up another stage."""
        self.stages += 1
        self.stage = Stage(self.store, self.clock, self.stages)
        return self

    def close(self) -> None:
        self.store.close()
        self.home.close()

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return every row of every table, without what differs from store to store and what is kept of calls."""
        names = self.home.rows().keys() - {"receipt"}
        with psycopg.connect(server().url, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
            place = f"select * from {self.home.schema}"
            found = {name: connection.execute(f'{place}."{name}"').fetchall() for name in names}
        return {name: sorted((_stable(name, row) for row in rows), key=str) for name, rows in found.items()}


def _stable(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column not in RANDOM.get(table, ())}


class Twins:
    """Two stores in the same state: one for which all goes well, one for which it does not."""

    def __init__(self) -> None:
        self.pairs: dict[str, tuple[Twin, Twin]] = {}

    def of(self, kind: str) -> tuple[Twin, Twin]:
        """Return the pair for one kind of test, with a new stage each; a pair that has come apart is not used again."""
        well, badly = self.pairs.pop(kind, None) or (Twin(), Twin())
        return well.begin(), badly.begin()

    def are_alike(self, kind: str, pair: tuple[Twin, Twin]) -> None:
        self.pairs[kind] = pair

    def close(self) -> None:
        for pair in self.pairs.values():
            for twin in pair:
                twin.close()


@pytest.fixture(scope="module")
def pairs() -> Iterator[Twins]:
    pairs = Twins()
    yield pairs
    pairs.close()


def test_every_request_that_writes_is_among_those_made() -> None:
    assert {type_of(name) for name in MADE} == {kind.__name__ for kind in WRITES}


# --- Between the store and PostgreSQL -------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["question", "answer"])
@pytest.mark.parametrize("name", MADE)
def test_a_commit_that_is_lost_happens_once(pairs: Twins, name: str, lost: Any) -> None:
    well, badly = pairs.of(lost)
    cutter = CommitCutter(badly.home.schema)
    backend = open_backend(cutter.url, settings(), badly.clock)
    cutter.next = lost
    replies = well.stage.backend.send(MADE[name](well.stage)), backend.send(MADE[name](badly.stage))
    backend.close()
    cutter.close()
    assert cutter.cuts == 1
    if lost == "answer":
        assert replies[0] == replies[1]
        assert badly.tables() == well.tables()
    else:  # ids that were given in the lost transaction are not given again
        assert msgspec.json.encode(replies[0]).count(b":") == msgspec.json.encode(replies[1]).count(b":")
        assert badly.home.rows() == well.home.rows()
    pairs.are_alike(lost, (well, badly))


@pytest.mark.parametrize("name", MADE)
def test_what_was_written_leaves_a_trace_by_which_it_is_known(pairs: Twins, name: str) -> None:
    """A server that crashed gives its number again, and the other transaction may have been committed."""
    well, twin = pairs.of("trace")
    cutter = CommitCutter(twin.home.schema)
    backend = open_backend(cutter.url, settings(), twin.clock)
    assert isinstance(backend, PostgresBackend)
    asked: list[CommitLost] = []
    find_out = backend._was_committed

    def noting(lost: CommitLost) -> bool:
        asked.append(lost)
        return find_out(lost)

    backend._was_committed = noting  # type: ignore[method-assign]
    cutter.next = "answer"
    backend.send(MADE[name](twin.stage))
    (lost,) = asked
    other = CommitLost(lost.xid, lost.at - 1, lost.has_noted, lost.receipt)
    assert [find_out(lost), find_out(other)] == [True, False]
    backend.close()
    cutter.close()
    pairs.are_alike("trace", (well, twin))


# --- Between a client and the server --------------------------------------------------------------------------


def client_of(twin: Twin, proxy: Proxy) -> tuple[Store, str]:
    """Serve a twin's store once more; return a client of it behind a proxy, and where it is served."""
    url, token = house().move_in(twin.home.open(settings(), twin.clock))
    config = msgspec.structs.replace(settings(), client=ClientSettings(token=token))
    return connect(f"{proxy.url}/{url.rpartition('/')[2]}", config=config, clock=twin.clock), url


@pytest.mark.http
@pytest.mark.parametrize("name", [name for name in MADE if type_of(name) in {kind.__name__ for kind in REPLIES}])
def test_a_call_whose_answer_is_lost_happens_once(pairs: Twins, name: str) -> None:
    well, badly = pairs.of("call")
    with Proxy(house().url) as direct, Proxy(house().url) as proxy:
        clients = client_of(well, direct), client_of(badly, proxy)
        requests = MADE[name](well.stage), MADE[name](badly.stage)
        clients[1][0].backend.send(ListRuns())  # a new connection that breaks would be asked first whether it is TLS
        proxy.lose_answers = 1
        replies = [client.backend.send(request) for (client, _), request in zip(clients, requests, strict=True)]
        assert proxy.lose_answers == 0
        for client, url in clients:
            client.close()
            house().move_out(url)
    assert replies[0] == replies[1]
    assert badly.tables() == well.tables()
    pairs.are_alike("call", (well, badly))
