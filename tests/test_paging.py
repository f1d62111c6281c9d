"""Pages of rows end where their values have grown large, and go on from there: nothing is missed or comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from outlast import Store, connect
from outlast.backends import paging
from outlast.people_requests import AuditPage, ListAudit
from outlast.requests import Commit, Feed, FeedPage, Find, FindPage, Found, Part, Put, Read
from outlast.values import TaskScope, Writer
from support import postgres

SCOPE = TaskScope("etl", "r1", "load")
MIB = 1024 * 1024


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        url = str(tmp_path / "store.db")
    else:
        url = f"{postgres.server().url}?schema=paging_{tmp_path.name}"
    with connect(url) as store:
        yield store


def fill(store: Store) -> dict[str, int]:
    """Store values of 1.5 MiB, one that alone is larger than a page, and small ones; return their bytes of JSON."""
    state, sizes = store.task(SCOPE), {}
    for name, length in [*((f"b{number}", 3 * MIB // 2) for number in range(5)), ("c", 6 * MIB), ("d", 10), ("e", 10)]:
        state.set(name, "x" * length)
        sizes[name] = length + 2
    state.set("gone", "x" * MIB)
    state.delete("gone")
    return sizes


def whole(pages: list[list[tuple[str, int]]]) -> dict[str, int]:
    rows = [row for page in pages for row in page]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


PAGES = [["b0", "b1"], ["b2", "b3"], ["b4"], ["c"], ["d", "e"]]


def test_pages_across_scopes(store: Store) -> None:
    sizes, after, pages = fill(store), None, []
    while not pages or after is not None:
        page: FindPage = store.backend.send(Find("etl", after=after))
        pages.append([(found.row.name, len(found.row.text or "")) for found in page.rows])
        after = page.after
    assert whole(pages) == sizes
    assert [[name for name, _ in page] for page in pages] == PAGES


def test_pages_of_a_scope(store: Store) -> None:
    sizes, more, pages = fill(store), True, []
    while more:
        after = pages[-1][-1][0] if pages else None
        found: Found = store.backend.send(Read(SCOPE, None, after=after, limit=50))
        pages.append([(row.name, len(row.text or "")) for row in found.rows])
        more = found.more
    assert whole(pages) == sizes
    assert [[name for name, _ in page] for page in pages] == PAGES


def test_who_asks_for_no_page_gets_everything(store: Store) -> None:
    sizes = fill(store)
    found: Found = store.backend.send(Read(SCOPE, None))
    assert ({row.name: len(row.text or "") for row in found.rows}, found.more) == (sizes, False)


def test_pages_of_the_feed(store: Store) -> None:
    begin = store.backend.send(Feed()).position
    state = store.task(SCOPE)
    state.set_many({f"a{number}": "x" * (3 * MIB // 2) for number in range(3)})  # one commit, left in its middle
    store.task("etl/r1/sum").set_many({"b": "x" * (6 * MIB), "c": 1, "d": "x" * 5000})
    state.set("a0", "x" * (3 * MIB // 2))
    state.set("gone", "x" * MIB)
    state.delete("gone")
    pages, position, more = [], begin, True
    while more:
        page: FeedPage = store.backend.send(Feed(position))
        assert not page.reset
        pages.append([(row.row.name, len(row.row.text or "")) for row in page.rows if row.row])
        position, more = page.position, page.more
    big = 3 * MIB // 2 + 2
    assert pages == [
        [("a1", big), ("a2", big)],
        [("b", 6 * MIB + 2)],
        [("c", 1), ("d", 5002), ("a0", big), ("gone", 0)],
    ]
    assert store.backend.send(Feed(position)).rows == ()


def test_pages_of_the_audit_log(store: Store) -> None:
    person = Writer("person", name="ann")
    for start in range(0, 90, 30):
        puts = tuple(Put(f"k{number:02}", f'"{"x" * 60_000}"', None) for number in range(start, start + 30))
        store.backend.send(Commit((Part(SCOPE, puts),), None, person))
    pages, before = [], None
    while not pages or before is not None:
        page: AuditPage = store.backend.send(ListAudit(before))
        pages.append([row.name for row in page.rows])
        before = page.before
    assert list(chain.from_iterable(pages)) == [f"k{number:02}" for number in reversed(range(90))]
    assert [len(names) for names in pages] == [69, 21]


def test_a_limit_is_kept_in_rows_too(store: Store) -> None:
    state = store.task(SCOPE)
    state.set_many({f"k{number}": number for number in range(5)})
    page = store.backend.send(Find("etl", limit=3))
    assert [found.row.name for found in page.rows] == ["k0", "k1", "k2"]
    assert [found.row.name for found in store.backend.send(Find("etl", limit=3, after=page.after)).rows] == ["k3", "k4"]
    assert store.backend.send(Find("etl", limit=3, after=page.after)).after is None
    assert [row.name for row in store.backend.send(Read(SCOPE, None, limit=2, offset=1)).rows] == ["k1", "k2"]
    assert store.backend.send(Read(SCOPE, None, limit=0)).rows == ()
    assert len(store.backend.send(Find("etl", limit=10**12)).rows) == 5


def test_scopes_come_in_their_order_also_where_they_are_chosen(store: Store) -> None:
    """Not in the order of their names, by which they are found."""
    places = [TaskScope("etl", run, task) for run in ("r2", "r1") for task in ("z", "a", "m")]
    for place in places:
        store.task(TaskScope("other", place.run_id, place.task_id)).set("k0", 0)
        store.task(place).set_many({"k1": 1, "k0": "x" * MIB})
    for chosen in (Find("etl"), Find("etl", limit=3), Find("etl", "r1", limit=1), Find(task_id="a"), Find(run_id="r2")):
        after, told = None, []
        while not told or after is not None:
            page: FindPage = store.backend.send(msgspec.structs.replace(chosen, after=after))
            told += [(found.scope, found.row.name) for found in page.rows]
            after = page.after
        known = [scope for each in places for scope in (TaskScope("other", each.run_id, each.task_id), each)]
        fitting = [scope for scope in known if _is_chosen(scope, chosen)]
        expected = [(scope, name) for scope in fitting for name in ("k0", "k1")]
        assert told == [(scope, name) for scope, name in expected if scope.dag_id == "etl" or name == "k0"]


def _is_chosen(scope: TaskScope, chosen: Find) -> bool:
    pairs = ((scope.dag_id, chosen.dag_id), (scope.run_id, chosen.run_id), (scope.task_id, chosen.task_id))
    return all(wanted in (None, has) for has, wanted in pairs)


@pytest.mark.parametrize(
    ("sizes", "number"), [([], 0), ([None, 0], 2), ([paging.PAGE_BYTES, 0, 1], 2), ([paging.PAGE_BYTES + 1, 0], 1)]
)
def test_a_page_has_a_row_at_least(sizes: list[int | None], number: int) -> None:
    page, more = paging.page_of((size,) for size in sizes)
    assert (len(page), more) == (number, number < len(sizes))
