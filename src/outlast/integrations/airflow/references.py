"""Values as references: kept inside one when small, as a payload when large; and which payloads may go.

Order of things, so that no reference is ever without its payload: a payload is written before its reference, and is
removed only when the database holds another one, or none, in its place. What a crash leaves over in between is a
payload without a reference; `payload_sweep` finds those.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ... import codec
from ...errors import BackendError
from ...values import Clock, JsonValue, system_clock
from .packing import Packer, as_bytes, as_text, is_text
from .payloads import Payloads, new_name, read_checked, written_at

__all__ = ["OFFLOAD_ABOVE", "References", "is_payload", "payload_of", "place_of", "pointer", "scope_digest"]

logger = logging.getLogger("outlast.airflow")

#: Bytes of a packed value that are still kept in the database.
OFFLOAD_ABOVE = 32_768
#: Another task's payload of an asset may be on its way into the database; younger ones are left to the sweep.
ASSET_MARGIN = 600 * 1_000_000
#: Another task may have asked for an asset's reference and be about to read the payload it was given.
READ_MARGIN = 60 * 1_000_000

_POINTER = "o1p"
_NAME = re.compile(r"[at][0-9a-f]{31}/[0-9a-f]{32}/[0-9a-f]{24}-[0-9a-f]{32}")
_HALF = re.compile(r"\.[0-9a-f]{8}\.part$")

#: Asks the database for the reference of a key: its text, None for no reference; raises LookupError if it cannot say.
Current = Callable[[], "str | None"]


class _Known(msgspec.Struct, frozen=True):
    """A payload this process knows of: `writer` is the thread that wrote it, None if the database had it."""

    name: str
    writer: int | None


class References:
    """Makes references of values and values of references, for all tasks of one process."""

    def __init__(
        self,
        packer: Packer,
        payloads: Payloads | None = None,
        offload_above: int = OFFLOAD_ABOVE,
        clock: Clock = system_clock,
    ) -> None:
        self.packer, self.payloads, self.offload_above, self.clock = packer, payloads, offload_above, clock
        self._known: dict[str, list[_Known]] = {}
        self._askers: dict[str, Current] = {}
        self._leaving: list[str] = []
        self._lock = threading.Lock()

    def refer(self, value: JsonValue, scope: Any, key: str, current: Current) -> str:
        """Return a reference to a value, its payload written; what the last ones left over is removed."""
        packed = self.packer.pack(codec.dump(value))
        if self.payloads is None:
            return as_text(packed)
        place = place_of(scope, key)
        self._askers[place] = current
        self._remove_superseded(place, current)
        text = as_text(packed)
        if len(text) <= self.offload_above:
            return text
        name = new_name(place, packed, self.clock)
        self.payloads.write(name, packed)
        with self._lock:
            self._known.setdefault(place, []).append(_Known(name, threading.get_ident()))
        return pointer(name)

    def resolve(self, reference: str) -> JsonValue:
        """Return the value of a reference; None, with a line in the log, when its payload is lost."""
        if not is_text(reference) and payload_of(reference) is None:
            return _foreign(reference)
        name = payload_of(reference)
        if name is None:
            return _loaded(self.packer.unpack(as_bytes(reference)))
        packed = self._read(name)
        if packed is None:
            return None
        with self._lock:
            self._known.setdefault(name.rpartition("/")[0], [_Known(name, None)])
        return _loaded(self.packer.unpack(packed))

    def forget(self, scope: Any, key: str, thread: int | None = None) -> None:
        """Remove the payloads of a key that is no longer in the database, for a thread (None: this); never raises."""
        self._remove_all(place_of(scope, key), scope, thread)

    def forget_all(self, scope: Any, thread: int | None = None, *, later: bool = False) -> None:
        """Remove the payloads of a scope that is cleared; with `later` when `after_success` is called. Never raises."""
        self._remove_all(scope_digest(scope), scope, thread, later=later)

    def after_success(self, is_recorded: Callable[[], bool]) -> None:
        """Remove what `forget_all` has left, and what this and earlier tries have superseded; never raises.

        `is_recorded` says whether the success is in the database, where the rows then went; LookupError: unknown.
        """
        with self._lock:
            leaving, self._leaving = self._leaving, []
        if leaving and self._is_certain(is_recorded):
            self._remove(leaving)
        for place, current in list(self._askers.items()):
            if self._known.get(place):
                self._note_all(place)
                self._remove_superseded(place, current)

    # --- Which payloads may go -------------------------------------------------------------------------------

    def _is_certain(self, is_recorded: Callable[[], bool]) -> bool:
        try:
            if is_recorded():
                return True
            logger.warning("this try's success is not what Airflow has recorded; payloads stay as they are")
        except LookupError as error:
            logger.warning("payloads are left to `outlast airflow sweep`: %s", error)
        return False

    def _note_all(self, place: str) -> None:
        """Know of every payload of a task's key, also of those that a try which was killed has left."""
        assert self.payloads is not None
        if not place.startswith("t"):
            return
        try:
            names = [name for name in self.payloads.names(place + "/") if _NAME.fullmatch(name)]
        except BackendError as error:
            logger.warning("payloads are left to `outlast airflow sweep`: %s", error)
            return
        with self._lock:
            known = self._known.setdefault(place, [])
            seen = {payload.name for payload in known}
            known += [_Known(name, None) for name in names if name not in seen]

    def _remove_superseded(self, place: str, current: Current) -> None:
        """Remove the payloads of a key that the database no longer refers to, as far as this process knows them.

        One of another thread may be on its way into the database; one that was read from there was replaced.
        """
        with self._lock:
            known = self._known.get(place)
        if known == []:
            return
        try:
            held = current()
            if held is None and place.startswith("t"):  # so Airflow also answers a try that it has given up
                raise LookupError(place)
        except LookupError:  # left to the sweep
            with self._lock:
                self._known.setdefault(place, [])
            return
        now = _of_place(held, place)
        gone = [payload for payload in known or () if payload.name != now and self._is_over(payload, now)]
        with self._lock:
            rest = [payload for payload in self._known.get(place, ()) if payload not in gone]
            if now is not None and all(payload.name != now for payload in rest):
                rest.append(_Known(now, None))
            self._known[place] = rest
        self._remove(payload.name for payload in gone)

    def _is_over(self, payload: _Known, now: str | None) -> bool:
        """Say whether nobody can still need a payload that the database does not refer to, but to `now`."""
        if payload.writer not in (threading.get_ident(), None):
            return False
        if payload.name.startswith("t"):  # read by its own task only
            return True
        return now is not None and (written_at(now) or 0) <= self.clock() - READ_MARGIN

    def _remove_all(self, beginning: str, scope: Any, thread: int | None, *, later: bool = False) -> None:
        """Remove payloads; one that another thread has just written may be on its way into the database."""
        if self.payloads is None:
            return
        own, others = self._pop_known(beginning, threading.get_ident() if thread is None else thread)
        others = {name for name in others if (written_at(name) or 0) > self.clock() - READ_MARGIN}
        youngest = self.clock() - (ASSET_MARGIN if _is_asset(scope) else 0)
        try:
            names = [name for name in self.payloads.names(beginning + "/") if _NAME.fullmatch(name)]
        except BackendError as error:
            logger.warning("payloads of a cleared scope are left to `outlast airflow sweep`: %s", error)
            return
        going = [name for name in names if name in own or ((written_at(name) or 0) <= youngest and name not in others)]
        if later:
            with self._lock:
                self._leaving += going
        else:
            self._remove(going)

    def _pop_known(self, beginning: str, thread: int) -> tuple[set[str], set[str]]:
        """Forget the payloads of a place; return those that a thread, or an earlier try, has written, and others'."""
        with self._lock:
            places = [place for place in self._known if place == beginning or place.startswith(beginning + "/")]
            known = [payload for place in places for payload in self._known.pop(place)]
        own = {payload.name for payload in known if payload.writer in (thread, None)}
        return own, {payload.name for payload in known} - own

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                assert self.payloads is not None
                self.payloads.remove(name)
            except BackendError as error:
                logger.warning("the payload %s is left to `outlast airflow sweep`: %s", name, error)

    def _read(self, name: str) -> bytes | None:
        if self.payloads is None:
            raise BackendError(
                "a stored value is a payload outside the database, and this process does not know where: "
                "set [outlast] state_offload_url"
            )
        packed = read_checked(self.payloads, name)
        if packed is None:
            logger.error(
                "the payload %s of a stored value is gone from %s; the task gets None", name, self.payloads.url
            )
        return packed


def pointer(name: str) -> str:
    """Return the reference to a payload."""
    return _POINTER + name


def payload_of(reference: object) -> str | None:
    """Return the name of the payload a reference points to; None when it holds its value itself."""
    if not isinstance(reference, str) or not reference.startswith(_POINTER):
        return None
    name = reference[len(_POINTER) :]
    return name if _NAME.fullmatch(name) else None


def is_payload(name: str) -> bool:
    """Say whether something at a place of payloads is one, or half of one; whatever else is there is not ours."""
    return _NAME.fullmatch(_HALF.sub("", name)) is not None


def scope_digest(scope: Any) -> str:
    """Return the folder of the payloads of a worker's scope; it begins with a `t` for a task, an `a` for an asset."""
    parts: list[Any]
    if _is_asset(scope):
        parts = ["asset", scope.name, None if scope.name else scope.uri]
    else:
        parts = ["task", scope.dag_id, scope.run_id, scope.task_id, scope.map_index]
        region = getattr(scope, "region_id", None)  # Airflow 3.4's loops
        if region and int(region):
            parts.append(str(region))
    return str(parts[0])[0] + _short(json.dumps(parts))[1:]


def place_of(scope: Any, key: str) -> str:
    """Return where the payloads of a key are, `SCOPE/KEY`: the only ones that its row may have removed."""
    return f"{scope_digest(scope)}/{_short(key)}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _is_asset(scope: Any) -> bool:
    return not hasattr(scope, "dag_id")


def _of_place(reference: str | None, place: str) -> str | None:
    """Return the payload a reference points to if it is at a place: over REST a row can be given any reference."""
    name = payload_of(reference)
    return name if name is not None and name.startswith(place + "/") else None


def _loaded(text: bytes) -> JsonValue:
    try:
        return codec.load(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BackendError("a stored value is damaged: what was unpacked is not JSON") from None


def _foreign(reference: str) -> JsonValue:
    """Return the value of a reference that Airflow's base class made, before outlast was set."""
    try:
        return json.loads(reference)  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise BackendError(
            f"the reference {reference[:40]!r}… is not one of outlast's: it was written by another backend; read it "
            "with that one, or delete its key"
        ) from None
