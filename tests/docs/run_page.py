"""Runs the code of one Markdown page as a reader would: its blocks in order, in one empty folder and one namespace.

    python tests/docs/run_page.py README.md

What is run: ```python blocks (`await` is allowed at the top level); ```bash and ```sh blocks, which must succeed; and
```console blocks, whose `$ command` lines must succeed and print what stands below them. In that output a line `…`
stands for any lines, `…` within a line for any text; a command with nothing below it may print anything, and one that
ends in `# exit 4` must exit so. A line that begins with `> ` goes on with the command above it.

An HTML comment on the line before a block changes that:

    <!-- no-test: reason -->   the block is not run
    <!-- file: name.py -->     the block, of any language, is written to that file instead
    <!-- fresh -->             a new folder and namespace from here on

Exits with 1 at the first block that does not hold, saying which and why.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>\w*)")
MARK = re.compile(r"^\s*<!--\s*(?P<word>no-test|file|fresh)\s*(?::\s*(?P<text>.*?))?\s*-->\s*$")
EXIT = re.compile(r"#\s*exit\s+(\d+)\s*$")
RUN = {"python", "console", "bash", "sh"}
LIMIT = 100  # seconds for the commands of one block


class Block(NamedTuple):
    """A fenced block; `line` is that of its first line of code, `mark` and `text` its HTML comment."""

    line: int
    language: str
    code: str
    mark: str
    text: str


class Command(NamedTuple):
    """One command of a console block, with what it must print (None: anything) and its exit status."""

    line: int
    code: str
    output: list[str] | None
    status: int


class Failure(Exception):
    """A block that does not hold."""


def main(page: Path) -> int:
    """Run a page's blocks and return the exit status."""
    namespace: dict[str, Any] = {}
    for block in blocks(page.read_text()):
        where = f"{page}:{block.line}"
        try:
            namespace = run(block, namespace, where)
        except Failure as failure:
            print(f"{where}: {failure}")
            return 1
    return 0


def run(block: Block, namespace: dict[str, Any], where: str) -> dict[str, Any]:
    if block.mark == "fresh" or not namespace:
        os.chdir(tempfile.mkdtemp(dir=os.environ.get("PAGE_FOLDER")))
        sys.path[0] = os.getcwd()
        namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    match block:
        case Block(mark="file"):
            Path(block.text).write_text(block.code)
        case Block(mark="no-test"):
            print(f"not run: {where}: {block.text}")
        case Block(language="python"):
            run_python(block, namespace, where)
        case Block(language="console"):
            run_commands(list(console(block)))
        case Block(language="bash" | "sh"):
            run_commands([Command(block.line, f"( set -e\n{block.code})", None, 0)])
    return namespace


def run_python(block: Block, namespace: dict[str, Any], where: str) -> None:
    try:
        tree = compile(
            "\n" * (block.line - 1) + block.code, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        result = eval(tree, namespace)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except (Exception, SystemExit) as error:
        traceback = error.__traceback__ and error.__traceback__.tb_next
        line = traceback.tb_lineno if traceback else block.line
        raise Failure(f"line {line} raised {type(error).__name__}: {error}") from error


def run_commands(commands: list[Command]) -> None:
    """Run the commands in one shell, so that `cd` and `export` last to the end of the block."""
    mark = "\x01"
    script = "".join(f"{command.code}\nprintf '{mark}%s{mark}' $?\n" for command in commands)
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(f"the commands took longer than {LIMIT} s") from error
    *told, rest = done.stdout.split(mark)
    for command, output, status in zip(commands, told[::2], told[1::2], strict=False):
        check(command, output, int(status))
    if ended := commands[len(told) // 2 :]:
        raise Failure(f"line {ended[0].line}: the shell ended with exit {done.returncode}: {ended[0].code}\n{rest}")


def check(command: Command, output: str, status: int) -> None:
    if status != command.status:
        raise Failure(f"line {command.line}: exit {status} instead of {command.status}: {command.code}\n{output}")
    if command.output is not None and not matches(command.output, output):
        expected = "\n".join(command.output)
        raise Failure(f"line {command.line}: {command.code}\n--- expected\n{expected}\n--- printed\n{output}")


def matches(expected: list[str], output: str) -> bool:
    """Compare line by line, blanks at the end of a line and of the output aside, with `…` for any text."""
    pattern = "".join(r"(?:.*\n)*" if line.strip() == "…" else loosely(line) + r"[ \t]*\n" for line in expected)
    return re.fullmatch(rf"{pattern}\s*", output.rstrip() + "\n") is not None


def loosely(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.rstrip().split("…"))


def console(block: Block) -> Iterator[Command]:
    """Split a console block at its `$ ` lines."""
    for text in re.split(r"^(?=\$ )", block.code, flags=re.MULTILINE):
        if not text.strip():
            continue
        if not text.startswith("$ "):
            raise Failure("a console block begins with a `$ command` line")
        yield command_of(block.line + block.code[: block.code.index(text)].count("\n"), text.rstrip("\n").split("\n"))


def command_of(line: int, text: list[str]) -> Command:
    code, *rest = text
    code = code[2:]
    while rest and (code.endswith("\\") or rest[0].startswith("> ")):
        code += "\n" + rest.pop(0).removeprefix("> ")
    status = EXIT.search(code)
    return Command(line, code, rest or None, int(status[1]) if status else 0)


def blocks(text: str) -> Iterator[Block]:
    """Find the fenced blocks of a page that are to be run, written to a file or left out on purpose."""
    lines = iter(enumerate(text.split("\n"), 1))
    before = ""
    for number, line in lines:
        if fence := FENCE.match(line):
            code = fenced(lines, number, fence)
            mark, told = marked(before, number)
            if mark == "file" or fence["language"] in RUN:
                yield Block(number + 1, fence["language"], code, mark, told)
        before = line if line.strip() else before


def fenced(lines: Iterator[tuple[int, str]], number: int, fence: re.Match[str]) -> str:
    code = []
    for _, line in lines:
        if line.strip().startswith(fence["fence"]) and not line.strip().strip(fence["fence"][0]):
            return textwrap.dedent("\n".join([*code, ""]))
        code.append(line)
    raise SystemExit(f"line {number}: this block has no end")


def marked(line: str, number: int) -> tuple[str, str]:
    mark = MARK.match(line)
    if mark is None:
        return "", ""
    if mark["word"] != "fresh" and not mark["text"]:
        raise SystemExit(f"line {number - 1}: <!-- {mark['word']}: … --> needs a text")
    return mark["word"], mark["text"] or ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
