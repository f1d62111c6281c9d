"""The page, as HTML (marker http) and in a browser (marker page)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.public import Door, open_door
from support.servers import house

HERE = Path(__file__).parent
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and no others: the hook is told of all."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.http if item.path.stem.startswith("test_html") else pytest.mark.page)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path, secret_keys=("*password*",)) as door:
        yield door


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Start the system's Chromium once."""
    found = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("optional: no Chromium here, and none could be installed (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


Visiting = Callable[..., Any]


@pytest.fixture
def visit(chromium: Any, door: Door) -> Iterator[Visiting]:
    """Open the page in a browser of its own, logged in as an admin or (`token`) with a token; fail on what it logs."""
    contexts, complaints = [], []

    def visiting(path: str = "/", *, token: str | None = None, **options: Any) -> Any:
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
        if token is None:
            app = house().apps[door.url.rpartition("/")[2]]
            page.goto(f"{door.url}/login?once={app.state.tokens.link('ann@desk')}")
        else:
            page.goto(f"{door.url}/login")
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
        page.wait_for_selector("nav[aria-label=Main]")
        page.goto(door.url + path)
        return page

    yield visiting
    for context in contexts:
        context.close()
    assert complaints == []
