"""`outlast backup` and `outlast restore`: a whole store as one file, and a store made of one."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from .. import __version__
from .. import backup as backups
from .. import config as configuration
from ..backends import file_of
from ..backup import Summary
from ..errors import InvalidValue
from . import show
from .opening import opened, stands_at
from .options import Command, Mistake, Place, as_json, at_place
from .person import person

__all__ = ["backup", "restore"]

#: Seconds between two words of progress: on a terminal, and in a log.
PAUSES = (0.2, 10.0)
#: What people count, by table; a deleted key counts as long as it is remembered.
_NOUNS = {
    "scope": ("scope", "scopes"),
    "entry": ("key", "keys"),
    "history": ("past version", "past versions"),
    "run": ("run", "runs"),
    "task": ("task instance", "task instances"),
    "asset_event": ("asset event", "asset events"),
    "audit": ("audit row", "audit rows"),
    "token": ("token", "tokens"),
}


@click.command(cls=Command, short_help="Write the whole store to one file, while it is in use.")
@at_place
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--without-tokens", is_flag=True, help="Leave out access tokens and the secrets that sign.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is a backup already.")
@as_json
def backup(place: Place, file: str, without_tokens: bool, overwrite: bool, as_json: bool) -> None:
    """Write the whole store to FILE as of one moment, while others go on using it; - is standard output.

    State with its history, runs, results, assets, the audit log, tokens' digests and signing secrets: FILE gets mode
    0600, and wants as much care as the store. Where its name ends in .gz it is compressed. It appears when it is
    complete, and can be restored into a SQLite file and into PostgreSQL, whichever it is from. Logs of attempts are
    not in it.

    What `outlast serve` serves is backed up where its database is: --store with what the server was started with.

    \b
    outlast backup nightly.jsonl.gz
    outlast backup --store postgresql://db/outlast - | gzip | ssh safe 'cat > outlast.gz'
    """
    if file == "-" and as_json:
        raise click.UsageError("--json and - would both write to standard output")
    if file == "-" and sys.stdout.isatty():
        raise click.UsageError("a backup is not for a terminal; redirect it, or name a FILE")
    if file != "-":
        _refuse_to_replace(file, overwrite)
    with opened(place.url, create=False) as store, _told("copied") as tell, _made(file) as made:
        summary = backups.write(
            store.backend, made, store.clock(), __version__, tokens=not without_tokens, progress=tell
        )
    if as_json:
        show.document({"file": file, **_document(summary)})
        return
    show.note(f"Wrote {_contents(summary)} to {'standard output' if file == '-' else file}.")
    if summary.rows("token", "secret"):
        show.note("Whoever has it has what signs tokens: keep it as safe as the store (or see --without-tokens).")


@click.command(cls=Command, short_help="Fill an empty store from a backup.")
@at_place
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Only check that FILE is complete and unchanged; open no store.")
@as_json
def restore(place: Place, file: str, dry_run: bool, as_json: bool) -> None:
    """Fill a store that is empty, or not there yet, from a backup; - is standard input. So one moves to PostgreSQL too.

    FILE is read to its end first: one that is cut short or was changed is refused before anything is opened. Then
    everything is written in one transaction, read back and compared, so a restore that is interrupted leaves the
    store empty. A store with anything in it is refused. Ids and revisions stay what they were; who follows what
    changes is told to read everything again.

    End what uses the old store first: an attempt that still runs could write to either.

    \b
    outlast restore nightly.jsonl.gz --dry-run
    outlast restore nightly.jsonl.gz --store new.db
    outlast backup - --store work.db | outlast restore - --store postgresql://db/outlast
    """
    with _readable(file) as source:
        with _told("checked") as tell:
            summary = backups.check(source, tell)
        if not dry_run:
            source.seek(0)
            _begin_again(place.url)
            with opened(place.url, create=True) as store, _told("restored") as tell:
                summary = backups.restore(store.backend, source, person(), progress=tell)
    if as_json:
        show.document({"file": file, "dry_run": dry_run, **_document(summary)})
    elif dry_run:
        show.line(f"{file} is complete: {_contents(summary)}, as of {summary.header.created_at}.")
    else:
        show.line(f"Restored {_contents(summary)}, as of {summary.header.created_at}; all of it read back the same.")


# --- Files ---------------------------------------------------------------------------------------------------


def _refuse_to_replace(path: str, overwrite: bool) -> None:
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise Mistake(f"{path} is there already; name another file, or give --overwrite to replace a backup")
    with _readable(path) as known:
        try:
            backups.check_header(known)
        except InvalidValue:
            raise Mistake(f"{path} is there and is no backup, so it is not replaced; name another file") from None


@contextmanager
def _made(path: str) -> Iterator[Any]:
    """Yield what is to be written to: it becomes the file, or goes to standard output, when the block has ended.

    A reader at the other end of a pipe may be slow, and so long a store's snapshot should not be held.
    """
    if path == "-":
        with tempfile.TemporaryFile() as whole:
            yield whole
            whole.seek(0)
            shutil.copyfileobj(whole, sys.stdout.buffer, 1024 * 1024)
        return
    path = os.path.realpath(path)
    part = f"{path}.{os.getpid()}.partial"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            if path.endswith(".gz"):
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                    yield packed
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise
    _sync_folder(os.path.dirname(path))


def _sync_folder(folder: str) -> None:
    """Make a file's new name survive a power failure, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _readable(path: str) -> Iterator[Any]:
    """Yield a file that can be read twice, uncompressed; a pipe is kept in a temporary file meanwhile."""
    with open(0, "rb", closefd=False) if path == "-" else open(path, "rb") as given, tempfile.TemporaryFile() as kept:
        raw: IO[bytes] = given
        if not given.seekable():
            shutil.copyfileobj(given.raw, kept, 1024 * 1024)  # a buffered read would see Ctrl-C when all is read
            raw = kept
            raw.seek(0)
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield gzip.GzipFile(fileobj=raw, mode="rb") if packed else raw


def _begin_again(url: str | None) -> None:
    """Let a new store begin where one is gone and only its lock file tells of it: this is what brings it back."""
    settings = configuration.load()
    path = file_of(configuration.resolve_url(url, settings)[0], settings)
    if path is not None and not stands_at(path) and os.path.exists(path + ".lock"):
        os.truncate(path + ".lock", 0)


# --- What people are told ------------------------------------------------------------------------------------


class _Progress:
    """Says now and then how many rows have been done: on one line of a terminal, or on lines of their own."""

    def __init__(self, done: str) -> None:
        self.done, self.shown, self.terminal = done, False, sys.stderr.isatty()
        self.next = time.monotonic() + PAUSES[not self.terminal]

    def __call__(self, rows: int) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next, self.shown = now + PAUSES[not self.terminal], True
        text = f"{self.done} {rows:,} rows so far"
        with suppress(OSError):
            click.echo(f"\r{text} …\x1b[K" if self.terminal else text, nl=not self.terminal, err=True)

    def end(self) -> None:
        """Leave the terminal's line empty."""
        if self.shown and self.terminal:
            with suppress(OSError):
                click.echo("\r\x1b[K", nl=False, err=True)


@contextmanager
def _told(done: str) -> Iterator[_Progress]:
    progress = _Progress(done)
    try:
        yield progress
    finally:
        progress.end()


def _contents(summary: Summary) -> str:
    shown = [show.count(summary.rows(name), *nouns) for name, nouns in _NOUNS.items() if summary.rows(name)]
    return ", ".join(shown) or "an empty store"


def _document(summary: Summary) -> dict[str, Any]:
    return {"header": summary.header, "tables": summary.tables}
