"""What a runner keeps from the tasks it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outlast.runner import secrecy

_LOOK = """
import ctypes, os
from outlast.runner import secrecy
if os.geteuid() == 0:
    os.setuid(65534)
libc = ctypes.CDLL(None)
libc.prctl(4, 1, 0, 0, 0)
secrecy.keep_token()
print(libc.prctl(3, 0, 0, 0, 0), os.environ.get("OUTLAST_TOKEN"), secrecy.with_token()["OUTLAST_TOKEN"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_a_runner_that_is_not_root_keeps_its_token_from_others_of_its_user() -> None:
    environ = {**os.environ, "OUTLAST_TOKEN": "outl_r_x"}
    found = subprocess.run([sys.executable, "-c", _LOOK], env=environ, capture_output=True, text=True, check=True)
    assert found.stdout == "0 None outl_r_x\n"


def test_the_token_leaves_the_environment_and_is_there_for_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrecy, "closed_to_others", lambda: None)  # this process stays as it is
    monkeypatch.setattr(secrecy, "_kept", {})
    monkeypatch.setenv("OUTLAST__CLIENT__TOKEN", "outl_r_y")
    secrecy.keep_token()
    assert "OUTLAST__CLIENT__TOKEN" not in os.environ
    assert secrecy.with_token()["OUTLAST__CLIENT__TOKEN"] == "outl_r_y"
