"""What dialogs offer to copy for names that begin with `-`: done elsewhere, it does what the dialog would have done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.copied import do
from support.public import Door
from support.screen import edit, row

from .test_changing import copied

WAY, PATH = "command line", "/tasks/-etl/-r1/-load"


def test_what_dialogs_offer_takes_no_name_for_an_option(door: Door, visit: Any, tmp_path: Path) -> None:
    desk = door.desk("-r1", "-etl")
    desk.start("-load")
    desk.ran("-load", "failed")
    state = door.task("-load", run_id="-r1", dag_id="-etl")
    state.set_many({"--key": 1, "-old": 1, "-tmp": 1})
    page = visit(PATH, permissions=["clipboard-read", "clipboard-write"])
    edit(page, "--key").fill("-5")
    do(copied(page, "#edit", WAY), door, tmp_path)
    assert state.get("--key") == -5

    row(page, "-old").get_by_role("button", name="Delete").click()
    do(copied(page, "#sure", WAY), door, tmp_path)
    assert state.get("-old") is None

    page.goto(door.url + PATH + "?key=-old")
    page.get_by_role("button", name="Restore").last.click()
    do(copied(page, "#sure", WAY), door, tmp_path)
    assert state.get("-old") == 1

    page.goto(door.url + "/find?key=-tmp")
    page.get_by_role("button", name="Delete these …").click()
    do(copied(page, "#sure", WAY), door, tmp_path)
    assert state.keys() == ["--key", "-old"]

    page.goto(door.url + PATH)
    page.get_by_label("keep only some keys").check()
    page.locator("#retry-keys input[data-key='-old']").uncheck()
    page.get_by_role("button", name="Run again …").click()
    do(copied(page, "#sure", WAY), door, tmp_path)
    assert desk.task("-load").state == "waiting"
    assert state.keys() == ["--key"]


def test_an_assets_name_with_a_dash_is_no_option(door: Door, visit: Any, tmp_path: Path) -> None:
    door.store.asset("-orders").set("-mark", 7)
    page = visit(f"/assets/{door.asset_id('-orders')}", permissions=["clipboard-read", "clipboard-write"])
    edit(page, "-mark").fill("8")
    do(copied(page, "#edit", WAY), door, tmp_path)
    assert door.store.asset("-orders").get("-mark") == 8
