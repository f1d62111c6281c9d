"""What tests of DAGs share: results kept in a dict, and one attempt of a task run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import codec
from outlast.dags.context import build_context, execute
from outlast.dags.graph import DAG
from outlast.dags.operators import BaseOperator
from outlast.dags.references import Result

WHEN = datetime(2026, 11, 29, 4, 5, 6, tzinfo=UTC)


class Rows:
    """Results of one run by (task id, map index, name), kept as JSON text as a store would."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, str], bytes] = {}
        self.owner = ("", -1)

    def push(self, name: str, value: Any) -> None:
        self.rows[*self.owner, name] = codec.dump(value, allow_none=True)

    def pull(self, task_ids: Sequence[str], name: str, map_indexes: Sequence[int] | None) -> list[tuple[str, int, Any]]:
        return [
            (task_id, index, codec.load(text))
            for (task_id, index, key), text in sorted(self.rows.items())
            if task_id in task_ids and key == name and (map_indexes is None or index in map_indexes)
        ]


class Attempts:
    """Runs attempts of tasks, one run's results passed on from one to the next."""

    def __init__(self, store: outlast.Store) -> None:
        self.store, self.results = store, Rows()

    def context(self, task: BaseOperator, *, map_index: int = -1, try_number: int = 1, **params: Any) -> dict[str, Any]:
        dag = task.dag or DAG("alone")
        self.results.owner = task.task_id, map_index
        state = self.store.task(dag_id=dag.dag_id, run_id="r", task_id=task.task_id, map_index=map_index)
        return build_context(
            dag=dag,
            task=task,
            run_id="r",
            map_index=map_index,
            try_number=try_number,
            logical_date=WHEN,
            params=dag.merged_params(params),
            task_state_store=state,
            results=self.results,
        )

    def __call__(self, what: BaseOperator | Result, *, map_index: int = -1, try_number: int = 1, **params: Any) -> Any:
        """Run one attempt in its context, keep what it returned as its result, and return it."""
        task = what.linked()
        value = execute(task, self.context(task, map_index=map_index, try_number=try_number, **params))
        self.results.push("return_value", value)
        return value


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempts]:
    with outlast.connect(tmp_path / "state.db") as store:
        yield Attempts(store)


@pytest.fixture
def dag() -> Iterator[DAG]:
    """A DAG that is open for the whole test."""
    with DAG("d") as opened:
        yield opened


Attempt = Callable[..., Any]
