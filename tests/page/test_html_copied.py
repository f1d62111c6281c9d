"""What the page offers to copy, typed as it stands: names that begin with `-` are no options."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from support.copied import do
from support.public import Door

from .test_html import html

ODD = "/tasks/-etl/-r1/-load"


def copies(door: Door, path: str) -> dict[str, str]:
    """Return what stands under "Copy as", by what it is for."""
    found = re.findall(r'<span class="label">([^<]+)</span><pre tabindex="0">(.*?)</pre>', html(door, path), re.DOTALL)
    return {name: unescape(text) for name, text in found}


@pytest.mark.parametrize(("path", "wanted"), [(ODD, "--key"), (f"{ODD}?key=--key", "41"), ("/runs/-etl/-r1", "-load")])
@pytest.mark.parametrize("way", ["Command line", "Python"])
def test_names_that_begin_with_a_dash_are_typed_as_names(
    door: Door, tmp_path: Path, path: str, wanted: str, way: str
) -> None:
    door.desk("-r1", "-etl").start("-load")
    door.task("-load", run_id="-r1", dag_id="-etl").set("--key", 41)
    text = copies(door, path)[way]
    assert wanted in do(text, door, tmp_path), text


def test_options_stand_last_where_no_name_could_be_one(door: Door) -> None:
    door.task().set("page", 41)
    text = copies(door, "/tasks/etl/r1/load?key=page")["Command line"]
    assert text == f"outlast state get etl/r1/load page --store {door.url}"
    odd = copies(door, "/tasks/etl/r1/load?key=-page")["Command line"]
    assert odd == f"outlast state get --store {door.url} -- etl/r1/load -page"


def test_an_asset_with_a_dash_is_read_by_its_name(door: Door, tmp_path: Path) -> None:
    door.store.asset("--orders").set("-mark", 7)
    path = f"/assets/{door.asset_id('--orders')}"
    assert "-mark" in do(copies(door, path)["Command line"], door, tmp_path)
    assert "7" in do(copies(door, f"{path}?key=-mark")["Command line"], door, tmp_path)


def test_commands_in_sentences_are_quoted_too(door: Door) -> None:
    door.desk("a b", "-etl").start("load")
    page = unescape(html(door, "/tasks/-etl/a%20b/load"))
    assert f"outlast state set --store {door.url} -- '-etl/a b/load' page 41" in page


def test_texts_have_the_quotes_that_the_scripts_write(door: Door) -> None:
    door.task("it's").set('a"b', 41)
    text = copies(door, "/tasks/etl/r1/it's?key=a%22b")["Python"]
    assert text.endswith('    print(store.task("etl/r1/it\'s").get("a\\"b"))')
    assert copies(door, "/?dag=etl&state=failed&state=running")["Python"].endswith(
        '.list(dag_id="etl", states=["failed", "running"]))'
    )
