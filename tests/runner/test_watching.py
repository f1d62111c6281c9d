"""Watchers of assets: which there are, what their triggers get, and what becomes of their events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import DagError, InvalidValue
from outlast.dags.assets import Asset, AssetWatcher
from outlast.dags.graph import DAG
from outlast.dags.triggers import BaseEventTrigger, TriggerEvent
from outlast.event_requests import EventRow, ListEvents
from outlast.runner.watching import Watcher, Watching, watchers_of


class Polls(BaseEventTrigger):
    """A trigger as people write it."""

    def __init__(self, url: str, every: float = 1.0) -> None:
        super().__init__()
        self.url, self.every = url, every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.Polls", {"url": self.url, "every": self.every}

    async def run(self) -> Any:
        yield TriggerEvent(self.url)


class Lost(Polls):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "no_such_module.Lost", {}


def watched(name: str, *triggers: BaseEventTrigger) -> Asset:
    return Asset(name, watchers=[AssetWatcher(f"{name}-{number}", one) for number, one in enumerate(triggers)])


def found(*schedules: Any) -> list[tuple[str, str, list[str]]]:
    dags = [(f"/dags/{number}.py", DAG(f"d{number}", schedule=schedule)) for number, schedule in enumerate(schedules)]
    return [(each.name, each.kwargs, [name for name, _ in each.assets]) for each in watchers_of(dags)]


# --- Which there are -----------------------------------------------------------------------------------------


def test_the_watchers_of_the_assets_that_dags_wait_for() -> None:
    a, b = watched("a", Polls("x")), watched("b", Polls("y"), Polls("z", every=2))
    assert found(a & b) == [
        ("a-0", '{"url":"x","every":1.0}', ["a"]),
        ("b-0", '{"url":"y","every":1.0}', ["b"]),
        ("b-1", '{"url":"z","every":2}', ["b"]),
    ]
    assert found(None, "@daily", Asset("c"), Asset.ref(name="a")) == []


def test_an_asset_of_several_dags_is_watched_once() -> None:
    assert found(watched("a", Polls("x")), watched("a", Polls("x"))) == [("a-0", '{"url":"x","every":1.0}', ["a"])]


def test_the_same_class_and_arguments_are_one_trigger_of_both_assets() -> None:
    a, b = watched("a", Polls("x")), watched("b", Polls("x"))
    assert found(a, b) == [("a-0", '{"url":"x","every":1.0}', ["a", "b"])]
    assert found(a, watched("b", Polls("x", every=2)))[1] == ("b-0", '{"url":"x","every":2}', ["b"])


def test_a_trigger_that_could_not_be_made_again_is_refused() -> None:
    with pytest.raises(DagError, match="no_such_module"):
        found(watched("a", Lost("x")))


def test_a_watcher_can_be_told_to_another_process() -> None:
    import msgspec

    dag = DAG("d", schedule=Asset("a", "s3://a", watchers=[AssetWatcher("w", Polls("x"))]))
    (watcher,) = watchers_of([("/dags/d.py", dag)])
    assert msgspec.json.decode(msgspec.json.encode(watcher), type=Watcher) == watcher
    assert (watcher.file, watcher.assets) == ("/dags/d.py", (("a", "s3://a"),))


# --- At work -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[outlast.Store]:
    with outlast.connect(tmp_path / "s.db") as store:
        yield store


def watching(store: outlast.Store, *assets: tuple[str, str]) -> Watching:
    async def make() -> Polls:
        return Polls("x")

    return Watching(store, Watcher("w", "module.Polls", "{}", "/dags/d.py", assets), make)


def events(store: outlast.Store) -> list[EventRow]:
    return list(store.backend.send(ListEvents()).rows)


async def write(work: Watching, key: str, value: int) -> None:
    trigger = await work.make()
    await trigger.asset_state_store.aset(key, value)


def test_a_trigger_has_the_state_of_its_asset(store: outlast.Store) -> None:
    assert Polls("x").asset_state_store is None
    asyncio.run(write(watching(store, ("a", "s3://a")), "seen", 7))
    entry = store.asset("a", uri="s3://a").entry("seen")
    assert entry is not None
    assert (entry.value, entry.writer.kind, entry.writer.name) == (7, "trigger", "module.Polls")


def test_the_trigger_of_several_assets_says_which(store: outlast.Store) -> None:
    work = watching(store, ("a", "a"), ("b", "s3://b"))
    with pytest.raises(ValueError, match="has 2"):
        asyncio.run(write(work, "seen", 7))
    states = asyncio.run(work.make()).asset_state_store
    assert list(states) == [Asset("a"), Asset("b", "s3://b")]
    states[Asset.ref(name="b")].set("seen", 8)
    assert store.asset("b").get("seen") == 8


def test_an_event_is_one_of_each_asset(store: outlast.Store) -> None:
    asyncio.run(watching(store, ("a", "a"), ("b", "s3://b")).happened({"file": "x", "big": 2**70}))
    text = f'{{"from_trigger":true,"payload":{{"file":"x","big":{2**70}}}}}'
    assert [(event.name, event.uri, event.source, event.extra) for event in events(store)] == [
        ("a", "a", None, text),
        ("b", "s3://b", None, text),
    ]


def test_a_payload_that_is_no_json_is_refused(store: outlast.Store) -> None:
    with pytest.raises(InvalidValue, match=r"payload.* is a datetime"):
        asyncio.run(watching(store, ("a", "a")).happened(datetime.now(UTC)))
    assert events(store) == []
