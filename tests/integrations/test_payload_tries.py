"""A model of tries that use one task's payloads while Airflow has given some up: none takes what another has."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payload_sweep import clean, examine
from outlast.integrations.airflow.payloads import Folder
from outlast.integrations.airflow.references import References, payload_of

from .rows_in_sqlite import SqliteRows, Task

KEYS = st.sampled_from("ab")


class Tries(RuleBasedStateMachine):
    """The last try is the one Airflow knows. To others it says that there is no such key, and refuses what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="outlast-")
        self.place = Folder(f"{self.folder.name}/payloads")
        self.rows = SqliteRows(Path(self.folder.name) / "rows.db")
        self.expected: dict[str, str] = {}
        self.tries = [self.new_try()]

    def new_try(self) -> References:
        return References(Packer(-1), self.place, 50)

    def held(self, one: References, key: str) -> str | None:
        return self.rows.held(key) if one is self.tries[-1] else None

    def chosen(self, data: Any) -> References:
        return data.draw(st.sampled_from(self.tries[-2:]))  # type: ignore[no-any-return]

    @rule()
    def give_up_and_try_again(self) -> None:
        self.tries.append(self.new_try())

    @rule(data=st.data(), key=KEYS, size=st.sampled_from([100, 1]))
    def set(self, data: Any, key: str, size: int) -> None:
        one, value = self.chosen(data), data.draw(st.sampled_from("xyz")) * size
        reference = one.refer(value, Task(), key, partial(self.held, one, key))
        if one is self.tries[-1]:
            self.rows.put(key, reference)
            self.expected[key] = value

    @rule(key=KEYS)
    def be_given_up_while_setting(self, key: str) -> None:
        one = self.tries[-1]
        self.give_up_and_try_again()
        one.refer("z" * 100, Task(), key, partial(self.held, one, key))

    @rule(data=st.data(), key=KEYS)
    def get(self, data: Any, key: str) -> None:
        one = self.chosen(data)
        if (reference := self.held(one, key)) is not None:
            assert one.resolve(reference) == self.expected[key]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.remove(key)
        self.tries[-1].forget(Task(), key)

    @rule()
    def clear(self) -> None:
        for key in "ab":
            self.remove(key)
        self.tries[-1].forget_all(Task())

    @rule(data=st.data(), clears=st.booleans())
    def succeed(self, data: Any, clears: bool) -> None:
        """With `clear_on_success` the backend is told first; then the success is recorded, or refused.

        A person then has the task run again.
        """
        one = self.chosen(data)
        if clears:
            one.forget_all(Task(), later=True)
        is_recorded = one is self.tries[-1]
        if is_recorded:
            for key in "ab" if clears else "":
                self.remove(key)
        one.after_success(lambda: is_recorded and clears)
        if is_recorded:
            self.give_up_and_try_again()

    def remove(self, key: str) -> None:
        self.rows.rows.execute("delete from state where key = ?", (key,))
        self.expected.pop(key, None)

    @invariant()
    def every_reference_has_its_payload(self) -> None:
        assert {row.id[1]: self.new_try().resolve(self.rows.reference(row.id[1])) for row in self.rows.all()} == (
            self.expected
        )

    def teardown(self) -> None:
        found = examine(self.place, self.rows, Packer(), grace=0, now=2**61)
        assert clean(found, self.place, self.rows) == []
        held = {payload_of(self.rows.reference(key)) for key in self.expected} - {None}
        assert {*self.place.names()} == held
        self.rows.rows.close()
        self.folder.cleanup()


Tries.TestCase.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
test_no_try_takes_a_payload_that_another_has = Tries.TestCase
