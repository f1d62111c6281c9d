"""Every public name, error, setting, variable, command and option stands in docs/reference/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import outlast
from outlast import config, errors

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference() -> str:
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    return "\n".join(page.read_text() for page in pages)


def missing(names: list[str], text: str) -> list[str]:
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]


def test_every_public_name_is_documented(reference: str) -> None:
    assert missing(list(outlast.__all__), reference) == []


def test_every_error_is_documented_with_its_code(reference: str) -> None:
    tree = [error for error in subclasses(errors.OutlastError) if error.__module__ == errors.__name__]
    assert len(tree) >= 10
    assert missing([error.__name__ for error in tree] + [error.code for error in tree], reference) == []


def test_every_setting_is_documented(reference: str) -> None:
    settings = config.Config().explain()
    assert missing([setting.key for setting in settings], reference) == []
    assert [s.section for s in settings if f"[{s.section}]" not in reference] == []


def test_every_variable_is_documented(reference: str) -> None:
    variables = [config.URL_VARIABLE, config.FILE_VARIABLE, "OUTLAST__STATE_STORE__DEFAULT_RETENTION_DAYS"]
    assert missing(variables, reference) == []


def test_every_command_and_option_is_documented(reference: str) -> None:
    names = [name for command in commands() for name in command]
    assert missing(names, reference) == []


def test_every_command_and_option_has_a_help_text() -> None:
    bare = [path for path, command in walk(root(), "outlast") if not command.get_short_help_str()]
    assert bare == []
    options = [
        f"{path} {parameter.opts[0]}"
        for path, command in walk(root(), "outlast")
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.help
    ]
    assert options == []


def test_the_reason_that_excuses_a_skipped_test_is_documented() -> None:
    assert "`optional:`" in (ROOT / "README.md").read_text()


def subclasses(error: type[errors.OutlastError]) -> Iterator[type[errors.OutlastError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__.startswith("outlast."):
            yield from subclasses(child)


def commands() -> Iterator[list[str]]:
    """Yield each command's path and its options."""
    for path, command in walk(root(), "outlast"):
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        yield [path, *(max(option.opts, key=len) for option in options if not option.hidden)]


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if command.hidden:
        return
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            if child := command.get_command(context, name):
                yield from walk(child, f"{path} {name}")


def root() -> click.Group:
    """Return the command line's top group: `outlast.cli.main`, or the group that function calls."""
    from outlast import cli

    groups = [value for value in vars(cli).values() if isinstance(value, click.Group)]
    return cli.main if isinstance(cli.main, click.Group) else groups[0]
