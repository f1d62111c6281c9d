"""A night's work on the source of Python's own library: something real to look at on the page.

    outlast run examples/ui_night.py --dag crawl
    outlast run examples/ui_night.py --dag night --param pace=0.2

`crawl` moves a watermark from run to run. `night` reads every module page by page, checks forty of them one by one
(some do not pass), waits for a job of its own elsewhere, and follows a source that is slow and one that hangs.
Every task may be killed at any moment: `demo_ui.py` does it.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import time
from datetime import timedelta
from pathlib import Path

from outlast import DAG, NEVER_EXPIRE, Asset, task
from outlast.operators import ProcessJobOperator

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
SOURCE = Asset("library_source", LIBRARY.as_uri())
CHECKED = 40
LONGEST_FUNCTION = 120
SLOW_ITEMS = 5

#: Something elsewhere that takes its time; it also ends when its folder is removed.
JOB = """
import json, os, pathlib, sys, time
folder, seconds, library = os.environ["OUTLAST_JOB_FOLDER"], float(sys.argv[1]), pathlib.Path(sys.argv[2])
until = time.monotonic() + seconds
while time.monotonic() < until and os.path.isdir(folder):
    time.sleep(min(0.2, seconds))
files = [path.stat().st_size for path in library.glob("*.py")]
print(json.dumps({"files": len(files), "bytes": sum(files)}))
"""


def modules() -> list[Path]:
    """Return the library's modules that are one file, in order."""
    return sorted(path for path in LIBRARY.glob("*.py") if path.stat().st_size)


# --- A watermark over many runs ----------------------------------------------------------------------------------


@task(outlets=[SOURCE])
def read_new(params=None, asset_state_store=None, task_state_store=None):
    """Read the modules after the watermark, and move it."""
    if params["batch"] < 1:
        raise ValueError(f"batch is {params['batch']}; give the number of modules to read, 1 or more")
    watermark = asset_state_store.get("watermark", "")
    new = [path for path in modules() if path.name > watermark][: params["batch"]]
    for path in task_state_store.checkpoint(new, id=lambda path: path.name):
        time.sleep(params["pace"])
        lines = len(path.read_bytes().splitlines())
        with task_state_store.transaction() as tx:  # the watermark and the counts move together, or not at all
            asset = tx.of(asset_state_store[SOURCE])
            asset.set("watermark", path.name)
            asset.increment("modules")
            asset.increment("lines", lines)
    return len(new)


with DAG("crawl", params={"batch": 8, "pace": 0.02}):
    read_new()


# --- A night with everything in it -------------------------------------------------------------------------------


@task(inlets=[SOURCE])
def index(params=None, task_state_store=None, asset_state_store=None):
    """Go through all modules, a page at a time; a kill costs at most one page."""
    state, found = task_state_store, modules()
    state.set("session", {"reads_up_to": asset_state_store.get("watermark")}, retention=timedelta(minutes=5))
    state.set("api_token", f"t-{time.time_ns():x}")  # the server masks it
    size = -(-len(found) // params["pages"])
    for number in state.checkpoint(range(1, -(-len(found) // size) + 1)):
        began, page = time.monotonic(), found[(number - 1) * size : number * size]
        lines = sum(len(path.read_bytes().splitlines()) for path in page)
        time.sleep(params["pace"])
        with state.transaction() as tx:
            tx.set("pages_read", number, retention=NEVER_EXPIRE)
            tx.set("last_module", page[-1].name)
            tx.increment("lines", lines)
            tx.set("lines_per_second", round(lines / (time.monotonic() - began), 1))
    return state.get("lines")


@task
def choose(params=None):
    """Choose the largest modules, whose check is most likely to find something."""
    largest = sorted(modules(), key=lambda path: -path.stat().st_size)
    return sorted(path.name for path in largest[:CHECKED])


@task(retries=1, retry_delay=timedelta(seconds=1))
def check(module, params=None, task_state_store=None):
    """Check one module, function by function; one with a function that is too long does not pass."""
    tree = ast.parse((LIBRARY / module).read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in task_state_store.checkpoint(functions, every=25):
        time.sleep(params["pace"] / 100)
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > LONGEST_FUNCTION:
            raise ValueError(f"{module}: {function.name}() has {lines} lines; {LONGEST_FUNCTION} is the most")
    return len(functions)


class Archive(ProcessJobOperator):
    """Have the library counted by a process that outlives the worker; the next attempt finds it again."""

    def __init__(self, **kwargs):
        super().__init__(command="true", **kwargs)

    def execute(self, context):
        params = context["params"]
        self.command = [sys.executable, "-c", JOB, str(params["job"]), str(LIBRARY)]
        self.output_dir = params["output"] or None
        return super().execute(context)


@task
def slow_source(params=None, task_state_store=None):
    """Follow a source that is slow, and goes on all the same."""
    for _ in task_state_store.checkpoint(range(SLOW_ITEMS)):
        time.sleep(params["slow"])


@task
def hanging_source(params=None, task_state_store=None):
    """Follow a source that answers quickly and then, for a while, not at all."""
    for item in task_state_store.checkpoint(range(8)):
        time.sleep(params["hang"] if item == 4 else params["pace"])


@task(trigger_rule="all_done")
def report(lines, checked, task_state_store=None):
    """Say what the night has found, whatever has failed."""
    passed = [number for number in checked or [] if number is not None]
    task_state_store.set("report", {"lines": lines, "passed": len(passed), "functions": sum(passed)})


with DAG(
    "night",
    params={
        "pages": 80,  # pages of `index`
        "pace": 0.5,  # seconds a page takes
        "slow": 6,  # seconds an item of the slow source takes
        "hang": 45,  # seconds for which the other source hangs
        "job": 40,  # seconds the job elsewhere takes
        "output": "",  # the folder of that job's output; "": one in your own state folder
    },
):
    told = report(index(), check.expand(module=choose()))
    [slow_source(), hanging_source(), Archive(task_id="archive", poll_interval=0.2, json_result=True)] >> told
