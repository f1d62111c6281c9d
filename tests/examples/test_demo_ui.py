"""The demo of the page begins another night when somebody presses Enter at a terminal, and only then."""

from __future__ import annotations

import importlib.util
import os
import pty
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo_ui.py"


@pytest.fixture
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_ui_alone", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make standard input a terminal, and return where its keys are pressed."""
    keys, terminal = pty.openpty()
    with open(terminal, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield keys
    os.close(keys)


def test_enter_is_noticed_at_once_and_once(demo: ModuleType, keyboard: int) -> None:
    os.write(keyboard, b"\n")
    began = time.monotonic()
    assert demo.asked(30)
    assert time.monotonic() - began < 10
    assert not demo.asked(0.3)


def test_the_end_of_input_is_no_enter(demo: ModuleType, keyboard: int) -> None:
    os.write(keyboard, b"\x04")
    began = time.monotonic()
    assert not demo.asked(0.5)
    assert time.monotonic() - began >= 0.5


def test_what_is_piped_in_is_not_asked(demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "piped").write_text("\n\n")
    with open(tmp_path / "piped", encoding="utf-8") as piped:
        monkeypatch.setattr("sys.stdin", piped)
        assert not demo.asked(0.3)
