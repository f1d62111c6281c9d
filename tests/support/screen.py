"""What a person does on the page, and sees there, for tests in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .public import Door

TASK = "/tasks/etl/r1/load"


def row(page: Any, key: str) -> Any:
    """Return the line of the state table with a key."""
    return page.locator(f"#state tr[data-key='{key}']")


def shows(page: Any, key: str, value: str) -> None:
    """Wait until the state table shows this value of a key."""
    row(page, key).locator("code.value").get_by_text(value, exact=True).wait_for()


def edit(page: Any, key: str) -> Any:
    """Open the editor of a key; return the field of its value."""
    row(page, key).get_by_role("button", name=f"Edit {key}").click()
    page.locator("#edit").wait_for()
    return page.locator("#edit-value")


def save(page: Any) -> None:
    """Save what is in the editor, which then closes."""
    page.get_by_role("button", name="Save").click()
    page.locator("#edit").wait_for(state="hidden")


def sure(page: Any) -> None:
    """Say yes to what the page asks, and wait until it is done."""
    page.locator("#sure-yes").click()
    page.locator("#sure").wait_for(state="hidden")


def is_live(page: Any, seconds: float = 10) -> None:
    """Wait until the mark says that the page follows the store."""
    page.wait_for_selector("#live[data-is=live]", timeout=seconds * 1000)


def stored(door: Door, key: str) -> tuple[str, Any]:
    """Return the text that is stored under a key, and when it expires."""
    told = door.get(f"/api/outlast/v1/runs/etl/r1/tasks/load/state/{key}")
    text = re.search(r'"value":(.*),"masked"', told.text)
    assert text is not None, told.text
    return text[1], told.json()["expires_at"]


def serious(page: Any) -> list[str]:
    """Return what axe finds serious or critical on a page, with where it is."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    bad = [each for each in found if each["impact"] in ("serious", "critical")]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in bad]


def link_of(said: Path) -> str:
    """Return the link that opens the page once, as `outlast serve` printed it into a file."""
    found = re.search(r"http\S+once=\S+", said.read_text())
    assert found is not None
    return found[0]


def logged_in(browser: Any, said: Path, url: str, **options: Any) -> Any:
    """Open a browser by a server's link; return it at a view of the page."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(20_000)
    page.goto(link_of(said))
    page.wait_for_selector("nav[aria-label=Main]")
    page.goto(url)
    return page
