"""Take pictures of the page while the demo's night runs: every view light and dark, wide and narrow, full and empty.

    make screenshots

All of them go to build/screenshots; the few the documentation shows go to docs/img as well.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import demo_ui
from playwright.sync_api import Browser, Page, sync_playwright

import outlast

ROOT = Path(__file__).resolve().parent.parent
ALL, SHOWN = ROOT / "build" / "screenshots", ROOT / "docs" / "img"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
SIZES = {"wide": (1200, 920), "narrow": (400, 800)}
#: The pictures the documentation shows, by what they are called there; none may be larger than this.
CHOSEN = {
    "runs-light-wide": "runs",
    "run-light-wide": "run",
    "task-light-wide": "task-light",
    "task-dark-wide": "task-dark",
    "history-light-wide": "history",
}
MOST_BYTES = 150_000
#: The page of the night's task after whose loading it is pictured: it has been killed three times by then.
AT_PAGE = 40

RUN, TASK = f"/runs/{demo_ui.NIGHT}", f"/tasks/{demo_ui.NIGHT}/index"
EMPTY = {"empty-runs": "/", "empty-assets": "/assets", "empty-find": "/find", "empty-health": "/health"}
EARLY = {"run": RUN, "job": f"/tasks/{demo_ui.NIGHT}/archive#job"}
FULL = {
    "runs": "/",
    "run-later": RUN,
    "task": TASK,
    "then": f"{TASK}?at=20#then",
    "mapped": f"/tasks/{demo_ui.NIGHT}/check/0",
    "history": f"{TASK}?key=lines_per_second",
    "assets": "/assets",
    "find": "/find?key=*last*&go=1",
    "health": "/health",
}


def main() -> int:
    """Take all pictures; return the exit status."""
    chromium = next((found for name in CHROMIUMS if (found := shutil.which(name))), None)
    if chromium is None:
        sys.exit("Chromium is missing: apt-get install chromium")
    shutil.rmtree(ALL, ignore_errors=True)
    for folder in (ALL, SHOWN):
        folder.mkdir(parents=True, exist_ok=True)
    for name in [name for name in os.environ if name.startswith("OUTLAST_")]:
        del os.environ[name]
    with (
        demo_ui.temporary() as folder,
        sync_playwright() as playwright,
        demo_ui.Place(folder, 0) as place,
        outlast.connect(place.url) as store,
    ):
        demo_ui.FLOWS = Path(shutil.copy(demo_ui.FLOWS, folder))  # the pictures name no folder of yours
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        take_all(browser, place, store)
        browser.close()
    return chosen()


def take_all(browser: Browser, place: demo_ui.Place, store: outlast.Store) -> None:
    """Take the pictures of an empty store, let the night begin, and take the others when there is enough to see."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(place.link)
    page.wait_for_selector("nav[aria-label=Main]")
    session = context.storage_state()
    camera = Camera(browser, place.url, session)
    camera.take(EMPTY)
    night = threading.Thread(target=demo_ui.shown, args=(place, store, Namespace(once=True, pace=0.5)), daemon=True)
    night.start()
    at = demo_ui.Watched(store)
    demo_ui.until(lambda: at.page() >= 28, "page 28")
    camera.take(EARLY)
    demo_ui.until(lambda: at.page() >= AT_PAGE, f"page {AT_PAGE}")
    camera.take(FULL | {"asset": camera.asset()})
    night.join(300)


class Camera:
    """Takes a view light and dark, wide and narrow; the whole of it, up to a few screens."""

    def __init__(self, browser: Browser, url: str, session: object) -> None:
        self.url = url
        self.pages: dict[str, Page] = {}
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
                context = browser.new_context(storage_state=session, **options)
                self.pages[f"{scheme}-{size}"] = context.new_page()

    def asset(self) -> str:
        """Return the path of the one asset there is."""
        page = self.pages["light-wide"]
        page.goto(self.url + "/assets")
        return str(page.locator("#assets th a").first.get_attribute("href"))

    def take(self, views: dict[str, str]) -> None:
        """Take views as a whole; those the documentation shows also as they come up."""
        for name, path in views.items():
            for kind, page in self.pages.items():
                page.goto(self.url + path)
                time.sleep(0.3)  # for times in the viewer's zone, and the mark that says live
                page.screenshot(path=ALL / f"{name}-{kind}.png", full_page=True)
                if (shown := CHOSEN.get(f"{name}-{kind}")) is not None:
                    page.screenshot(path=SHOWN / f"{shown}.png")


def chosen() -> int:
    """Say how large the pictures are that the documentation shows; 1 if one is too large."""
    status = 0
    for name in sorted(CHOSEN.values()):
        size = (SHOWN / f"{name}.png").stat().st_size
        print(f"docs/img/{name}.png: {size / 1000:.0f} kB")
        status |= size > MOST_BYTES
    print(f"{len(list(ALL.iterdir()))} pictures in {ALL.relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
