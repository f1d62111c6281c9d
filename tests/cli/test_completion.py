"""Shell completion: the scripts, and what is offered for commands, options, addresses and keys."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast

from .conftest import Told

Call = Callable[..., Told]


@pytest.fixture
def offered(program: Call) -> Callable[[str], list[str]]:
    """What a shell is offered at the end of a line."""

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        told = program(
            _OUTLAST_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len([w for w in words[:-1] if w]))
        )
        assert (told.status, told.err) == (0, "")
        return [shown.partition(",")[2] for shown in told.lines if shown]

    return complete


@pytest.fixture
def filled(store: outlast.Store) -> None:
    for address in ("nightly/r1/ingest", "nightly/r2/ingest", "weekly/r1/load/3"):
        store.task(address).set_many({"page": 1, "page/2": 2, "rows": 3})
    store.asset("orders").set("watermark", 1)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(program: Call, shell: str) -> None:
    told = program("completion", shell)
    assert (told.status, "_OUTLAST_COMPLETE" in told.out) == (0, True)
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=told.out, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_a_wrong_command_line(call: Call) -> None:
    assert call("completion", "tcsh").status == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("outlast sta", ["state", "state-store"]),
        ("outlast state h", ["history"]),
        ("outlast state ls --as", ["--asset", "--asset-uri", "--assets"]),
        ("outlast completion f", ["fish"]),
        ("outlast state get ", ["nightly/r1/ingest", "nightly/r2/ingest", "weekly/r1/load/3"]),
        ("outlast state get nightly/r2/", ["nightly/r2/ingest"]),
        ("outlast state ls week", ["weekly/r1/load/3"]),
        ("outlast state get nightly/r1/ingest ", ["page", "page/2", "rows"]),
        ("outlast state rm nightly/r1/ingest rows pa", ["page", "page/2"]),
        ("outlast state get --asset orders ", ["watermark"]),
        ("outlast state get not-an-address ", []),
        ("outlast state get --store nowhere.db ", []),
    ],
)
def test_what_is_offered(offered: Callable[[str], list[str]], filled: None, line: str, words: list[str]) -> None:
    assert offered(line) == words


def test_a_store_that_is_not_there_offers_nothing_and_is_not_created(
    offered: Callable[[str], list[str]], place: str
) -> None:
    assert offered("outlast state get ") == []
    assert list(Path(place).parent.iterdir()) == []
