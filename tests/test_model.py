"""The whole store against a plain dictionary, whatever is done in whatever order (hypothesis, stateful).

The model knows nothing of the store's code: a dictionary of entries and a list of versions a key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from outlast import NEVER_EXPIRE, Conflict, Cursor, InvalidValue, NotFound, Reset, StaleAttempt, connect
from outlast.values import to_micros
from support.clock import Clock
from support.homes import settings

KEPT = 4
HOUR = 3600 * 1_000_000
KEYS = st.sampled_from(["a", "a/x", "b", "é", "\U0001f600"])
VALUES = st.one_of(st.integers(-3, 3), st.sampled_from([False, "", "x", [], [1], {}, {"k": None}, 0.5, 2**70]))
RETENTIONS = st.sampled_from([None, timedelta(hours=1), timedelta(hours=5), NEVER_EXPIRE])
PLACES = st.sampled_from(["one", "old one", "new one", "two", "asset", "old asset", "new asset"])
DELETED = object()


@dataclass
class Kept:
    """What the model knows of a key: its value (or DELETED), when it goes, and its versions, newest first."""

    value: Any
    revision: int
    expires_at: int | None
    versions: list[tuple[Any, int]]


@dataclass
class Model:
    """One scope as a dictionary."""

    asset: bool = False
    revision: int = 0
    keys: dict[str, Kept] = field(default_factory=dict)

    def at(self, now: int) -> None:
        """Forget what has expired."""
        self.keys = {key: kept for key, kept in self.keys.items() if kept.expires_at is None or kept.expires_at > now}

    def live(self) -> dict[str, Kept]:
        return {key: kept for key, kept in sorted(self.keys.items()) if kept.value is not DELETED}

    def commit(self, changes: dict[str, tuple[Any, int | None]]) -> None:
        """Make changes at once: a value with its expiry, or DELETED."""
        changes = {key: change for key, change in changes.items() if change[0] is not DELETED or key in self.live()}
        if not changes:
            return
        self.revision += 1
        for key, (value, expires_at) in changes.items():
            before = self.keys.get(key)
            versions = [(value, self.revision), *(before.versions if before else [])][:KEPT]
            if value is DELETED and before is not None:
                expires_at = before.expires_at
            self.keys[key] = Kept(value, self.revision, expires_at, versions)


class Store(RuleBasedStateMachine):
    """Two tasks and an asset, reached unfenced, by an older and by the newest attempt."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(prefix="outlast-", dir=memory if memory.is_dir() else None)
        self.clock = Clock()
        self.store = connect(
            Path(self.folder.name) / "store.db", config=settings(history_versions=KEPT), clock=self.clock
        )
        self.models = {"one": Model(), "two": Model(), "asset": Model(asset=True)}
        self.attempt = 0
        self.open_attempt()
        self.open_attempt()
        self.cursors: dict[str, tuple[Cursor, dict[str, Any]]] = {}

    def teardown(self) -> None:
        assert self.store.inspect(deep=True).problems == ()
        self.store.close()
        self.folder.cleanup()

    def reach(self, place: str) -> tuple[Any, Model, bool]:
        """Return a state, the model of its scope, and whether it is fenced out."""
        match place:
            case "one" | "two":
                return self.store.task(f"dag/run/{place}"), self.models[place], False
            case "asset":
                return self.store.asset("table"), self.models["asset"], False
        which, _, what = place.partition(" ")
        task = self.old if which == "old" else self.new
        return task.asset("table") if what == "asset" else task, self.models[what], which == "old"

    def expiry(self, model: Model, retention: timedelta | None) -> int | None:
        if model.asset or retention == NEVER_EXPIRE:
            return None
        return self.clock.now + (retention or timedelta(days=30)) // timedelta(microseconds=1)

    def kept_expiry(self, model: Model, key: str) -> int | None:
        stored = model.live().get(key)
        return stored.expires_at if stored else self.expiry(model, None)

    def do(self, place: str, act: Callable[[Any, Model], Any]) -> None:
        """Do something, or find that the attempt is superseded."""
        state, model, stale = self.reach(place)
        model.at(self.clock.now)
        if stale:
            with pytest.raises(StaleAttempt):
                act(state, Model(model.asset, model.revision, dict(model.keys)))
        else:
            act(state, model)

    # --- rules ---------------------------------------------------------------------------------------------

    @rule()
    def open_attempt(self) -> None:
        if self.attempt:
            self.old = self.new
        self.attempt += 1
        self.new = self.store.task("dag/run/one", attempt="new")
        assert self.new.attempt == self.attempt

    @rule(hours=st.sampled_from([0.5, 1, 4, 5]), less=st.booleans())
    def let_time_pass(self, hours: float, less: bool) -> None:
        self.clock.now += int(hours * HOUR) - less

    @rule(dry_run=st.booleans())
    def sweep(self, dry_run: bool) -> None:
        self.store.sweep(dry_run=dry_run)

    @rule(place=PLACES, key=KEYS, value=VALUES, retention=RETENTIONS)
    def set(self, place: str, key: str, value: Any, retention: timedelta | None) -> None:
        def act(state: Any, model: Model) -> None:
            state.set(key, value, **({} if model.asset else {"retention": retention}))
            model.commit({key: (value, self.expiry(model, retention))})

        self.do(place, act)

    @rule(place=PLACES, values=st.dictionaries(KEYS, VALUES, min_size=1))
    def set_many(self, place: str, values: dict[str, Any]) -> None:
        def act(state: Any, model: Model) -> None:
            state.set_many(values)
            model.commit({key: (value, self.expiry(model, None)) for key, value in values.items()})

        self.do(place, act)

    @rule(place=PLACES, key=KEYS, value=VALUES)
    def set_default(self, place: str, key: str, value: Any) -> None:
        def act(state: Any, model: Model) -> None:
            stored = model.live().get(key)
            assert state.set_default(key, value) == (stored.value if stored else value)
            if stored is None:
                model.commit({key: (value, self.expiry(model, None))})

        self.do(place, act)

    @rule(place=PLACES, key=KEYS, value=VALUES, guess=st.one_of(st.none(), st.integers(0, 3)))
    def compare_and_set(self, place: str, key: str, value: Any, guess: int | None) -> None:
        def act(state: Any, model: Model) -> None:
            stored = model.live().get(key)
            present = stored.revision if stored else None
            revision = present if guess == 0 else guess
            if revision == present:
                assert state.compare_and_set(key, value, revision=revision).revision == model.revision + 1
                model.commit({key: (value, self.expiry(model, None))})
            else:
                with pytest.raises(Conflict) as caught:
                    state.compare_and_set(key, value, revision=revision)
                assert (caught.value.current and caught.value.current.revision) == present

        self.do(place, act)

    @rule(place=PLACES, key=KEYS, by=st.integers(-2, 2))
    def increment(self, place: str, key: str, by: int) -> None:
        def act(state: Any, model: Model) -> None:
            stored = model.live().get(key)
            number = stored.value if stored else 0
            if type(number) is not int:
                with pytest.raises(InvalidValue):
                    state.increment(key, by)
            else:
                assert state.increment(key, by) == number + by
                model.commit({key: (number + by, self.kept_expiry(model, key))})

        self.do(place, act)

    @rule(place=PLACES, key=KEYS)
    def update(self, place: str, key: str) -> None:
        def act(state: Any, model: Model) -> None:
            stored = model.live().get(key)
            value = [stored.value if stored else "absent"]
            assert state.update(key, lambda old: [old], default="absent") == value
            model.commit({key: (value, self.kept_expiry(model, key))})

        self.do(place, act)

    @rule(place=PLACES, key=KEYS)
    def delete(self, place: str, key: str) -> None:
        def act(state: Any, model: Model) -> None:
            state.delete(key)
            model.commit({key: (DELETED, None)})

        self.do(place, act)

    @rule(place=PLACES)
    def clear(self, place: str) -> None:
        def act(state: Any, model: Model) -> None:
            state.clear()
            model.commit(dict.fromkeys(model.live(), (DELETED, None)))

        self.do(place, act)

    @rule(place=PLACES, key=KEYS, back=st.integers(0, KEPT))
    def restore(self, place: str, key: str, back: int) -> None:
        def act(state: Any, model: Model) -> None:
            versions = model.keys[key].versions if key in model.keys else []
            value, revision = versions[back] if back < len(versions) else (DELETED, 10**6)
            if value is DELETED:
                with pytest.raises(NotFound):
                    state.restore(key, revision)
            else:
                assert state.restore(key, revision).value == value
                model.commit({key: (value, self.expiry(model, None))})

        self.do(place, act)

    @rule(
        places=st.lists(st.sampled_from(["one", "two", "asset"]), min_size=1, max_size=3, unique=True),
        steps=st.lists(
            st.tuples(st.sampled_from(["set", "delete", "get", "increment", "keys"]), KEYS, VALUES),
            min_size=1,
            max_size=5,
        ),
        meanwhile=st.one_of(st.none(), st.tuples(st.sampled_from(["one", "two", "asset"]), KEYS)),
        fails=st.sampled_from([False, False, False, True]),
    )
    def transaction(
        self, places: list[str], steps: list[tuple[str, str, Any]], meanwhile: tuple[str, str] | None, fails: bool
    ) -> None:
        """Do steps in several scopes as one commit, while somebody else may write a key, and it may fail."""
        for model in self.models.values():
            model.at(self.clock.now)
        pictures = {place: {key: kept.value for key, kept in self.models[place].live().items()} for place in places}
        writes: dict[str, dict[str, tuple[Any, int | None]]] = {place: {} for place in places}
        reads: set[tuple[str, str]] = set()
        try:
            with self.reach(places[0])[0].transaction() as tx:
                for number, (verb, key, value) in enumerate(steps):
                    place = places[number % len(places)]
                    view = tx.of(self.reach(place)[0])
                    self.step(view, place, verb, key, value, pictures[place], writes[place], reads)
                if meanwhile is not None:
                    self.set(meanwhile[0], meanwhile[1], "meanwhile", None)
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return
        except Conflict:
            assert meanwhile is not None
            assert meanwhile in reads or (meanwhile[0], "*") in reads
            return
        assert meanwhile is None or not (meanwhile in reads or (meanwhile[0], "*") in reads)
        for place, changes in writes.items():
            self.models[place].commit(changes)

    def step(
        self, view: Any, place: str, verb: str, key: str, value: Any,
        picture: dict[str, Any], writes: dict[str, tuple[Any, int | None]], reads: set[tuple[str, str]],
    ) -> None:  # fmt: skip
        model = self.models[place]
        blind = key not in writes
        match verb:
            case "set":
                view.set(key, value)
                picture[key], writes[key] = value, (value, self.expiry(model, None))
            case "delete":
                view.delete(key)
                picture.pop(key, None)
                writes[key] = (DELETED, None)
            case "get":
                assert view.get(key) == picture.get(key)
                reads.update({(place, key)} if blind else ())
            case "keys":
                assert view.keys() == sorted(picture)
                reads.add((place, "*"))
            case "increment" if type(picture.get(key, 0)) is int:
                expires_at = writes[key][1] if key in writes and key in picture else self.kept_expiry(model, key)
                if key not in picture:
                    expires_at = self.expiry(model, None)
                picture[key] = view.increment(key)
                writes[key] = (picture[key], expires_at)
                reads.update({(place, key)} if blind else ())

    @rule(name=st.sampled_from(["one", "two", "asset"]))
    def follow(self, name: str) -> None:
        """Go on watching from where the last time ended; what is then known is what is there."""
        state, model, _ = self.reach(name)
        model.at(self.clock.now)
        cursor, known = self.cursors.get(name, (None, {}))
        for event in state.watch(cursor, timeout=0):
            cursor = event.cursor
            if isinstance(event, Reset):
                known = {entry.key: entry for entry in event.entries}
            elif event.entry is None:
                known.pop(event.key, None)
            else:
                known[event.key] = event.entry
        now = self.clock.shows()
        known = {key: entry for key, entry in known.items() if entry.expires_at is None or entry.expires_at > now}
        assert {key: entry.value for key, entry in known.items()} == {
            key: kept.value for key, kept in model.live().items()
        }
        if cursor is not None:
            self.cursors[name] = (cursor, known)

    # --- what must hold after every step ---------------------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        for name, model in self.models.items():
            state = self.reach(name)[0]
            model.at(self.clock.now)
            assert state.items() == [(key, kept.value) for key, kept in model.live().items()]
            assert [
                (entry.key, entry.revision, entry.expires_at and to_micros(entry.expires_at))
                for entry in state.entries()
            ] == [(key, kept.revision, kept.expires_at) for key, kept in model.live().items()]
            for key in ("a", "a/x", "b", "é"):
                versions = model.keys[key].versions if key in model.keys else []
                assert [(DELETED if v.deleted else v.value, v.revision) for v in state.history(key)] == versions
        infos = [*self.store.scopes(), *self.store.scopes(assets=True)]
        found = {str(info.scope).rpartition("/")[2].removeprefix("asset "): info for info in infos}
        for name, model in self.models.items():
            info = found.get("table" if model.asset else name)
            assert (info.revision if info else 0) == model.revision
            assert (info.entries if info else 0) == len(model.live())
        assert found["one"].attempt == self.attempt


TestModel = Store.TestCase
TestModel.settings = hypothesis_settings(
    max_examples=hypothesis_settings.default.max_examples if hypothesis_settings.default.max_examples > 100 else 40,  # type: ignore[union-attr]
    stateful_step_count=30,
    deadline=None,
)
