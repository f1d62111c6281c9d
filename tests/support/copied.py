"""Does elsewhere what was copied from the page: a request of curl's, commands for a shell, a program in Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

from .public import Door


def do(text: str, door: Door, folder: Path) -> str:
    """Do it with the token of whoever looks at the page; return what it answered or printed."""
    if text.startswith("curl "):
        return _request(shlex.split(text.replace("$OUTLAST_TOKEN", str(door.token))))
    env = os.environ | {"OUTLAST_TOKEN": str(door.token), "PATH": f"{_program(folder)}:{os.environ['PATH']}"}
    command = ["sh", "-ec", text] if text.startswith("outlast ") else [sys.executable, "-c", text]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, input="", check=False)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


def _request(words: list[str]) -> str:
    method, body, headers, url = "GET", None, {}, words[-1]
    for option, value in zip(words[1:-1:2], words[2:-1:2], strict=True):
        match option:
            case "-X":
                method = value
            case "-d":
                body = value.encode()
            case "-H":
                name, _, content = value.partition(": ")
                headers[name] = content
            case _:
                raise AssertionError(option)
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def _program(folder: Path) -> Path:
    """Return a folder in which there is `outlast`, as this interpreter has it."""
    made = folder / "bin"
    made.mkdir(exist_ok=True)
    (made / "outlast").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m outlast.cli "$@"\n')
    (made / "outlast").chmod(0o755)
    return made
