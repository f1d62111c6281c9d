"""Uses the whole public API of the store as a person would; type-checked by mypy --strict, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import assert_type

import outlast
from outlast import (
    NEVER_EXPIRE,
    AssetScope,
    AssetState,
    BackendError,
    Change,
    ConfigError,
    Conflict,
    Cursor,
    DagError,
    Entry,
    InvalidKey,
    InvalidValue,
    JsonValue,
    Match,
    NotFound,
    OutlastError,
    Reset,
    ScopeInfo,
    StaleAttempt,
    Store,
    TaskScope,
    TaskState,
    Unauthorized,
    ValueTooLarge,
    Version,
    Writer,
    connect,
)
from outlast.requests import Inspected, Swept
from outlast.transaction import AssetTransaction, TaskTransaction


def opening() -> None:
    assert_type(outlast.__version__, str)
    with connect("work.db") as store:
        assert_type(store, Store)
        assert_type(store.task("dag/run/task"), TaskState)
        assert_type(store.task(dag_id="dag", run_id="run", task_id="task", map_index=3, attempt="new"), TaskState)
        assert_type(store.task("dag/run/task", attempt=1, origin=("run:7", None)), TaskState)
        assert_type(
            store.task(TaskScope("dag", "run", "task"), attempt=2, writer=Writer("person", name="ada")), TaskState
        )
        assert_type(store.asset("table", uri="s3://table"), AssetState)
        assert_type(store.scopes(dag_id="dag", run_id=None, assets=False), list[ScopeInfo])
        assert_type(store.find(key="page", where="$ > 3", older_than=timedelta(days=1)), list[Match])
        assert_type(store.sweep(dry_run=True, progress=print), Swept)
        assert_type(store.inspect(deep=True), Inspected)
    connect().close()


async def opening_awaiting() -> None:
    async with connect() as store:
        assert_type(await store.atask("dag/run/task", attempt=1), TaskState)
        assert_type(await store.ascopes(), list[ScopeInfo])
        assert_type(await store.afind(), list[Match])
        assert_type(await store.asweep(), Swept)
        assert_type(await store.ainspect(), Inspected)


def task_state(state: TaskState) -> None:
    value: JsonValue = {"page": 41, "rows": [1, 2.5, None, True, "x"]}
    state.set("key", value, retention=timedelta(days=7))
    state.set("key", 1, retention=NEVER_EXPIRE)
    state.set_many({"a": 1, "b": [2]}, retention=None)
    page: int = state.get("page", 0)
    assert_type(state.set_default("key", page), JsonValue)
    assert_type(state.compare_and_set("key", 1, revision=None), Entry)
    assert_type(state.increment("n", 2), int)
    state.update("key", lambda old: old + 1, default=0)
    assert_type(state.entry("key"), Entry | None)
    assert_type(state.keys("prefix/"), list[str])
    assert_type(state.items(), list[tuple[str, JsonValue]])
    assert_type(state.entries(), list[Entry])
    assert_type(state.history("key"), list[Version])
    assert_type(state.restore("key", 3), Entry)
    assert_type(state.attempt, int | None)
    assert_type(state.asset("table"), AssetState)
    state.delete("key")
    state.clear()
    for item in state.checkpoint(["a", "b"], every=10, id=len, total=2, progress=None):
        assert_type(item, str)


async def task_state_awaiting(state: TaskState) -> None:
    await state.aset("key", 1, retention=timedelta(hours=1))
    await state.aset_many({"a": 1})
    assert_type(await state.aset_default("key", 1), JsonValue)
    assert_type(await state.acompare_and_set("key", 1, revision=3), Entry)
    assert_type(await state.aincrement("n"), int)
    await state.aupdate("key", lambda old: old)
    await state.aget("key")
    assert_type(await state.aentry("key"), Entry | None)
    assert_type(await state.akeys(), list[str])
    assert_type(await state.aitems(), list[tuple[str, JsonValue]])
    assert_type(await state.aentries(), list[Entry])
    assert_type(await state.ahistory("key"), list[Version])
    assert_type(await state.arestore("key", 3), Entry)
    await state.adelete("key")
    await state.aclear()
    async for item in state.checkpoint(numbers()):
        assert_type(item, int)


async def numbers() -> AsyncIterator[int]:
    yield 1


def asset_state(asset: AssetState) -> None:
    asset.set("watermark", 7)
    asset.set_many({"a": 1})
    assert_type(asset.set_default("watermark", 0), JsonValue)
    assert_type(asset.compare_and_set("watermark", 8, revision=1), Entry)
    assert_type(asset.increment("loads"), int)
    asset.update("watermark", lambda old: old + 1, default=0)
    assert_type(asset.restore("watermark", 1), Entry)


def transactions(state: TaskState, asset: AssetState) -> None:
    with state.transaction() as tx:
        tx.set("a", tx.get("b", 0) + 1)
        assert_type(tx.of(asset), AssetTransaction)
        assert_type(tx.of(state), TaskTransaction)
        tx.of(asset).set("watermark", 7)
    with asset.transaction() as tx_of_asset:
        tx_of_asset.set("a", 1)


async def transactions_awaiting(state: TaskState) -> None:
    async with state.transaction() as tx:
        await tx.aset("a", await tx.aget("b"))


def watching(state: TaskState) -> None:
    cursor: Cursor | None = None
    for event in state.watch(cursor, timeout=5, poll=0.5):
        match event:
            case Reset():
                assert_type(event.entries, tuple[Entry, ...])
            case Change():
                assert_type(event.entry, Entry | None)
        cursor = Cursor.parse(str(event.cursor))


async def watching_awaiting(state: TaskState) -> None:
    async for event in state.watch():
        assert_type(event.cursor, Cursor)


def nouns(entry: Entry, version: Version, info: ScopeInfo, match: Match) -> None:
    assert_type(entry.key, str)
    assert_type(entry.value, JsonValue)
    assert_type(entry.revision, int)
    assert_type(entry.updated_at, datetime)
    assert_type(entry.expires_at, datetime | None)
    assert_type(entry.writer, Writer)
    assert_type(version.deleted, bool)
    assert_type(version.at, datetime)
    assert_type(info.scope, TaskScope | AssetScope)
    assert_type(info.updated_at, datetime | None)
    assert_type(match.scope, TaskScope | AssetScope)
    assert_type(match.entry, Entry)


def errors(state: TaskState) -> None:
    try:
        state.compare_and_set("key", 1, revision=2)
    except Conflict as conflict:
        assert_type(conflict.current, Entry | None)
    except BackendError as error:
        print(error.outcome == "unknown")
    except (
        ConfigError,
        InvalidKey,
        ValueTooLarge,
        InvalidValue,
        StaleAttempt,
        NotFound,
        Unauthorized,
        DagError,
    ) as error:
        assert_type(error.code, str)
    except OutlastError as error:
        print(error.status, error.exit_code, error.message)
