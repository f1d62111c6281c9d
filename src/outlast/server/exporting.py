"""Export and import of state as one JSON stream: a scope, a run, a DAG or everything, an entry a line.

The first line says what the stream is, the last one that it is complete. Values are their exact text. Values of secret
keys are left out unless an admin asks for them; a mask is never imported.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import IO, Annotated, Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from .. import codec
from ..errors import BackendError, InvalidValue, OutlastError, Unauthorized, ValueTooLarge
from ..requests import Commit, Find, FindPage, FoundRow, Part, Put
from ..values import AssetScope, Scope, asset_scope, check_key, item_scope, moment, task_scope, to_micros
from . import rights
from .bodies import Aware, Value, canonical, decode, in_thread, shown, size
from .entries import hides
from .identity import identify
from .masking import MASKED, is_secret
from .operations import Call, Parameter, answer
from .outlast_shapes import AssetPlace, ErrorShape, ImportShape, TaskPlace
from .outlast_state import OPERATIONS, REFUSALS, REVEAL
from .turns import asker_of
from .wording import token_of

__all__ = ["NDJSON", "export_state", "import_state"]

logger = logging.getLogger("outlast.server")

NDJSON = "application/x-ndjson"
FORMAT: Literal[1] = 1
_PAGE = 500
#: Bytes of a stream to import that are kept in memory, the rest in a file; and of a whole one, at most.
_IN_MEMORY, _LONGEST = 8 * 1024 * 1024, 2 * 1024**3
#: Bytes of one line at most, beside what the largest value takes.
_LINE = 64 * 1024
#: Bytes a second that a client sends at least, all in all: 4 MBit, which is 70 minutes for the longest stream.
_SLOWEST = 512 * 1024
#: Imports at the same time in one server, one of each token.
_MOST_IMPORTS = 2
#: Entries, and characters of values, that a commit of an import writes at most.
_BATCH, _BATCH_LENGTH = 1000, 4 * 1024 * 1024


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """The first line."""

    outlast_export: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)]
    made_at: Aware


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One entry, and where it is; `revision` and `updated_at` are for readers, an import writes anew."""

    scope: TaskPlace | AssetPlace
    key: str
    value: Value
    expires_at: Aware | None = None
    updated_at: Aware | None = None
    revision: int = 0


class Footer(msgspec.Struct, forbid_unknown_fields=True):
    """The last line: how many entries there were, and how many were left out because they are secret."""

    end: Literal[True]
    entries: int
    left_out: int


def _only(name: str, help: str) -> Parameter:
    return Parameter(name, str, help, None)


_WHAT = (
    _only("dag_id", "Only state of this DAG's tasks."),
    _only("run_id", "Only state of this run; with dag_id."),
    _only("task_id", "Only state of this task's instances; with dag_id and run_id."),
    Parameter("map_index", int, "Only state of this index; with task_id.", None),
    _only("asset", "Only state of the asset with this name or URI."),
    REVEAL,
)


# --- Export --------------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET", "/export", tag="Across scopes", parameters=_WHAT, answers={200: Line, **REFUSALS}, gives=NDJSON
)
async def export_state(call: Call) -> Response:
    """Export the entries of a scope, a run, a DAG, an asset or of everything, as JSON lines.

    The last line is `{"end":true,…}`; without it the stream broke off. What is written meanwhile may be in it or not.
    """
    query = call.query
    for inner, outer in (("run_id", "dag_id"), ("task_id", "run_id"), ("map_index", "task_id")):
        if query[inner] is not None and query[outer] is None:
            raise InvalidValue(f"{inner} is given without {outer}; give both")
    if query["asset"] is not None and query["dag_id"] is not None:
        raise InvalidValue("asset and dag_id are both given; an asset belongs to no DAG: export one after the other")
    first = await _next_page(call, _finds(query)[0], None)
    return StreamingResponse(_stream(call, first), media_type=NDJSON)


def _finds(query: dict[str, Any]) -> list[Find]:
    tasks = Find(query["dag_id"], query["run_id"], query["task_id"], limit=_PAGE)
    assets = Find(assets=True, limit=_PAGE)
    if query["asset"] is not None:
        return [assets]
    return [tasks] if query["dag_id"] is not None else [tasks, assets]


async def _next_page(call: Call, find: Find, after: tuple[int, str] | None) -> FindPage:
    page: FindPage = await call.ask(msgspec.structs.replace(find, after=after))
    return page


async def _stream(call: Call, first: FindPage) -> AsyncIterator[bytes]:
    """Yield an export, as long as the token that it was asked for with is good: else it breaks off."""
    yield _line(Header(FORMAT, moment(call.now())))
    count = left_out = 0
    page: FindPage | None = first
    try:
        for find in _finds(call.query):
            page = page or await _next_page(call, find, None)
            while page is not None:
                rows = [found for found in page.rows if _is_meant(call.query, found)]
                told = [found for found in rows if not hides(call, found.row.name)]
                count, left_out = count + len(told), left_out + len(rows) - len(told)
                if told:
                    yield await in_thread(sum(size(found.row) for found in told), _lines, told)
                await identify(call.request)
                page = None if page.after is None else await _next_page(call, find, page.after)
    except OutlastError as error:  # the answer has begun: that its last line is missing tells
        logger.warning("an export of %s broke off: %s", call.who.name, error.message)
        return
    yield _line(Footer(True, count, left_out))


def _lines(told: list[FoundRow]) -> bytes:
    return b"".join(_line(_exported(found)) for found in told)


def _is_meant(query: dict[str, Any], found: FoundRow) -> bool:
    scope = found.scope
    if isinstance(scope, AssetScope):
        return query["asset"] is None or query["asset"] in (scope.name, scope.uri)
    return query["map_index"] is None or query["map_index"] == scope.map_index


def _exported(found: FoundRow) -> Line:
    scope, row = found.scope, found.row
    place: TaskPlace | AssetPlace
    if isinstance(scope, AssetScope):
        place = AssetPlace(scope.name, scope.uri)
    else:
        index = -1 if scope.item is not None else scope.map_index
        place = TaskPlace(scope.dag_id, scope.run_id, scope.task_id, index, scope.item)
    expires_at = None if row.expires_at is None else moment(row.expires_at)
    return Line(place, row.name, shown(row), expires_at, moment(row.updated_at), row.revision)


def _line(content: Any) -> bytes:
    return msgspec.json.encode(content) + b"\n"


# --- Import --------------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "POST",
    "/import",
    tag="Across scopes",
    body=Line,
    takes=NDJSON,
    answers={200: ImportShape, **REFUSALS, 409: ErrorShape, 413: ErrorShape},
)
async def import_state(call: Call) -> Response:
    """Write the entries of an export. Scopes that do not exist are made; keys that are not in the stream stay.

    The whole stream is checked before anything is written: one that broke off, that has a mask in it, or a scope that
    may not be written, is refused. Then it is written scope by scope; broken off, it can be sent again. Entries that
    have expired are left out. An admin's may have values above `[state_store] max_value_storage_bytes`.
    """
    if call.who.role not in ("editor", "admin"):
        role = token_of(call.who.role)
        makes = "`outlast token create --role editor` makes one"
        raise Unauthorized(f"importing is not for {role}; it takes an editor's or admin's: {makes}")
    with _place_of(call), tempfile.SpooledTemporaryFile(_IN_MEMORY) as stream:
        await _received(call, stream, call.request.app.state.settings.request_seconds)
        await asyncio.to_thread(_check, call, stream)
        return answer(await _write_all(call, stream))


@contextmanager
def _place_of(call: Call) -> Iterator[None]:
    """Have one of the few imports that a server does at the same time, if there is one to have."""
    state, who = call.request.app.state, asker_of(call)
    if not hasattr(state, "imports"):
        state.imports = set()
    if who in state.imports:
        raise BackendError("an import with this token is not done yet; send it again when that has ended")
    if len(state.imports) >= _MOST_IMPORTS:
        raise BackendError(f"this server has {_MOST_IMPORTS} imports to do; send it again when one has ended")
    state.imports.add(who)
    try:
        yield
    finally:
        state.imports.discard(who)


async def _received(call: Call, stream: IO[bytes], seconds: float) -> None:
    """Take a stream in as long as it keeps coming; InvalidValue when it does not, or does not begin as one does."""
    total, until, first = 0, asyncio.get_running_loop().time() + seconds, b""
    try:
        async with asyncio.timeout_at(until) as patience:
            async for part in call.request.stream():
                if total == len(first):
                    first = _begun(first + part)
                total += len(part)
                if total > _LONGEST:
                    raise ValueTooLarge(f"the stream is longer than {_LONGEST:,} bytes; export and import run by run")
                stream.write(part)
                patience.reschedule(until + total / _SLOWEST)
    except TimeoutError:
        raise InvalidValue(f"the stream came too slowly: {total:,} bytes, and then nothing; send it again") from None


def _begun(begin: bytes) -> bytes:
    """Return the beginning of a stream as long as its first line has not ended; InvalidValue if that is no header."""
    line, ended, _ = begin.partition(b"\n")
    if ended or len(begin) >= _LINE:
        decode(line[:_LINE], Header)
        return b""
    return begin


def _check(call: Call, stream: IO[bytes]) -> None:
    """Raise what is wrong with a stream, or with writing to a scope in it, before anything is written."""
    last: Scope | None = None
    for scope, _ in _entries(call, stream):
        if scope != last:
            rights.allowed(Commit((Part(scope, ()),)), call.who)
        last = scope


def _entries(call: Call, stream: IO[bytes]) -> Iterator[tuple[Scope, Put]]:
    """Yield what a stream says is to be written, in order; InvalidValue if it is not a complete export."""
    stream.seek(0)
    longest = codec.HARD_LIMIT + _LINE
    decode(stream.readline(_LINE), Header)
    count = 0
    for number, line in enumerate(iter(lambda: stream.readline(longest + 1), b""), 2):
        if len(line) > longest:
            raise InvalidValue(f"line {number:,} is longer than {longest:,} bytes, so it is no entry")
        if line.startswith(b'{"end"'):
            _check_end(decode(line, Footer), count, stream.readline(2))
            return
        yield _entry(call, line, number)
        count += 1
    raise InvalidValue(f'the stream broke off after {count:,} entries: its last line, with "end", is missing')


def _check_end(footer: Footer, count: int, following: bytes) -> None:
    if footer.entries != count:
        raise InvalidValue(f"the stream has {count:,} entries, but its last line says {footer.entries:,}; export again")
    if following:
        raise InvalidValue("the stream goes on after its last line; import one export at a time")


def _entry(call: Call, line: bytes, number: int) -> tuple[Scope, Put]:
    try:
        found = decode(line, Line)
        text = canonical(found.value, call.config, limited=call.who.role != "admin")
        expires_at = None if found.expires_at is None else to_micros(found.expires_at)
        put = Put(check_key(found.key), text, expires_at)
        scope = _scope(found.scope)
        if isinstance(scope, AssetScope) and expires_at is not None:
            raise InvalidValue("an asset's entries do not expire; leave expires_at out")
    except ValueError as error:
        raise InvalidValue(f"line {number:,}: {error}") from None
    if text == MASKED and is_secret(put.name, call.config.state_store.secret_keys):
        raise InvalidValue(f"line {number:,}: the value of {put.name!r} is a mask; leave it out, or export as an admin")
    return scope, put


def _scope(place: TaskPlace | AssetPlace) -> Scope:
    if isinstance(place, AssetPlace):
        return asset_scope(place.name, place.uri)
    return item_scope(task_scope(place.dag_id, place.run_id, place.task_id, place.map_index), place.item)


async def _write_all(call: Call, stream: IO[bytes]) -> ImportShape:
    done = ImportShape(0, 0, 0)
    batches = _batches(_entries(call, stream))
    last: Scope | None = None
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        scope, puts = batch
        now = call.now()
        live = [put for put in puts if put.expires_at is None or put.expires_at > now]
        await identify(call.request)  # what is to be written may take long
        await _write(call, scope, live)
        done.scopes += scope != last
        done.entries, done.expired = done.entries + len(live), done.expired + len(puts) - len(live)
        last = scope
    return done


def _batches(entries: Iterator[tuple[Scope, Put]]) -> Iterator[tuple[Scope, list[Put]]]:
    """Yield what follows one another in one scope together, as far as one commit is to have it."""
    current: Scope | None = None
    puts: list[Put] = []
    length = 0
    for scope, put in entries:
        if current is not None and (scope != current or len(puts) >= _BATCH or length > _BATCH_LENGTH):
            yield current, puts
            puts, length = [], 0
        current, length = scope, length + len(put.text)
        puts.append(put)
    if current is not None:
        yield current, puts


async def _write(call: Call, scope: Scope, puts: list[Put]) -> None:
    if puts:
        await call.ask(Commit((Part(scope, tuple(puts)),), None, call.writer, call.now()))
