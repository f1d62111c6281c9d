"""Mapped tasks under `outlast run`: expansion, isolation, kills, resuming, and what re-expansion does with state.

Contract 1.1, 5.2, 6.1, 6.5, 6.6.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.run_requests import TaskRow
from support.running import Ground, Program, Told

#: A task `names` that returns what stands in the file `list`, and `copy`, mapped over that; each instance counts in
#: its state how often its item was seen and remembers the item.
LISTED = """
with DAG("d"):
    @task
    def names():
        return (HERE / "list").read_text().split()

    @task{options}
    def copy(name, task_state_store=None, ti=None):
        task_state_store.increment("seen")
        mark(f"{{name}} at {{ti.map_index}} before {{task_state_store.set_default('item', name)}}")
        return name.upper()

    @task
    def total(parts):
        mark(parts)

    total(copy.expand(name=names()))
"""
KEYED = LISTED.format(options='(map_key="{name}")')
PLAIN = LISTED.format(options="")


def rows(ground: Ground, task_id: str = "copy") -> list[TaskRow]:
    """Return the instances of a task by position."""
    found = [row for row in ground.detail().tasks if row.scope.task_id == task_id]
    return sorted(found, key=lambda row: row.scope.map_index)


def states(ground: Ground, task_id: str = "copy") -> list[str]:
    return [row.state for row in rows(ground, task_id)]


def at(ground: Ground, index: int, task_id: str = "copy") -> dict[str, Any]:
    """Return what is stored at a position."""
    return dict(ground.store.task(f"d/r/{task_id}/{index}").items())


def of(ground: Ground, key: str) -> dict[str, Any]:
    """Return what is stored for an item."""
    return dict(ground.store.task("d/r/copy", item=key).items())


def go(ground: Ground, *more: str) -> Told:
    return ground.run("--run-id", "r", *more)


def list_is(ground: Ground, *names: str) -> None:
    (ground.folder / "list").write_text(" ".join(names))


def map_again(ground: Ground, *names: str) -> Told:
    """Clear everything and run it again with another list."""
    list_is(ground, *names)
    (ground.folder / "marks").unlink(missing_ok=True)
    assert ground.command("tasks", "clear", "d/r/names", "--downstream", "--yes").status == 0
    told = go(ground)
    assert told.status == 0
    return told


# --- Expansion and results -------------------------------------------------------------------------------


def test_a_task_is_mapped_over_a_result_and_its_results_are_reduced(ground: Ground) -> None:
    list_is(ground, "a", "b", "c")
    ground.dag(PLAIN)
    assert go(ground).status == 0
    assert ground.marks[-1] == "['A', 'B', 'C']"
    assert sorted(ground.marks[:-1]) == [f"{name} at {index} before {name}" for index, name in enumerate("abc")]
    assert [(row.scope.map_index, row.state, row.attempt) for row in rows(ground)] == [
        (index, "success", 1) for index in range(3)
    ]
    assert [at(ground, index) for index in range(3)] == [{"seen": 1, "item": name} for name in "abc"]
    assert ground.left_soon() == []


def test_mapped_tasks_of_every_kind(ground: Ground) -> None:
    ground.dag(
        """
from outlast import BaseOperator, dag

class Load(BaseOperator):
    def __init__(self, *, source, target="there", **kwargs):
        super().__init__(**kwargs)
        self.source, self.target = source, target

    def execute(self, context):
        return f"{self.source}>{self.target}"

@task
def pair(x, y, n=0):
    return f"{x}{y}{n}"

@task
def show(product, dicts, load):
    mark({"product": product, "dicts": dicts, "load": load})

with DAG("d", params={"names": ["p", "q"]}):
    product = pair.partial(n=7).expand(x=["a", "b"], y={"k": 1, "l": 2})
    dicts = pair.expand_kwargs([{"x": 1, "y": product[0]}, {"x": 2, "y": 3, "n": 4}])
    load = Load.partial(task_id="load", target="here").expand(source=dicts)
    show(product=product, dicts=dicts, load=load.output)
"""
    )
    assert go(ground).status == 0
    product = [f"{x}{(y, n)}7" for x in "ab" for y, n in (("k", 1), ("l", 2))]
    dicts = [f"1{product[0]}0", "234"]
    assert ground.marks == [str({"product": product, "dicts": dicts, "load": [f"{name}>here" for name in dicts]})]


def test_a_parameter_of_the_run_is_mapped_over(ground: Ground) -> None:
    ground.dag(
        """
from outlast import dag

@task
def copy(name):
    mark(name)

@dag
def d(names=()):
    copy.expand(name=names)

d()
"""
    )
    assert go(ground, "--param", 'names=["x", "y"]').status == 0
    assert sorted(ground.marks) == ["x", "y"]


def test_a_task_mapped_over_a_mapped_one_may_make_more_of_it(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def several(n):
        return list(range(n))

    @task
    def flat(parts):
        return [part for part in parts for part in part]

    @task
    def one(n, ti=None):
        return n * 10

    @task
    def both(found, each):
        mark([found, each])

    lists = several.expand(n=[1, 0, 2])
    both(one.expand(n=flat(lists)), lists)
"""
    )
    assert go(ground).status == 0
    assert ground.marks == ["[[0, 0, 10], [[0], [], [0, 1]]]"]
    assert (states(ground, "several"), states(ground, "one")) == (["success"] * 3, ["success"] * 3)


def test_what_is_mapped_over_nothing_is_skipped_and_so_is_what_needs_it(ground: Ground) -> None:
    list_is(ground)
    ground.dag(PLAIN)
    assert go(ground).status == 0
    assert (states(ground), states(ground, "total"), ground.marks) == (["skipped"], ["skipped"], [])
    assert ground.detail().run.state == "success"


def test_a_reducing_task_that_allows_a_skip_gets_an_empty_list(ground: Ground) -> None:
    list_is(ground)
    ground.dag(PLAIN.replace("@task\n    def total", '@task(trigger_rule="none_failed")\n    def total'))
    assert go(ground).status == 0
    assert (states(ground), ground.marks) == (["skipped"], ["[]"])


@pytest.mark.parametrize(
    ("options", "returned", "error"),
    [
        ("", "'text'", "task 'copy' is mapped over <result of names>, which is 'text'; it must be a list or a dict"),
        ('(map_key="{name[0]}")', "['ab', 'c', 'ad']", "map_key of task 'copy' gives 'a' for items 0 and 2"),
        ("", "[0] * 10_001", "task 'copy' is mapped over 10,001 items; at most 10,000 are allowed"),
    ],
)
def test_a_task_that_cannot_be_expanded_has_failed_and_says_why(
    ground: Ground, options: str, returned: str, error: str
) -> None:
    source = LISTED.format(options=options).replace('(HERE / "list").read_text().split()', returned)
    ground.dag(source)
    assert go(ground).status == 1
    (row,) = rows(ground)
    assert (row.state, (row.error or "").startswith(error)) == ("failed", True)
    assert states(ground, "total") == ["upstream_failed"]
    ground.dag(source.replace(returned, "['a', 'b']"))
    assert ground.command("tasks", "clear", "d/r/names", "--downstream", "--yes").status == 0
    assert go(ground).status == 0
    assert ground.marks[-1] == "['A', 'B']"


def test_no_more_instances_run_at_once_than_the_task_allows(ground: Ground) -> None:
    ground.dag(
        """
import fcntl

with DAG("d"):
    @task(max_active_tis_per_dag=2)
    def copy(n):
        with open(HERE / "first", "w") as one, open(HERE / "second", "w") as two:
            for file in (one, two):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    pass
            else:
                mark("a third one")
            time.sleep(0.05)

    copy.expand(n=list(range(6)))
"""
    )
    assert go(ground).status == 0
    assert (states(ground), ground.marks) == (["success"] * 6, [])


def test_a_thousand_items_are_expanded_at_once(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def copy(n):
        forever()

    copy.expand(n=list(range(1000)))
"""
    )
    program = ground.start("--run-id", "r")
    ground.until(lambda: states_soon(ground).count("running") == 4, "four run")
    began = ground.detail().run.started_at or 0
    first = min(row.started_at for row in rows(ground) if row.started_at is not None)
    assert len(rows(ground)) == 1000
    assert first - began < 5_000_000
    program.signal(signal.SIGTERM)
    assert program.ends().status == 75


@pytest.mark.soak
def test_a_thousand_items_are_run(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def copy(n):
        return n

    @task
    def total(parts):
        mark(parts == list(range(1000)))

    total(copy.expand(n=list(range(1000))))
"""
    )
    assert ground.run("--run-id", "r", seconds=600).status == 0
    assert ground.marks == ["True"]


def states_soon(ground: Ground) -> list[str]:
    """Return the states of the instances, none while there is no run."""
    try:
        return states(ground)
    except LookupError:
        return []


# --- Isolation, kills and pauses -------------------------------------------------------------------------


def test_clear_inside_an_instance_clears_that_one_only(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def copy(n, task_state_store=None):
        task_state_store.set("n", n)
        if n == 1:
            task_state_store.clear()

    copy.expand(n=[0, 1, 2])
"""
    )
    assert go(ground).status == 0
    assert [at(ground, index) for index in range(3)] == [{"n": 0}, {}, {"n": 2}]


def test_an_instance_that_is_killed_is_tried_again_alone_and_finds_its_state(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def copy(n, task_state_store=None, ti=None):
        seen = task_state_store.increment("seen")
        mark(f"{ti.map_index} try {ti.try_number} seen {seen}")
        if n == 1 and seen == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return seen

    @task
    def total(parts):
        mark(parts)

    total(copy.expand(n=[0, 1, 2]))
"""
    )
    assert go(ground).status == 0
    assert ground.counts == dict.fromkeys(
        ["0 try 1 seen 1", "1 try 1 seen 1", "1 try 2 seen 2", "2 try 1 seen 1", "[1, 2, 1]"], 1
    )
    assert [(row.attempt, row.crashes) for row in rows(ground)] == [(1, 0), (2, 1), (1, 0)]


def test_an_instance_that_fails_fails_what_needs_them_all(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task(retries=1)
    def copy(n, ti=None):
        mark(f"{n} try {ti.try_number}")
        if n == 1:
            raise ValueError(n)

    @task
    def total(parts): ...

    total(copy.expand(n=[0, 1, 2]))
"""
    )
    assert go(ground).status == 1
    assert (states(ground), states(ground, "total")) == (["success", "failed", "success"], ["upstream_failed"])
    assert ground.counts == {"0 try 1": 1, "1 try 1": 1, "1 try 2": 1, "2 try 1": 1}
    assert ground.command("tasks", "mark", "success", "d/r/copy/1").status == 0
    assert go(ground).status == 0
    assert len(ground.marks) == 4


HALF = """
with DAG("d"):
    @task
    def names():
        return LIST

    @task{options}
    def copy(name, task_state_store=None, ti=None):
        task_state_store.set_default("item", name)
        task_state_store.increment("tries")
        if ti.map_index > 1 and first(f"began {{name}}"):
            forever()
        mark(f"{{name}} at {{ti.map_index}}")
        return name

    @task
    def total(parts):
        mark(parts)

    total(copy.expand(name=OVER))
"""


def half(ground: Ground, options: str, over: str, names: str) -> Path:
    return ground.dag(HALF.format(options=options).replace("LIST", names).replace("OVER", over))


def stop_half_way(ground: Ground, how: signal.Signals) -> Program:
    """Run until the first two instances are done and the others hang, and end the runner."""
    program = ground.start("--run-id", "r")
    wanted = ["success", "success", "running", "running"]
    ground.until(lambda: states_soon(ground) == wanted, "half is done")
    for name in "cd":
        ground.appears(f"began {name}")
    program.signal(how)
    program.ends()
    return program


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_runner_that_comes_later_goes_on_with_the_stored_expansion(ground: Ground, how: signal.Signals) -> None:
    """Whatever the file would return now: the task above is done, and what it has returned holds."""
    half(ground, "", "names()", '["a", "b", "c", "d"]')
    stop_half_way(ground, how)
    half(ground, "", "names()", '["x", "y"]')
    assert go(ground).status == 0
    assert ground.marks[-1] == "['a', 'b', 'c', 'd']"
    assert ground.counts == {**{f"{name} at {index}": 1 for index, name in enumerate("abcd")}, ground.marks[-1]: 1}
    assert [at(ground, index) for index in range(4)] == [
        {"item": name, "tries": 1 if name in "ab" else 2} for name in "abcd"
    ]
    assert ground.left_soon() == []


def test_a_list_in_the_file_that_has_changed_is_not_taken_for_the_one_before(ground: Ground) -> None:
    half(ground, "", '["a", "b", "c", "d"]', "None")
    stop_half_way(ground, signal.SIGTERM)
    half(ground, "", '["a", "b", "z", "d"]', "None")
    assert go(ground).status == 1
    assert states(ground) == ["success", "success", "failed", "success"]
    assert "the item of copy/2 is not the one this run has begun with" in (rows(ground)[2].error or "")
    assert at(ground, 2) == {"item": "c", "tries": 1}
    half(ground, "", '["a", "b", "c", "d"]', "None")
    assert ground.command("tasks", "clear", "d/r/copy/2", "--yes").status == 0
    assert go(ground).status == 0
    assert ground.marks[-1] == "['a', 'b', 'c', 'd']"


def test_items_with_keys_are_found_where_they_are_now(ground: Ground) -> None:
    half(ground, '(map_key="{name}")', '["a", "b", "c", "d"]', "None")
    stop_half_way(ground, signal.SIGTERM)
    half(ground, '(map_key="{name}")', '["d", "new", "c", "a"]', "None")
    assert go(ground).status == 0
    assert ground.marks[-1] == "['a', 'b', 'c', 'd']"
    assert {name: of(ground, name)["tries"] for name in "abcd"} == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_instances_wait_without_a_process_each_for_its_own(ground: Ground) -> None:
    """Deferred and rescheduled, under the same attempt, as the same item."""
    ground.dag(
        """
from datetime import timedelta
from outlast import BaseOperator
from outlast.dags.triggers import TimeDeltaTrigger

class Later(BaseOperator):
    def __init__(self, *, n, **kwargs):
        super().__init__(**kwargs)
        self.n = n

    def execute(self, context):
        context["task_state_store"].set("n", self.n)
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=0.1 * self.n)), method_name="after", kwargs={"m": self.n})

    def after(self, context, event, m):
        return [self.n, m, context["task_state_store"].get("n"), context["ti"].map_index, context["ti"].try_number]

@task.sensor(mode="reschedule", poke_interval=0.1)
def seen(n, task_state_store=None):
    return task_state_store.increment("looks") > n

@task
def total(parts, looks):
    mark(parts)

with DAG("d"):
    total(Later.partial(task_id="later").expand(n=[1, 2, 3]).output, seen.expand(n=[0, 1]))
"""
    )
    assert go(ground).status == 0
    assert ground.marks == ["[[1, 1, 1, 0, 1], [2, 2, 2, 1, 1], [3, 3, 3, 2, 1]]"]
    assert [at(ground, index, "seen")["looks"] for index in range(2)] == [1, 2]
    assert [row.attempt for row in rows(ground, "later") + rows(ground, "seen")] == [1] * 5


# --- Mapped again ----------------------------------------------------------------------------------------


def test_without_keys_a_changed_position_begins_afresh_and_the_others_keep_their_state(ground: Ground) -> None:
    list_is(ground, "a", "b", "c")
    ground.dag(PLAIN)
    assert go(ground).status == 0
    told = map_again(ground, "a", "x", "c", "d")
    assert "copy: other items than before at 1; these begin afresh, without their state" in " ".join(told.err.split())
    assert [at(ground, index) for index in range(4)] == [
        {"item": "a", "seen": 2},
        {"item": "x", "seen": 1},
        {"item": "c", "seen": 2},
        {"item": "d", "seen": 1},
    ]
    assert ground.marks[-1] == "['A', 'X', 'C', 'D']"
    assert [row.attempt for row in rows(ground)] == [2, 2, 2, 1]


def test_with_keys_every_item_keeps_its_own_state(ground: Ground) -> None:
    list_is(ground, "a", "b", "c")
    ground.dag(KEYED)
    assert go(ground).status == 0
    for order in ("cab", "cxb", "bc"):
        told = map_again(ground, *order)
        assert "other items than before" not in " ".join(told.err.split())
        assert ground.marks[-1] == str([name.upper() for name in order])
        assert [at(ground, index)["item"] for index in range(len(order))] == list(order)
    seen = {name: of(ground, name)["seen"] for name in "abcx"}
    assert seen == {"a": 2, "b": 4, "c": 4, "x": 1}
    assert ground.command("state", "get", "d/r/copy", "--item", "a", "seen").status == 0


def test_an_instance_reads_the_state_of_its_item_at_its_position_now(ground: Ground) -> None:
    """`map_index` at a door means the item that is there now."""
    list_is(ground, "a", "b")
    ground.dag(KEYED)
    assert go(ground).status == 0
    assert at(ground, 0)["item"] == "a"
    map_again(ground, "b", "a")
    assert [at(ground, index)["item"] for index in (0, 1)] == ["b", "a"]
    assert sorted(ground.marks[:-1]) == ["a at 1 before a", "b at 0 before b"]
    assert ground.command("tasks", "clear", "d/r/copy/0", "--discard-state", "--yes").status == 0
    assert go(ground).status == 0
    assert (of(ground, "a")["seen"], of(ground, "b")["seen"]) == (2, 1)


def test_the_log_of_an_item_stays_with_it(ground: Ground) -> None:
    list_is(ground, "a", "b")
    ground.dag(KEYED.replace("task_state_store.incr", "print(f'this is {name}'); task_state_store.incr"))
    assert go(ground).status == 0
    map_again(ground, "new", "b", "a")
    for index, name in enumerate(["new", "b", "a"]):
        said = ground.command("logs", f"d/r/copy/{index}", "--all").err
        assert [line for line in said.splitlines() if line.startswith("this is")] == [f"this is {name}"] * (
            1 if name == "new" else 2
        )


def test_clearing_while_instances_run_is_refused_unless_forced(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def names():
        return ["a", "b"] if first("names") else ["a", "c"]

    @task
    def copy(name, task_state_store=None):
        task_state_store.set("item", name)
        if first(f"hold {name}"):
            pid(f"pid {name}")
            forever()
        mark(name)

    copy.expand(name=names())
"""
    )
    for name in "c":
        (ground.folder / f"hold {name}").touch()
    program = ground.start("--run-id", "r")
    held = [ground.pid(f"pid {name}") for name in "ab"]
    assert ground.command("tasks", "clear", "d/r/names", "--downstream", "--yes").status == 9
    began = time.monotonic()
    assert ground.command("tasks", "clear", "d/r/names", "--downstream", "--yes", "--force").status == 0
    assert program.ends().status == 0
    assert time.monotonic() - began < 15
    assert sorted(ground.marks) == ["a", "c"]
    assert [at(ground, index) for index in range(2)] == [{"item": "a"}, {"item": "c"}]
    assert [row.crashes for row in rows(ground)] == [0, 0]
    assert not any(os.path.exists(f"/proc/{number}") for number in held)
