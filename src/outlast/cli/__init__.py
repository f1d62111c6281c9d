"""The command line: arguments in, one call, text or JSON out.

Each command lives in a module of its own that is imported when the command is used, so that
`outlast --help` and shell completion stay fast. Only this package knows click and rich.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from .. import __version__
from ..errors import OutlastError

__all__ = ["main", "outlast"]


class Home(NamedTuple):
    """Where a command is defined, and the line `outlast --help` says about it."""

    module: str
    name: str
    help: str


#: Every command, in the order of `outlast --help`.
COMMANDS = {
    "run": Home("run", "run", "Run a DAG file to its end, and resume it after a crash."),
    "runs": Home("runs", "runs", "Look at runs, cancel, remove or prune them."),
    "tasks": Home("tasks", "tasks", "Look at the task instances of a run; clear, cancel or mark them."),
    "logs": Home("logs", "logs", "Print what an attempt has written, or follow it."),
    "state": Home("state", "state", "Look at and change what tasks and assets have stored."),
    "assets": Home("assets", "assets", "Look at assets: their state, who wrote it, and when they were updated."),
    "state-store": Home("state_store", "state_store", "Look after the place where state is kept."),
    "backup": Home("backup", "backup", "Write the whole store to one file, while it is in use."),
    "restore": Home("backup", "restore", "Fill an empty store from a backup."),
    "db": Home("db", "db", "Make a database's schema, bring it forward, or check it."),
    "token": Home("token", "token", "Say who may use a server: make tokens, list and revoke them."),
    "serve": Home("serve", "serve", "Serve a store over HTTP, to workers, programs and people."),
    "airflow": Home("airflow", "airflow", "Look at an Airflow's use of outlast; move state there or back; sweep."),
    "audit": Home("audit", "audit", "Show what people have changed, and when."),
    "doctor": Home("doctor", "doctor", "Say which store is meant, and whether it is well."),
    "config": Home("config", "config", "Show the settings that hold."),
    "completion": Home("completion", "completion", "Print the script that completes commands in your shell."),
}

EXIT_OUTPUT = 74  # the output could not be written
EXIT_INTERRUPTED = 130  # as shells say it of a program ended by Ctrl-C
EXIT_BROKEN_PIPE = 141  # as shells say it of a program whose reader has gone
COMPLETE_VARIABLE = "_OUTLAST_COMPLETE"


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        home = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f".{home.module}", __name__), home.name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            from .options import refuse_unknown

            refuse_unknown(self, ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.help) for name, home in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["--help", "-h"]})
@click.version_option(__version__, prog_name="outlast", message="%(prog)s %(version)s")
def outlast() -> None:
    """Keep what a task has learned when its process does not live.

    \b
    outlast state ls                                  what is stored, and where
    outlast state get nightly/2026-11-29/ingest page  one value
    outlast doctor                                    which store is meant, is it well

    Which store is meant: --store of a command, else OUTLAST_URL, else the nearest outlast.toml
    upward, else a file in your own state folder. Every command has --help.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status: 0, 2 for a wrong command line, or that of the error's class."""
    try:
        return _status(arguments)
    finally:
        if arguments is None:  # one more Ctrl-C has nothing left to interrupt
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _status(arguments: Sequence[str] | None) -> int:
    _open_missing()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return status
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OutlastError as error:
        return _say(error.message, error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        _give_up_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        _give_up_output()
        return _say(str(error), EXIT_OUTPUT)


def _run(arguments: list[str]) -> int:
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(outlast, {}, "outlast", COMPLETE_VARIABLE, instruction)
    with outlast.make_context("outlast", arguments or ["--help"]) as context:
        outlast.invoke(context)
    return 0


def _open_missing() -> None:
    """Give a program that was started without standard input, output or error ones that lead nowhere."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _say(message: str, status: int) -> int:
    print(f"outlast: {message}", file=sys.stderr)
    return status


def _give_up_output() -> None:
    """Let what is still buffered go nowhere: nobody reads it, or it cannot be written."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # no descriptor of its own: nothing to do
        pass
