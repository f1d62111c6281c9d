"""The closed set of questions a backend answers about state, and the operations a commit is made of.

A backend has one method, `send(request)`, and its awaiting twin. Everything the public verbs do is
said in these requests, so a new verb touches the store module only. Values travel as canonical JSON
text; times are microseconds since the epoch. What the runner asks is in `run_requests`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from .values import AssetScope, Cursor, Scope, ScopeInfo, TaskScope, Writer

LIBRARY = Writer()


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests consist of: a field nobody knows is refused on the wire, not passed over."""


class Fence(Asked, frozen=True):
    """Who is asking: one attempt of one task scope; `scope_id` tells a re-created scope from the first."""

    scope: TaskScope
    attempt: int
    scope_id: int


class Row(msgspec.Struct, frozen=True):
    """One entry as stored; `text` is None for a deleted one, which stays for a while as a tombstone.

    `version` counts the writes of this key; `kept` is an upper bound for the bytes its history holds,
    `ring` how that is laid out.
    """

    name: str
    text: str | None
    revision: int
    updated_at: int
    expires_at: int | None
    writer: Writer
    version: int = 1
    kept: int = 0
    ring: int = 0


# --- Operations: what a commit does to one scope ---------------------------------------------------


class Put(Asked, frozen=True, tag="put"):
    """Write a value. With `keep_expiry` a live entry keeps its own; `expires_at` is then for an absent one."""

    name: str
    text: str
    expires_at: int | None
    keep_expiry: bool = False


class PutDefault(Asked, frozen=True, tag="put_default"):
    """Write a value only where there is none; answers what is stored afterwards."""

    name: str
    text: str
    expires_at: int | None


class Increment(Asked, frozen=True, tag="increment"):
    """Add to an integer, absent counting as 0; answers the sum."""

    name: str
    by: int
    expires_at: int | None
    keep_expiry: bool = True


class Remove(Asked, frozen=True, tag="remove"):
    """Delete one key; nothing happens when it is absent."""

    name: str


class RemoveAll(Asked, frozen=True, tag="remove_all"):
    """Delete every key of the scope; `history=True` erases their history as well, at once."""

    history: bool = False


class Check(Asked, frozen=True, tag="check"):
    """Go on only if the key is at this revision (None: absent); otherwise the commit is a Conflict."""

    name: str
    revision: int | None


class CheckPrefix(Asked, frozen=True, tag="check_prefix"):
    """Go on only if exactly these keys, at these revisions, begin with the prefix ("": all keys)."""

    prefix: str
    found: tuple[tuple[str, int], ...]


Operation: TypeAlias = Put | PutDefault | Increment | Remove | RemoveAll | Check | CheckPrefix


class Part(Asked, frozen=True):
    """What a commit does to one scope, in order."""

    scope: Scope
    operations: tuple[Operation, ...]


# --- Requests and their replies ----------------------------------------------------------------------


class Open(Asked, frozen=True, tag="open"):
    """Begin an attempt: raise the scope's fence to its number (None: the stored one + 1), creating the scope.

    `assets` are its inlets and outlets: a server names them in the attempt's token.

    `origin` says which of several task instances of that name this is, where an engine uses a run's name again, and
    `started` when it began. One that is not the recorded one, and no older, is a new run: it begins with nothing.
    """

    scope: TaskScope
    attempt: int | None
    assets: tuple[AssetScope, ...] = ()
    origin: str | None = None
    started: int | None = None


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The attempt's number and the scope's id; `anew`: what an earlier run of that name had left was removed."""

    attempt: int
    scope_id: int
    anew: bool = False


class Origin(msgspec.Struct, frozen=True):
    """What is recorded of a scope's origin, and when an attempt without one raised its fence (0: never)."""

    origin: str | None
    started: int | None
    fenced_at: int


class Read(Asked, frozen=True, tag="read"):
    """Read keys by name, or (names=None) those that begin with `prefix`, in code-point order.

    `after` and `limit` page through a long list, `offset` passes over so many first; `texts=False` leaves the values
    out.
    """

    scope: Scope
    names: tuple[str, ...] | None
    prefix: str = ""
    fence: Fence | None = None
    after: str | None = None
    limit: int | None = None
    texts: bool = True
    offset: int = 0


class Found(msgspec.Struct, frozen=True, tag="found"):
    """Live rows in code-point order; `scope_id` is 0 when there is no such scope.

    `more`: the page has fewer rows than asked for because their values are large; go on after the last.
    """

    scope_id: int
    revision: int
    rows: tuple[Row, ...]
    more: bool = False


class Count(Asked, frozen=True, tag="count"):
    """Ask how many live keys of a scope begin with a prefix."""

    scope: Scope
    prefix: str = ""
    fence: Fence | None = None


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """How many there are; `scope_id` is 0 when there is no such scope."""

    scope_id: int
    revision: int
    keys: int


class Commit(Asked, frozen=True, tag="commit"):
    """Change one or more scopes, all or nothing.

    `sent_at` is the writer's own time, for the correction of a skewed clock; `commit_id` lets a lost
    reply be asked for again. `create=False` (the public REST API) refuses a scope that does not exist.
    """

    parts: tuple[Part, ...]
    fence: Fence | None = None
    writer: Writer = LIBRARY
    sent_at: int = 0
    commit_id: str | None = None
    create: bool = True


class Receipt(msgspec.Struct, frozen=True, tag="receipt"):
    """What became of a commit: a part's scope with its revision now, and each operation's row, if any.

    That is the row after it; of what was removed or checked the row before, without its value.
    """

    revisions: tuple[int, ...]
    rows: tuple[tuple[Row | None, ...], ...]


class History(Asked, frozen=True, tag="history"):
    """Ask for a key's kept versions, newest first, the present one included."""

    scope: Scope
    name: str
    fence: Fence | None = None


class Versions(msgspec.Struct, frozen=True, tag="versions"):
    rows: tuple[Row, ...]


class Changes(Asked, frozen=True, tag="changes"):
    """Ask what changed in a scope since a cursor (None: everything there is)."""

    scope: Scope
    cursor: Cursor | None
    fence: Fence | None = None


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """Rows changed since, tombstones included, by revision; with `reset` all live rows instead."""

    cursor: Cursor
    reset: bool
    rows: tuple[Row, ...]


class Find(Asked, frozen=True, tag="find"):
    """Page through live rows across scopes by (scope id, name); ids given must match exactly.

    `ending` chooses keys that end with it, `name` is one key.
    """

    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    assets: bool = False
    after: tuple[int, str] | None = None
    limit: int = 1000
    ending: str = ""
    name: str | None = None


class FoundRow(msgspec.Struct, frozen=True):
    scope_id: int
    scope: Scope
    row: Row


class FindPage(msgspec.Struct, frozen=True, tag="find_page"):
    """One page; `after` is where the next one begins, None at the end."""

    rows: tuple[FoundRow, ...]
    after: tuple[int, str] | None


class ListScopes(Asked, frozen=True, tag="list_scopes"):
    """Page through scopes by id; `assets` chooses asset scopes instead of task scopes.

    Without `counts` their live entries are not counted, which takes a look at each of them.
    """

    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    assets: bool = False
    after: int = 0
    limit: int = 1000
    counts: bool = True


class ScopePage(msgspec.Struct, frozen=True, tag="scope_page"):
    scopes: tuple[ScopeInfo, ...]
    after: int | None


class Sweep(Asked, frozen=True, tag="sweep"):
    """Free the space of at most `limit` expired entries (and due tombstones and forgotten scopes).

    `older_than` (microseconds) leaves alone what expired more recently; `dry_run` only says what would go.
    """

    limit: int
    older_than: int = 0
    dry_run: bool = False
    after: tuple[int, str] | None = None


class Swept(msgspec.Struct, frozen=True, tag="swept"):
    """What one batch freed; `more` says another batch would find something. `rows` only with dry_run."""

    entries: int
    scopes: int
    more: bool
    rows: tuple[FoundRow, ...] = ()
    after: tuple[int, str] | None = None


class MergeAssets(Asked, frozen=True, tag="merge_assets"):
    """Make one asset of two, known by a name and by a URI; NotFound if there is neither.

    Where both have a key with different values, `prefer` says whose stays; without it that is a Conflict.
    """

    name: str
    uri: str
    writer: Writer
    prefer: Literal["name", "uri"] | None = None


class Merged(msgspec.Struct, frozen=True, tag="merged"):
    """The keys that came from the URI's asset, and those of which one of two values gave way."""

    moved: tuple[str, ...]
    dropped: tuple[str, ...]


class ForgetAsset(Asked, frozen=True, tag="forget_asset"):
    """Forget one of the two names of an asset, whose state stays; or the `whole` asset, with history and both names.

    It is addressed by the `name` or the `uri` to be forgotten. NotFound if there is none; Conflict when it has no
    other name, or when the whole of it still has entries.
    """

    name: str | None
    uri: str | None
    writer: Writer
    whole: bool = False


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """The name and the URI an asset had."""

    name: str | None
    uri: str | None


class Inspect(Asked, frozen=True, tag="inspect"):
    """Ask a backend about itself; `deep` also checks the integrity of what is stored (may take long)."""

    deep: bool = False


class Inspected(msgspec.Struct, frozen=True, tag="inspected"):
    """Facts for `outlast doctor`: (name, value) pairs, and problems, each a sentence with what to do."""

    facts: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


class Once(msgspec.Struct, frozen=True, tag="once"):
    """A request that is carried out once, however often it is sent under the same call id within an hour."""

    call_id: str
    request: Any


def inner(request: Any) -> Any:
    """Return what is asked for, also where it is to be carried out once."""
    return request.request if type(request) is Once else request


class Feed(Asked, frozen=True, tag="feed"):
    """Ask what has happened anywhere since a position (None: only where the feed stands), at most `limit` commits."""

    after: str | None = None
    limit: int = 1000


class Happened(msgspec.Struct, frozen=True):
    """A key's newest row (`text` is None for a deleted one), or a run that is not as it was; and its position."""

    position: str
    scope_id: int = 0
    scope: Scope | None = None
    row: Row | None = None
    run: tuple[str, str] | None = None


class FeedPage(msgspec.Struct, frozen=True, tag="feed_page"):
    """What has happened, in order, and the position to go on from; `reset`: what was between is not known any more.

    `latest` is told where only the feed's position was asked for: that of the last commit whose changes are to be seen,
    which may be one that is not told yet.
    """

    rows: tuple[Happened, ...]
    position: str
    reset: bool = False
    more: bool = False
    latest: str | None = None


class Pause(msgspec.Struct, frozen=True):
    """Not a question: a plan asks its driver to wait this many seconds, blocking or awaiting."""

    seconds: float


Request: TypeAlias = Open | Read | Commit | History | Changes | Find | ListScopes | Sweep | MergeAssets | Inspect
Reply: TypeAlias = Opened | Found | Receipt | Versions | Changed | FindPage | ScopePage | Swept | Merged | Inspected
