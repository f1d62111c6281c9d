"""A model of an engine that uses a run's name again: whatever happens, what a run has stored goes only for a later one.

Runs of one name are created, deleted and created again; their tries, also those that are thought to be dead, use their
state when they like; programs and people do so too, and the engine may be upgraded in between.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlast import StaleAttempt, Store, connect
from outlast.testing import Clock

ADDRESS = "dag/run/task"
SECOND = 1_000_000


class Try(msgspec.Struct, frozen=True):
    """A process of a try: of which run, and what its engine tells it."""

    run: int
    number: int
    origin: tuple[str, int] | None


class ReusedNames(RuleBasedStateMachine):
    """What is stored is the number of the run it belongs to."""

    @initialize(version=st.sampled_from([2, 3]))
    def begin(self, version: int) -> None:
        self.clock, self.version = Clock(), version
        self.store: Store = connect("sqlite:///:memory:", clock=self.clock)
        self.run, self.number, self.started, self.newest = 0, 0, 0, 0
        self.tries: list[Try] = []
        self.expected: dict[str, int] = {}
        self.create()

    def create(self) -> None:
        self.clock.advance(1)
        self.run, self.number, self.started = self.run + 1, 0, self.clock()
        self.clock.advance(1)

    # --- what the engine does ------------------------------------------------------------------------------

    @rule()
    def delete_and_create_again(self) -> None:
        self.create()

    @rule()
    def next_try(self) -> None:
        self.number += 1
        self.clock.advance(1)
        self.tries.append(Try(self.run, self.number, self.told()))

    @rule()
    @precondition(lambda self: self.number > 0)
    def go_on_after_a_deferral(self) -> None:
        self.clock.advance(1)
        self.tries.append(Try(self.run, self.number, self.told()))

    @rule()
    @precondition(lambda self: self.version == 2)
    def upgrade(self) -> None:
        """A try that waited meanwhile goes on."""
        self.version = 3
        if self.number:
            self.go_on_after_a_deferral()

    def told(self) -> tuple[str, int] | None:
        if self.version == 2:
            return f"run:{self.run}", self.started
        return (f"ti:{self.run}-{self.number}", self.started) if self.number == 1 else None

    # --- what uses the state -------------------------------------------------------------------------------

    @rule(chosen=st.integers(0, 2**16), key=st.sampled_from("abc"))
    @precondition(lambda self: self.tries)
    def use_it(self, chosen: int, key: str) -> None:
        one = self.tries[-1 - chosen % len(self.tries)]
        try:
            state = self.store.task(ADDRESS, attempt=one.number, origin=one.origin)
        except StaleAttempt:
            return
        held = dict(state.items())
        lost = {name: run for name, run in self.expected.items() if name not in held}
        assert all(run < one.run for run in lost.values()), f"{one} has removed {lost}"
        assert held == {} or not lost  # all of it goes, or nothing
        state.set(key, one.run)
        self.expected, self.newest = {**held, key: one.run}, max(self.newest, one.run)

    @rule(key=st.sampled_from("abc"), attempt=st.sampled_from([None, "new"]))
    def a_program_uses_it(self, key: str, attempt: Any) -> None:
        """It adds to what the newest run has that ever used it; if there is none, it prepares it for the next one."""
        self.expected[key] = self.newest or self.run
        self.store.task(ADDRESS, attempt=attempt).set(key, self.expected[key])

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "store"):
            assert dict(self.store.task(ADDRESS).items()) == self.expected

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


ReusedNames.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
test_what_a_run_has_stored_goes_only_for_a_later_one = ReusedNames.TestCase
