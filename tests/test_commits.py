"""Commits in a batch mean what they mean one by one, and happen once under their ids; on every database."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast import rules
from outlast.backends import Backend
from outlast.config import Config, StateStoreSettings
from outlast.errors import Conflict, OutlastError
from outlast.requests import (
    Check,
    Commit,
    Fence,
    History,
    Increment,
    ListScopes,
    Once,
    Open,
    Part,
    Put,
    PutDefault,
    Read,
    Remove,
    RemoveAll,
)
from outlast.values import AssetScope, Scope, TaskScope, Writer
from support.clock import START, Clock
from support.homes import HOMES, SQLiteHome
from support.postgres import server

SCOPES: tuple[Scope, ...] = (
    TaskScope("d", "r", "a"),
    TaskScope("d", "r", "b"),
    AssetScope("n"),
    AssetScope("n", "u"),
    AssetScope(None, "u"),
)
NAMES = ("x", "y")
BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
SECOND = 1_000_000


class Pair:
    """Two empty stores of one kind."""

    def __init__(self, kind: str, versions: int = 3) -> None:
        self.folders = [tempfile.TemporaryDirectory(prefix="outlast-") for _ in range(2)]
        self.homes = [HOMES[kind](Path(folder.name)) for folder in self.folders]
        config = Config(state_store=StateStoreSettings(durability="process", history_versions=versions))
        self.backends: list[Backend] = [home.open(config, Clock()).backend for home in self.homes]

    def close(self) -> None:
        for backend, home, folder in zip(self.backends, self.homes, self.folders, strict=True):
            backend.close()
            home.close()
            folder.cleanup()


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(kind: str) -> Iterator[Pair]:
    pair = Pair(kind)
    yield pair
    pair.close()


@pytest.fixture
def backend(pair: Pair) -> Backend:
    return pair.backends[0]


# --- a batch is as good as one by one ----------------------------------------------------------------------

names = st.sampled_from(NAMES)
expiry = st.sampled_from((None, START - SECOND, START + SECOND))
operations = st.one_of(
    st.builds(Put, names, st.sampled_from(('"s"', "1", "2")), expiry, st.booleans()),
    st.builds(PutDefault, names, st.just("3"), expiry),
    st.builds(Increment, names, st.integers(-1, 2), expiry, st.booleans()),
    st.builds(Remove, names),
    st.builds(RemoveAll, st.booleans()),
    st.builds(Check, names, st.sampled_from((None, 1, 2))),
)
parts = st.builds(Part, st.sampled_from(SCOPES), st.lists(operations, min_size=1, max_size=3).map(tuple))
fences = st.one_of(st.none(), st.builds(Fence, st.just(SCOPES[0]), st.sampled_from((1, 2)), st.just(1)))
commits = st.builds(
    Commit,
    st.lists(parts, min_size=1, max_size=3, unique_by=lambda part: part.scope).map(tuple),
    fences,
    st.sampled_from((Writer(), Writer("person", name="ann"))),
    st.just(0),
    st.sampled_from((None, "once")),
    st.booleans(),
)


def answered(backend: Backend, request: Any) -> Any:
    try:
        return backend.send(request)
    except OutlastError as error:
        return error


def plain(reply: Any) -> Any:
    """Return a reply without how its rows' history is laid out, which a batch sees to at its end."""
    if isinstance(reply, OutlastError):
        return type(reply), str(reply)
    return reply.revisions, [[row and msgspec.structs.replace(row, ring=0) for row in rows] for rows in reply.rows]


def picture(backend: Backend) -> Any:
    """Return all that a reader can see; scopes have no order of their own."""
    found: list[Any] = []
    for assets in (False, True):
        for info in backend.send(ListScopes(assets=assets)).scopes:
            scope = info.scope
            found.append((scope, info.revision, info.attempt, backend.send(Read(scope, None)).rows))
            found += [backend.send(History(scope, name)) for name in NAMES]
    return sorted(found, key=str)


@settings(max_examples=60)
@given(st.lists(commits, min_size=1, max_size=6), st.lists(commits, min_size=1, max_size=4))
def test_a_batch_means_what_its_commits_mean_in_sqlite(first: list[Commit], second: list[Commit]) -> None:
    same_in_batches("sqlite", first, second)


@pytest.mark.postgres
@settings(max_examples=25)
@given(st.lists(commits, min_size=1, max_size=6), st.lists(commits, min_size=1, max_size=4))
def test_a_batch_means_what_its_commits_mean_in_postgresql(first: list[Commit], second: list[Commit]) -> None:
    same_in_batches("postgres", first, second)


def told_apart(commit: Commit) -> Commit:
    """Return a commit under an id that only one like it has."""
    return commit if commit.commit_id is None else msgspec.structs.replace(commit, commit_id=repr(commit))


def same_in_batches(kind: str, *batches: list[Commit]) -> None:
    pair = Pair(kind)
    try:
        together, alone = pair.backends
        for backend in pair.backends:
            backend.send(Open(SCOPES[0], 1))  # type: ignore[arg-type]
        for commits in batches:
            batch = [*map(told_apart, commits), told_apart(commits[0])]
            replies = together.send_batch(batch)
            assert [*map(plain, replies)] == [plain(answered(alone, request)) for request in batch]
        assert picture(together) == picture(alone)
    finally:
        pair.close()


def test_a_commit_that_changes_nothing_in_the_end_leaves_no_scope(backend: Backend) -> None:
    request = Commit((Part(AssetScope("n"), (Put("x", "1", None), Remove("x"))),))
    assert [reply.revisions for reply in (backend.send(request), *backend.send_batch([request]))] == [(0,), (0,)]
    assert backend.send(ListScopes(assets=True)).scopes == ()


def test_an_asset_and_one_of_its_names_cannot_be_two_parts_of_a_commit(backend: Backend) -> None:
    """Whether it was known by its other name before or not."""
    both = [Part(asset, (Put("x", "1", None),)) for asset in (AssetScope("n", "u"), AssetScope(None, "u"))]
    for _ in range(2):
        assert type(answered(backend, Commit(tuple(both)))).__name__ == "InvalidKey"
        backend.send(Commit((Part(AssetScope("n"), (Put("x", "1", None),)),)))
    assert [info.scope for info in backend.send(ListScopes(assets=True)).scopes] == [AssetScope("n")]


@pytest.mark.parametrize("turned", [False, True])
def test_a_commit_beside_one_of_a_scope_that_was_removed_is_kept(backend: Backend, turned: bool) -> None:
    """Both by one address; the fence names a scope that is no more."""
    parts = (Part(SCOPES[0], (Increment("x", 1, None),)),)
    gone = Commit(parts, Fence(SCOPES[0], 1, 77))  # type: ignore[arg-type]
    batch = [gone, Commit(parts), Commit(parts)]
    replies = backend.send_batch(batch[::-1] if turned else batch)
    assert sorted(type(reply).__name__ for reply in replies) == ["Receipt", "Receipt", "StaleAttempt"]
    assert [row.text for row in backend.send(Read(SCOPES[0], None)).rows] == ["2"]


# --- once --------------------------------------------------------------------------------------------------

ADD = (Part(SCOPES[0], (Increment("x", 1, None),)),)


def test_a_commit_sent_again_answers_its_first_receipt(backend: Backend) -> None:
    first = backend.send(Commit(ADD, commit_id="id"))
    backend.send(Commit(ADD))
    assert backend.send(Commit(ADD, commit_id="id")) == first
    assert (
        backend.send_batch([Commit(ADD, commit_id="id"), Commit(ADD), Commit(ADD, commit_id="id")])[::2] == [first] * 2
    )
    assert backend.send(Read(SCOPES[0], ("x",))).rows[0].text == "3"


def test_a_commit_twice_in_one_batch_happens_once(backend: Backend) -> None:
    one, two = backend.send_batch([Commit(ADD, commit_id="id")] * 2)
    assert (one, one.revisions) == (two, (1,))


def test_a_refused_commit_may_be_sent_again(backend: Backend) -> None:
    checked = Commit((Part(SCOPES[0], (Check("x", 1), Increment("x", 1, None))),), commit_id="id")
    assert "Conflict" in type(answered(backend, checked)).__name__
    backend.send(Commit(ADD))
    assert backend.send(checked).revisions == (2,)


def test_what_a_commit_has_erased_is_in_no_receipt(pair: Pair, backend: Backend) -> None:
    """Neither of its own nor of one before; that both were carried out stays known."""
    adding, erasing = (
        Commit((Part(SCOPES[0], (Increment("x", 77001, None), *more)),), commit_id=id)
        for id, more in (("one", ()), ("two", (Put("y", '"77005"', None), RemoveAll(history=True))))
    )
    kept = [receipt_texts(pair.homes[0])]
    for commit in (adding, erasing):
        backend.send(commit)
        kept.append(receipt_texts(pair.homes[0]))
    assert ["7700" in text for text in kept] == [False, True, False]
    for commit in (adding, erasing):
        with pytest.raises(Conflict, match="is not carried out again under this id"):
            backend.send(commit)
        replies = backend.send_batch([commit, Commit(ADD)])
        assert [type(reply).__name__ for reply in replies] == ["Conflict", "Receipt"]
    assert backend.send(Read(SCOPES[0], None)).rows[0].text == "2"


def test_receipts_of_updates_hold_none_of_the_values(pair: Pair, backend: Backend) -> None:
    """100 updates of 60 KB, as `update` sends them, leave 100 receipts of a few hundred bytes for an hour, not 6 MB."""
    for number in range(100):
        operations = (Check("x", number or None), Put("x", f'"{number}{"x" * 60_000}"', None, True))
        backend.send(Commit((Part(SCOPES[0], operations),), commit_id=f"id {number}"))
    assert pair.homes[0].rows()["receipt"] == 100
    assert 10_000 < len(receipt_texts(pair.homes[0])) < 60_000


def receipt_texts(home: Any) -> str:
    """Return all that is kept as replies."""
    sql = "select reply from receipt"
    if isinstance(home, SQLiteHome):
        return str(apsw.Connection(str(home.path), flags=apsw.SQLITE_OPEN_READONLY).execute(sql).fetchall())
    with psycopg.connect(server().url, options=f"-c search_path={home.schema}") as connection:
        return str(connection.execute(sql).fetchall())


def test_any_request_happens_once_under_its_call_id(backend: Backend) -> None:
    opening = Once("id", Open(SCOPES[0], None))  # type: ignore[arg-type]
    assert [backend.send(opening).attempt for _ in range(2)] == [1, 1]
    assert backend.send(Once("other", opening.request)).attempt == 2


# --- clocks that differ (contract 3.2) ---------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, START - 5 * SECOND, START + 5 * SECOND])
def test_a_clock_that_is_nearly_right_or_unknown_is_believed(sent: int) -> None:
    request = Commit((Part(SCOPES[0], (Put("x", "1", START + SECOND),)),), sent_at=sent)
    assert rules.without_skew(request, START) is request


def test_a_backend_answers_batches_of_other_requests(backend: Backend) -> None:
    assert [reply.attempt for reply in backend.send_batch([Open(SCOPES[0], None)] * 2)] == [1, 2]  # type: ignore[arg-type]
