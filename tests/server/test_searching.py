"""Searches by value: others are answered meanwhile, and what is found has an end in bytes, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.finding import Where
from outlast.server.turns import Turns
from support.public import V1, Door, open_door

PLACE = V1 + "/runs/etl/r1/tasks/load/state/other"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        yield door


def test_others_write_while_a_search_looks_at_many_values(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    many: list[Any] = [[] for _ in range(2000)]
    door.task().set_many({f"k{number:03}": many for number in range(1000)})
    happened, done, looks_at = list[str](), threading.Event(), Where.accepts

    def noted(where: Where, value: Any) -> bool:
        happened.append("looked")
        return looks_at(where, value)

    def write() -> None:
        while not done.is_set():
            assert door.put(PLACE, value=1).status == 200
            happened.append("written")

    monkeypatch.setattr(Where, "accepts", noted)
    viewer, writer = door.as_role("viewer"), threading.Thread(target=write)
    writer.start()
    answer = viewer.get(V1 + "/find?where=$.absent")
    done.set()
    writer.join()
    assert (answer.status, answer.json()) == (200, {"found": [], "more": False})
    assert happened.count("looked") >= 1000
    first, last = happened.index("looked"), len(happened) - happened[::-1].index("looked")
    assert "written" in happened[first:last]


def test_a_search_by_value_goes_through_all_pages(door: Door) -> None:
    state = door.task()
    state.set_many({f"k{number}": {"n": number, "text": "x" * 1_500_000} for number in range(5)})
    found = door.get(V1 + "/find?where=$.n >= 3".replace(" ", "%20")).json()
    assert [(each["entry"]["key"], each["entry"]["value"]["n"]) for each in found["found"]] == [("k3", 3), ("k4", 4)]
    assert found["more"] is False
    assert [each["entry"]["bytes"] for each in found["found"]] == [1_500_000 + len('{"n":3,"text":""}')] * 2


def test_what_is_found_ends_when_it_is_large(door: Door) -> None:
    state = door.task()
    for number in range(8):
        state.set(f"k{number}", "x" * 3_000_000)
    answer = door.get(V1 + "/find?key=k*").json()
    assert [each["entry"]["key"] for each in answer["found"]] == [f"k{number}" for number in range(6)]
    assert answer["more"] is True


def test_a_list_of_large_values_is_paged_by_their_size(door: Door) -> None:
    state = door.task()
    for number in range(5):
        state.set(f"k{number}", "x" * 1_500_000)
    keys, after, pages = [], "", 0
    while after is not None:
        answer = door.get(f"{V1}/runs/etl/r1/tasks/load/state?limit=50&after={after}").json()
        keys += [entry["key"] for entry in answer["entries"]]
        after, pages = answer["after"], pages + 1
    assert (keys, pages) == ([f"k{number}" for number in range(5)], 3)


def test_a_page_of_airflows_api_is_whole_however_large(door: Door) -> None:
    state = door.task()
    for number in range(5):
        state.set(f"k{number}", "x" * 1_500_000)
    path = "/api/v2/dags/etl/dagRuns/r1/taskInstances/load/state-store"
    answer = door.get(path + "?limit=4&offset=1").json()
    assert [entry["key"] for entry in answer["task_state_store"]] == ["k1", "k2", "k3", "k4"]
    assert answer["total_entries"] == 5


def test_one_asker_looks_at_one_page_at_a_time() -> None:
    """So that many searches of one token leave the others theirs."""

    async def main() -> list[str]:
        turns, order = Turns(2), list[str]()

        async def search(who: str, name: str) -> None:
            async with turns.turn(who):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(search("a", "a1"), search("a", "a2"), search("a", "a3"), search("b", "b1"))
        return order

    assert asyncio.run(main())[:2] == ["a1", "b1"]
