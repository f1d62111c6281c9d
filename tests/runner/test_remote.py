"""`outlast run --server`: workers that know a URL and the token of their attempt, and survive everything."""

from __future__ import annotations

import os
import pwd
import signal
import time

import pytest

from outlast.run_requests import GetRun, ListRuns
from outlast.values import TaskScope
from support.remote import NOBODY, Remote, made
from support.running import Program, exists

pytestmark = pytest.mark.http


TWO = """
with DAG("d"):
    @task
    def one(task_state_store=None):
        task_state_store.set("uid", os.getuid())
        task_state_store.set("env", dict(os.environ))
        return 2**70

    @task
    def two(number, task_state_store=None):
        task_state_store.set("number", number)

    two(one())
"""


def test_a_dag_runs_behind_a_server(remote: Remote) -> None:
    remote.dag(TWO)
    told = remote.run("--run-id", "r")
    assert told.status == 0, told.err
    assert remote.state("two") == {"number": 2**70}
    assert told.err.count("they can read its tokens") == (remote.user is None)
    assert remote.outcomes("one") == ["success"]
    assert remote.left_soon() == []


def test_workers_are_another_users_and_have_no_stronger_token(remote: Remote) -> None:
    remote.dag(TWO)
    assert remote.run("--run-id", "r", env={"SECRET_OF_RUNNER": "1"}).status == 0
    state = remote.state("one")
    env = state["env"]
    assert not any("outl_" in value for value in env.values())
    assert "OUTLAST_TOKEN" not in env
    if remote.user is not None:
        assert state["uid"] == pwd.getpwnam(NOBODY).pw_uid
        assert env["USER"] == NOBODY
        assert env["OUTLAST_URL"] == remote.server.url
        assert "SECRET_OF_RUNNER" not in env


EVERYTHING = """
from datetime import timedelta
from outlast import Asset, BaseOperator
from outlast.dags.triggers import TimeDeltaTrigger

class Wait(BaseOperator):
    def execute(self, context):
        context["task_state_store"].set("before", context["ti"].try_number)
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=0.3)), method_name="done")

    def done(self, context, event):
        return [2, 3, context["task_state_store"].get("before")]

with DAG("d"):
    @task(retries=1, retry_delay=timedelta(0))
    def twice(number, ti=None, task_state_store=None):
        ti.xcom_push("half", number / 2)
        if task_state_store.increment("tries") == 1:
            raise ValueError
        return 2 * number

    @task(outlets=[Asset("rows")])
    def total(numbers, asset_state_store=None):
        asset_state_store.set("total", sum(numbers))

    total(twice.expand(number=Wait(task_id="wait").output))

with DAG("consumer", schedule=[Asset("rows")]):
    @task(inlets=[Asset("rows")])
    def look(asset_state_store=None, task_state_store=None, triggering_asset_events=None):
        task_state_store.set("found", [asset_state_store.get("total"), len(triggering_asset_events)])

    look()
"""


def test_deferral_mapping_retries_results_and_assets_work_behind_a_server(remote: Remote) -> None:
    remote.dag(EVERYTHING)
    told = remote.run(env={"OUTLAST_TOKEN": remote.token("runner", ("d", "consumer"))})
    assert told.status == 0, told.err
    (found,) = remote.store.find(key="found")
    assert found.entry.value == [12, 1]


def test_a_runner_of_other_dags_may_not(remote: Remote) -> None:
    remote.dag(TWO)
    for token in (remote.token("runner", ("other",)), remote.token("worker"), remote.token("editor"), None):
        told = remote.run("--run-id", "r", env={"OUTLAST_TOKEN": token or ""})
        assert told.status == (77 if token is None or "_r_" not in token else 4), told.err
    assert remote.send(ListRuns()).runs == ()


# --- everything dies, one after the other ----------------------------------------------------------------------

#: A task in pages, and a job elsewhere which ends when there is a file `job-done`.
LONG = """
from outlast import BaseOperator, ResumableJobMixin

class Job(ResumableJobMixin, BaseOperator):
    def execute(self, context):
        return self.execute_resumable(context)

    def submit_job(self, context):
        mark("submitted")
        return "job-1"

    def get_job_status(self, external_id, context):
        return "done" if (HERE / "job-done").exists() else "running"

    def is_job_active(self, status):
        return status == "running"

    def is_job_succeeded(self, status):
        return status == "done"

    def poll_until_complete(self, external_id, context):
        pid("job-worker")
        wait_for("job-done")

    def get_job_result(self, external_id, context):
        return external_id

with DAG("d"):
    @task
    def pages(task_state_store=None, ti=None):
        mark(f"attempt {ti.try_number}")
        for page in range(task_state_store.get("page", 0) + 1, 41):
            pid(f"worker-{ti.try_number}")
            with task_state_store.transaction() as now:
                now.set("page", page)
                now.increment("rows", page)
            mark(f"page {page}")
            if page == 10 and ti.try_number == 1:
                forever()
            if page in (20, 30):
                wait_for({20: "server", 30: "database"}[page])
        return task_state_store.get("rows")

    @task
    def last(rows, job, task_state_store=None):
        task_state_store.set("all", [rows, job])

    job = Job(task_id="job")
    last(pages(), job.output)
"""


def without_a_server(remote: Remote) -> Program:
    """Run it until a worker was killed with SIGKILL, and so was the server."""
    remote.dag(LONG)
    program = remote.start("--run-id", "r")
    remote.pid("job-worker")
    remote.until(lambda: "page 10" in remote.marks, "page 10")
    os.kill(remote.pid("worker-1"), signal.SIGKILL)
    remote.until(lambda: "page 20" in remote.marks, "page 20")
    remote.server.kill()
    return program


def long_run(remote: Remote) -> Program:
    """Run it until a worker was killed with SIGKILL, and so was the server, which was away for a while."""
    program = without_a_server(remote)
    (remote.folder / "server").touch()
    time.sleep(2.5)  # calls fail, and are made again
    remote.server.start()
    return program


def check_results(remote: Remote, program: Program) -> None:
    (remote.folder / "job-done").touch()
    told = program.ends()
    assert told.status == 0, told.err
    assert remote.state("pages") == {"page": 40, "rows": 820}
    assert remote.state("last") == {"all": [820, "job-1"]}
    assert remote.counts["submitted"] == 1
    assert {remote.counts[f"page {page}"] for page in range(1, 41)} == {1}
    assert remote.outcomes("job") == ["success"]
    assert remote.outcomes("pages") == ["crashed", "success"]
    assert remote.left_soon() == []
    assert "waiting for it" in told.err
    assert "the server is back" in told.err


def test_a_run_survives_the_death_of_a_worker_and_of_the_server(remote: Remote) -> None:
    program = long_run(remote)
    (remote.folder / "database").touch()
    check_results(remote, program)


@pytest.mark.postgres
def test_a_run_survives_the_death_of_a_worker_of_the_server_and_of_postgresql() -> None:
    from support import postgres

    database = postgres.server()
    remote = made(f"{database.url}?schema=remote_{os.urandom(4).hex()}")
    try:
        program = long_run(remote)
        remote.until(lambda: "page 30" in remote.marks, "page 30")
        database.stop("immediate")
        (remote.folder / "database").touch()
        time.sleep(1.5)
        database.start()
        check_results(remote, program)
    finally:
        remote.close()


def test_ctrl_c_while_the_server_is_away_is_a_pause(remote: Remote) -> None:
    program = without_a_server(remote)
    program.signal(signal.SIGINT)
    told = program.ends()
    assert told.status == 69
    assert "to go on: outlast run d.py --run-id r" in told.err
    assert remote.left_soon(3.0) == []
    remote.server.start()
    for gate in ("server", "database", "job-done"):
        (remote.folder / gate).touch()
    told = remote.run("--run-id", "r")
    assert told.status == 0, told.err
    assert remote.state("last") == {"all": [820, "job-1"]}
    assert remote.counts["submitted"] == 1
    assert remote.outcomes("pages") == ["crashed", "paused", "success"]


def test_a_lease_that_lapsed_while_the_server_was_away_is_renewed_not_lost() -> None:
    remote = made(lease=2.0)
    try:
        remote.dag(
            """
with DAG("d"):
    @task
    def t(task_state_store=None, ti=None):
        pid("worker")
        wait_for("go")
        task_state_store.set("tries", ti.try_number)

    t()
"""
        )
        program = remote.start("--run-id", "r")
        worker = remote.pid("worker")
        remote.server.kill()
        time.sleep(3.0)
        remote.server.start()
        remote.until(lambda: "the server is back" in program.err, "the runner goes on")
        time.sleep(1.0)
        assert exists(worker)
        (remote.folder / "go").touch()
        assert program.ends().status == 0
        assert remote.state("t") == {"tries": 1}
        assert remote.outcomes("t") == ["success"]
    finally:
        remote.close()


def test_a_token_that_is_revoked_ends_what_was_begun_with_it(remote: Remote) -> None:
    from outlast.requests import LIBRARY
    from outlast.token_requests import RevokeToken

    remote.dag("with DAG('d'):\n    @task\n    def t():\n        pid('worker')\n        forever()\n    t()\n")
    program = remote.start("--run-id", "r")
    worker = remote.pid("worker")
    remote.send(RevokeToken(1, LIBRARY))
    told = program.ends()
    assert told.status == 77, told.err
    assert remote.until(lambda: not exists(worker))
    assert TaskScope("d", "r", "t") == remote.send(GetRun("d", "r")).tasks[0].scope


# --- attacks from a task's token ---------------------------------------------------------------------------------

ATTACK = """
from outlast import connect
from outlast import deferral_requests, event_requests, people_requests, requests, run_requests, token_requests
from outlast.config import load
from outlast.requests import *
from outlast.run_requests import *
from outlast.run_requests import ProcessRef
from outlast.values import AssetScope, TaskScope, Writer

ME, VICTIM = ("d", "r", "attack"), TaskScope("d", "r", "victim")
LIAR = Writer("library")
ROW = ProcessRef("h", 1, "s")
SET = (Put("k", '"stolen"', None),)

def attacks(number, fence):
    his = Fence(VICTIM, 1, number)
    mine = TaskScope(*ME)
    yield Read(VICTIM, None)
    yield Read(VICTIM, None, fence=his)
    yield History(VICTIM, "k")
    yield Changes(VICTIM, None)
    yield Commit((Part(VICTIM, SET),), None, LIAR)
    yield Commit((Part(VICTIM, SET),), his, LIAR)
    yield Commit((Part(mine, SET), Part(VICTIM, SET)), fence, LIAR)
    yield Commit((Part(AssetScope("other"), SET),), fence, LIAR)
    yield Read(AssetScope("other"), None)
    yield Open(VICTIM, None)
    yield Open(mine, None)
    yield Open(TaskScope("d", "s", "t"), None)
    yield GetRun("d", "r")
    yield ListRuns()
    yield ListScopes()
    yield Find()
    yield Feed(None)
    yield ListAttempts(VICTIM)
    yield ListAttempts(mine)
    yield NoteAftermath(VICTIM, 1)
    yield PullResults("d", "other", ("victim",), "return_value")
    yield PullResults("e", "r", ("victim",), "return_value")
    yield StartRun("e", "r", (), "{}", "f", "d", 0, ROW, 9.0)
    yield HoldRun("d", "r", ROW, 9.0)
    yield ReleaseRun("d", "r", ROW, "cancelled")
    yield Begin(VICTIM, 1, ROW, 9.0)
    yield Begin(mine, 1, ROW, 9.0)
    yield Resolve(VICTIM, "failed")
    yield ExpandTask("d", "r", "victim", ())
    yield Report(fence, "success", events=(NewEvent("other", None),))
    yield deferral_requests.ListDeferred((1,))
    yield deferral_requests.Fire(number, 1, "{}", dag_id="d")
    yield event_requests.AddEvents((NewEvent("other", None),))
    yield event_requests.ListEvents()
    yield people_requests.ListAudit()
    yield people_requests.CancelRun("d", "r", LIAR)
    yield run_requests.DeleteRun("d", "r", LIAR, True)
    yield PruneRuns(2**60, 100)
    yield token_requests.CreateToken(b"x" * 32, "admin", "me", LIAR)
    yield token_requests.ListTokens()
    yield token_requests.RevokeToken(1, LIAR)
    yield token_requests.MakeSecret(LIAR)
    yield Inspect()
    yield Sweep(10)

with DAG("d"):
    @task
    def victim(task_state_store=None):
        task_state_store.set("k", "secret")
        return task_state_store.fence.scope_id

    @task
    def attack(number, task_state_store=None):
        backend, fence = task_state_store.backend, task_state_store.fence
        tried = 0
        for request in attacks(number, fence):
            tried += 1
            for asked in (request, Once(os.urandom(8).hex(), request)):
                try:
                    reply = backend.send(asked)
                except Exception as error:
                    mark(f"{getattr(error, 'code', repr(error))} {type(request).__name__}")
                else:
                    mark(f"GOT {type(request).__name__}: {reply}")
        backend.send(Commit((Part(task_state_store.scope, (Put("unfenced", "1", None),)),), None, LIAR))
        found = [name for name, value in os.environ.items() if "outl_" in value]
        config = load()
        found += [] if config.client.token is None else ["configured"]
        with connect(os.environ.get("OUTLAST_URL") or URL) as store:
            try:
                store.task("d/r/victim").get("k")
            except Exception as error:
                mark(f"{getattr(error, 'code', repr(error))} connect")
            else:
                mark("GOT connect")
        task_state_store.set("found", found)
        task_state_store.set("tried", tried)

    attack(victim())
"""


def test_user_code_gets_at_nothing_with_its_token(remote: Remote) -> None:
    remote.dag(f"URL = {remote.server.url!r}\n" + ATTACK)
    (remote.folder / "outlast.toml").write_text(f'[client]\ntoken = "{remote.token("admin")}"\n')
    told = remote.run("--run-id", "r")
    assert told.status == 0, told.err + remote.log("attack")
    refused = [line for line in remote.marks if line.split()[0] in ("unauthorized", "not_found")]
    assert refused == remote.marks
    state = remote.state("attack")
    assert state.pop("tried") == ATTACK.count("    yield ")
    assert state == {"unfenced": 1, "found": []}
    assert remote.store.task("d/r/attack").entry("unfenced").writer.attempt == 1  # the token's own, whatever it said
    assert remote.state("victim") == {"k": "secret"}


def test_an_attempt_reports_updates_of_its_own_outlets_only(remote: Remote) -> None:
    remote.dag(
        """
from outlast import Asset, AssetAlias

A, B = Asset("a"), Asset("b", uri="s3://b")
with DAG("d"):
    @task(inlets=[A], outlets=[B])
    def t(asset_state_store=None):
        asset_state_store[A].set("seen", 1)
        asset_state_store[B].set("made", 2)

    @task(outlets=[AssetAlias("any")])
    def alias(outlet_events=None):
        outlet_events[AssetAlias("any")].add(Asset("found"))

    t()
    alias()
"""
    )
    told = remote.run("--run-id", "r")
    assert told.status == 0, told.err
    from outlast.event_requests import ListEvents

    assert sorted(event.name for event in remote.send(ListEvents()).rows) == ["b", "found"]
    assert dict(remote.store.asset("b", uri="s3://b").items()) == {"made": 2}
    assert dict(remote.store.asset("a").items()) == {"seen": 1}


# --- what is due after an attempt --------------------------------------------------------------------------------

AFTER = """
from datetime import timedelta
from outlast import BaseOperator, ResumableJobMixin

class Job(ResumableJobMixin, BaseOperator):
    cancel_on_final_failure = True

    def execute(self, context):
        return self.execute_resumable(context)

    def submit_job(self, context):
        return "job-1"

    def get_job_status(self, external_id, context):
        return "running"

    def is_job_active(self, status):
        return True

    def is_job_succeeded(self, status):
        return False

    def poll_until_complete(self, external_id, context):
        pid("worker")
        forever()

    def get_job_result(self, external_id, context): ...

    def cancel_job(self, external_id, context):
        context["task_state_store"].get("remote_job_id")
        mark(f"cancel {external_id} {os.getuid()}")

def failed(context):
    mark("failed " + str(context["task_state_store"].get("remote_job_id")))

with DAG("d"):
    Job(task_id="job", on_failure_callback=failed, WHAT)
"""


def test_the_job_of_an_attempt_that_ran_out_of_time_is_cancelled_by_its_own_token(remote: Remote) -> None:
    remote.dag(AFTER.replace("WHAT", "execution_timeout=timedelta(seconds=1)"))
    told = remote.run("--run-id", "r")
    assert told.status == 1, told.err
    uid = os.geteuid() if remote.user is None else pwd.getpwnam(NOBODY).pw_uid
    assert remote.marks[0] == f"cancel job-1 {uid}", remote.log("job")
    assert remote.marks[1].startswith("failed ")
    assert remote.task("job").aftermath is None


def test_a_job_whose_attempt_died_for_good_is_cancelled_and_its_callback_called(remote: Remote) -> None:
    remote.dag(AFTER.replace("WHAT", ""))
    program = remote.start("--run-id", "r", env={"OUTLAST__RUNNER__CRASH_RETRIES": "0"})
    os.kill(remote.pid("worker"), signal.SIGKILL)
    told = program.ends()
    assert told.status == 1, told.err
    uid = os.geteuid() if remote.user is None else pwd.getpwnam(NOBODY).pw_uid
    assert min(remote.marks) == f"cancel job-1 {uid}", told.err + remote.log("job")
    assert len(remote.marks) == 2
    assert remote.task("job").aftermath is None


@pytest.mark.parametrize("what", ["its folder", "itself"])
def test_the_log_of_another_user_s_worker_is_no_link_to_a_file_of_root_s(remote: Remote, what: str) -> None:
    if remote.user is None:
        pytest.skip("optional: only root can run something as another user")
    remote.dag(TWO)
    folder, target = remote.secret / "logs" / "d" / "r" / "one", remote.secret / "elsewhere"
    target.mkdir()
    (target / "attempt-1.log").write_text("root's")
    folder.parent.mkdir(parents=True)
    if what == "itself":
        folder.mkdir()
        (folder / "attempt-1.log").symlink_to(target / "attempt-1.log")
    else:
        folder.symlink_to(target)
    told = remote.run("--run-id", "r")
    assert told.status == 78, told.err
    assert f"cannot write to the log {folder}/attempt-1.log" in told.err
    assert "Traceback" not in told.err
    assert (target / "attempt-1.log").read_text() == "root's"


# --- several ---------------------------------------------------------------------------------------------------


def _counting(dag_id: str) -> str:
    return f"""
with DAG({dag_id!r}):
    @task
    def rows(task_state_store=None, ti=None):
        mark(f"{dag_id} {{ti.run_id}} begun")
        for _ in range(30):
            task_state_store.increment("rows")

    rows()
"""


@pytest.mark.postgres
def test_two_runners_and_two_servers_of_one_database_do_nothing_twice() -> None:
    from support import postgres

    remote = made(f"{postgres.server().url}?schema=remote_{os.urandom(4).hex()}")
    try:
        with remote.another_server() as other:
            for name in ("one", "two"):
                remote.dag(_counting(name), f"{name}.py")
            programs = [
                remote.start(f"{name}.py", "--run-id", run_id, server=server)
                for name, run_id, server in (
                    ("one", "r", remote.server),
                    ("two", "r", other),
                    ("one", "s", other),
                    ("one", "s", remote.server),  # the same run twice: one of them is refused
                )
            ]
            ends = [program.ends() for program in programs]
            assert [end.status for end in ends[:2]] == [0, 0], ends
            assert sorted(end.status for end in ends[2:]) == [0, 9], ends
            assert remote.counts == {"one r begun": 1, "two r begun": 1, "one s begun": 1}
            for address in ("one/r/rows", "two/r/rows", "one/s/rows"):
                assert dict(remote.store.task(address).items()) == {"rows": 30}
    finally:
        remote.close()
