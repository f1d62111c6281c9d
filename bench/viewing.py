"""How long the page takes to be seen: from the request to what is drawn, of large runs and large scopes."""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import Line, Setting, Target, spread
from serving import Serving

import outlast
from outlast.config import Config, StateStoreSettings
from outlast.run_requests import ProcessRef, StartRun, TaskSpec
from outlast.values import TaskScope

INSTANCES, KEYS, RUNS = 5_000, 10_000, 200
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
_VIEWS = {
    f"{RUNS} runs": "/",
    f"a run of {INSTANCES:,} instances": "/runs/etl/large",
    f"a task of {KEYS:,} keys": "/tasks/etl/r1/load",
    "a key's history": "/tasks/etl/r1/load?key=key00000",
    "find in all of it": "/find?key=key0000*",
    "health": "/health",
}
#: When the first text of a page was drawn, in milliseconds from when it was asked for.
_DRAWN = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def page(setting: Setting) -> list[Line]:
    """Measure each view as a server answers it and, where Chromium and playwright are installed, as it is drawn."""
    rounds = 5 if setting.quick else 15
    place = setting.folder / "page.db"
    _fill(place)
    lines = []
    with Serving(str(place), setting.folder) as server:
        url = f"http://127.0.0.1:{server.port}"
        for what, path in _VIEWS.items():
            setting.progress(f"page: {what} …")
            taken = [_asked(url + path, server.admin) for _ in range(rounds)]
            lines.append(Line(f"page, {what}: answered", spread(taken), "ms"))
        with _drawn(url, server.admin) as drawn:
            for what, path in _VIEWS.items() if drawn is not None else ():
                setting.progress(f"page: {what}, drawn …")
                taken = [drawn(path) for _ in range(rounds)]
                lines.append(Line(f"page, {what}: drawn", spread(taken), "ms", Target("≤", 300)))
    return lines


def _fill(place: Path) -> None:
    config = Config(state_store=StateStoreSettings(durability="process"))
    holder = ProcessRef("bench.test", 1, "now")
    with outlast.connect(place, config=config) as store:
        state = store.task(TaskScope("etl", "r1", "load"), attempt="new")
        for first in range(0, KEYS, 1000):
            state.set_many({f"key{number:05}": number for number in range(first, first + 1000)})
        for number in range(20):
            state.set("key00000", number)
        for number in range(RUNS):
            _start(store, f"r{number:03}", (TaskSpec("load"),), holder)
        _start(store, "large", tuple(TaskSpec("copy", index) for index in range(INSTANCES)), holder)


def _start(store: outlast.Store, run_id: str, tasks: tuple[TaskSpec, ...], holder: ProcessRef) -> None:
    store.backend.send(StartRun("etl", run_id, tasks, "{}", "/dags/etl.py", "digest", 0, holder, 3600.0))


def _asked(url: str, token: str) -> float:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}", "Accept": "text/html"})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1000


@contextmanager
def _drawn(url: str, token: str) -> Iterator[Callable[[str], float] | None]:
    """Yield what measures until a view's first text is drawn; None where there is no browser."""
    found = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        found = None
    if found is None:
        yield None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        seen: Any = browser.new_page(extra_http_headers={"Authorization": f"Bearer {token}"})

        def drawn(path: str) -> float:
            seen.goto(url + path)
            while (taken := seen.evaluate(_DRAWN)) is None:  # the page's policy lets nobody wait in it
                time.sleep(0.005)
            return float(taken)

        drawn("/")  # fetches style and scripts, which a browser keeps
        yield drawn
        browser.close()
