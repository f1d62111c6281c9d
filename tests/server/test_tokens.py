"""Who shows a token: random ones, signed ones, the secrets that sign, and the link to the page."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jwt
import pytest

import outlast
from outlast import NotFound, StaleAttempt, Store, Unauthorized
from outlast.backends.sqlite import SQLiteBackend
from outlast.config import Config
from outlast.deferral_requests import Deferral
from outlast.people_requests import CancelRun
from outlast.requests import LIBRARY, Fence, Open, Opened, Read
from outlast.run_requests import Begin, NoteAftermath
from outlast.server.identity import Who
from outlast.server.tokens import ATTEMPT_SECONDS, LINK_SECONDS, REMEMBERED, SESSION_SECONDS, Tokens, any_exist
from outlast.token_requests import (
    ROLES,
    CreateToken,
    FindToken,
    ListSecrets,
    ListTokens,
    MakeSecret,
    RevokeToken,
    TokenRole,
    TokenRow,
    TouchToken,
    digest_of,
    is_token,
    role_of,
    token_text,
)
from outlast.values import AssetScope, TaskScope
from support.clock import Clock, Ticks
from support.homes import HOMES, Home
from support.runs import ANN, SUPERVISOR, Desk

T = TypeVar("T")
SCOPE = TaskScope("sales", "r1", "extract")
WORKER = Who("worker", "airflow", ("sales",), 7)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path: str, clock: Clock) -> Iterator[Store]:
    with outlast.connect(path, clock=clock) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgres"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A place for a store on each database, to open it several times."""
    home = HOMES[request.param](tmp_path)
    yield home
    home.close()


@pytest.fixture
def tokens(store: Store, clock: Clock, ticks: Ticks) -> Tokens:
    return Tokens(store.backend, clock, ticks)


def now(call: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(call)


def made(store: Store, role: TokenRole = "viewer", **more: Any) -> tuple[str, TokenRow]:
    """Make a token as the command line does."""
    text = token_text(role, os.urandom(32))
    return text, store.backend.send(CreateToken(digest_of(text), role, "ann", ANN, **more))


def opened(store: Store, scope: TaskScope = SCOPE) -> tuple[Open, Opened]:
    """Open a scope as a worker does, with two assets."""
    request = Open(scope, None, (AssetScope("orders"), AssetScope("rows", "s3://rows")))
    return request, store.backend.send(request)


def attempt_token(tokens: Tokens, store: Store, who: Who = WORKER) -> str:
    token = now(tokens.exchanged(*opened(store), who))
    assert token is not None
    return token


# --- Random tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_token_says_its_role_and_nothing_else(role: TokenRole) -> None:
    text = token_text(role, bytes(31) + b"\x3e")
    assert text == f"outl_{role[0]}_" + "0" * 41 + "10"  # 62 in base 62
    assert is_token(text)
    assert is_token(token_text(role, b"\xff" * 32))
    assert (role_of(text), role_of(text[:-1]), role_of("")) == (role, None, None)


def test_a_token_needs_all_its_randomness() -> None:
    with pytest.raises(ValueError, match="32 random bytes, not 31"):
        token_text("viewer", bytes(31))


def test_the_store_holds_a_digest_only(store: Store, path: str) -> None:
    text, row = made(store)
    store.close()
    content = b"".join(file.read_bytes() for file in Path(path).parent.iterdir())
    assert text.rpartition("_")[2].encode() not in content
    assert digest_of(text) in content
    assert not hasattr(row, "digest")


def test_a_token_stands_for_its_role_name_and_dags(store: Store, tokens: Tokens, clock: Clock) -> None:
    end = clock.now + 1_000_000
    text, _ = made(store, "editor", dags=("sales*", "nightly"), expires_at=end)
    assert now(tokens.who(text)) == Who("editor", "ann", ("sales*", "nightly"), 1, until=end)


@pytest.mark.parametrize(
    "text",
    ["", "outl_", "outl_v_short", token_text("viewer", bytes(32)), token_text("admin", b"1" * 32) + "0", "é" * 43],
)
def test_an_unknown_token_is_refused(tokens: Tokens, text: str) -> None:
    with pytest.raises(Unauthorized, match="not known here"):
        now(tokens.who(text))


def test_a_token_of_another_role_letter_is_another_token(store: Store, tokens: Tokens) -> None:
    text, _ = made(store, "viewer")
    with pytest.raises(Unauthorized):
        now(tokens.who(text.replace("outl_v", "outl_a")))


def test_a_token_ends_at_its_expiry(store: Store, tokens: Tokens, clock: Clock) -> None:
    text, _ = made(store, expires_at=clock.now + 1_000_000)
    clock.move(microseconds=999_999)
    assert now(tokens.who(text)).role == "viewer"
    clock.move(microseconds=1)
    with pytest.raises(Unauthorized, match="token 1 has expired"):
        now(tokens.who(text))


def test_a_revocation_holds_on_every_server_within_a_second(home: Home, clock: Clock, ticks: Ticks) -> None:
    with home.open(Config(), clock) as store, home.open(Config(), clock) as other:
        text, row = made(store)
        servers = [Tokens(store.backend, clock, ticks), Tokens(other.backend, clock, ticks)]
        for server in servers:
            assert now(server.who(text)).name == "ann"
        other.backend.send(RevokeToken(row.id, ANN))
        ticks.now += REMEMBERED
        for server in servers:
            with pytest.raises(Unauthorized, match="token 1 was revoked"):
                now(server.who(text))
    assert REMEMBERED <= 1.0


def test_the_use_of_a_token_is_noted_once_a_minute(store: Store, tokens: Tokens, clock: Clock, ticks: Ticks) -> None:
    text, _ = made(store)
    first = clock.now

    def used_after(seconds: float) -> int | None:
        clock.move(seconds=seconds)
        ticks.now += 2
        now(tokens.who(text))
        return store.backend.send(ListTokens()).rows[0].used_at

    assert used_after(0) == first
    assert used_after(59) == first
    assert used_after(1) == first + 60_000_000


def test_revoking_is_for_good_and_audited(store: Store, clock: Clock) -> None:
    made(store, "worker", dags=("a*",))
    revoked = store.backend.send(RevokeToken(1, ANN))
    at = clock.now
    clock.move(days=1)
    assert store.backend.send(RevokeToken(1, ANN)) == revoked
    assert revoked.revoked_at == at
    rows = store.runs_as(ANN).audit()
    facts = '{"role":"worker","name":"ann","dags":["a*"],"expires_at":null}'
    assert [(row.who, row.action, row.place, row.before, row.after) for row in rows] == [
        ("ann@desk", "revoke token", "token 1", facts, None),
        ("ann@desk", "create token", "token 1", None, facts),
    ]


def test_tokens_and_secrets_on_each_database(home: Home, clock: Clock) -> None:
    with home.open(Config(), clock) as store:
        text, row = made(store, "runner", dags=("a*", "b"), expires_at=clock.now + 1)
        assert row == TokenRow(1, "runner", "ann", ("a*", "b"), clock.now, clock.now + 1)
        assert store.backend.send(FindToken(digest_of(text))).rows == (row,)
        first = clock.now
        assert store.backend.send(TouchToken(1)).rows[0].used_at == first
        clock.move(seconds=59.999999)
        assert store.backend.send(TouchToken(1)).rows[0].used_at == first
        clock.move(microseconds=1)
        assert store.backend.send(TouchToken(1)).rows[0].used_at == clock.now == first + 60_000_000
        assert store.backend.send(RevokeToken(1, ANN)).revoked_at == clock.now
        with pytest.raises(outlast.Conflict, match="of this digest already"):
            store.backend.send(CreateToken(digest_of(text), "admin", "eve", ANN))
        made(store)
        assert [page.id for page in store.backend.send(ListTokens()).rows] in ([1, 2], [1, 3])
        assert [store.backend.send(MakeSecret(ANN)).id for _ in range(3)] == [1, 2, 3]
        secrets = store.backend.send(ListSecrets()).rows
        assert [secret.id for secret in secrets] == [3, 2]
        assert all(type(secret.content) is bytes and len(secret.content) == 32 for secret in secrets)
        assert len({secret.content for secret in secrets}) == 2
        assert home.rows()["secret"] == 2


def test_a_token_that_is_not_there_cannot_be_revoked(store: Store) -> None:
    with pytest.raises(NotFound, match="there is no token 5"):
        store.backend.send(RevokeToken(5, ANN))


@pytest.mark.parametrize(
    "wrong",
    [{"digest": b"short"}, {"dags": ()}, {"dags": ("",)}, {"name": ""}, {"name": "a\nb"}, {"name": "x" * 1501}],
    ids=str,
)
def test_a_token_that_could_not_be_used_is_not_made(store: Store, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"digest": bytes(32), "role": "viewer", "name": "ann", "writer": ANN, **wrong}
    with pytest.raises((outlast.InvalidKey, outlast.InvalidValue)):
        store.backend.send(CreateToken(**given))
    assert store.backend.send(ListTokens()).rows == ()


def test_tokens_are_listed_in_pages(store: Store) -> None:
    for _ in range(5):
        made(store)
    pages, after = [], 0
    while after is not None:
        page = store.backend.send(ListTokens(after, 2))
        pages.append([row.id for row in page.rows])
        after = page.after
    assert pages == [[1, 2], [3, 4], [5]]


def test_whether_any_token_is_good(store: Store, clock: Clock) -> None:
    assert not any_exist(store)
    made(store, expires_at=clock.now + 1)
    assert any_exist(store)
    clock.move(seconds=1)
    assert not any_exist(store)
    made(store)
    assert any_exist(store)
    store.backend.send(RevokeToken(2, ANN))
    assert not any_exist(store)


def test_a_server_s_own_admin_token_is_known_to_it_alone(store: Store, tokens: Tokens, clock: Clock) -> None:
    text = tokens.local("ann@desk")
    assert now(tokens.who(text)) == Who("admin", "ann@desk")
    assert store.backend.send(FindToken(digest_of(text))).rows == ()
    with pytest.raises(Unauthorized):
        now(Tokens(store.backend, clock).who(text))


# --- Attempts' tokens --------------------------------------------------------------------------------------------


def test_opening_exchanges_a_worker_s_token_for_an_attempt_s(store: Store, tokens: Tokens, clock: Clock) -> None:
    store.backend.send(CreateToken(bytes(32), "worker", "airflow", ANN))
    who = now(tokens.who(attempt_token(tokens, store, Who("worker", "airflow", ("sales",), 1))))
    until = clock.now + ATTEMPT_SECONDS * 1_000_000
    assert who == Who(
        "attempt",
        "sales/r1/extract attempt 1",
        ("sales",),
        1,
        Fence(SCOPE, 1, 1),
        (AssetScope("orders"), AssetScope("rows", "s3://rows")),
        until,
    )


def test_beginning_exchanges_a_runner_s_token_for_an_attempt_s(store: Store, tokens: Tokens) -> None:
    desk = Desk(store.backend, "sales")
    desk.start("extract")
    request = Begin(SCOPE, 0, SUPERVISOR, 30.0, (AssetScope("orders"),))
    task = store.backend.send(request)
    token = now(tokens.exchanged(request, task, Who("runner", "box")))
    assert token is not None
    who = now(tokens.who(token))
    assert (who.fence, who.assets) == (Fence(SCOPE, 1, task.scope_id), (AssetScope("orders"),))


@pytest.mark.parametrize("dag_id", ["a[1]*", "sales", "?"])
def test_an_attempt_sees_its_dag_and_no_other(store: Store, tokens: Tokens, dag_id: str) -> None:
    request, reply = opened(store, TaskScope(dag_id, "r1", "t"))
    token = now(tokens.exchanged(request, reply, Who("worker", "w")))
    assert token is not None
    who = now(tokens.who(token))
    assert who.may_see(dag_id)
    assert not any(who.may_see(other) for other in ("a1x", "salesman", "x", "*"))


def test_a_token_is_renewed_in_its_second_half(store: Store, tokens: Tokens, clock: Clock) -> None:
    who = now(tokens.who(attempt_token(tokens, store, Who("worker", "w"))))
    read = Read(SCOPE, ())
    assert now(tokens.exchanged(read, None, who)) is None
    clock.move(seconds=ATTEMPT_SECONDS // 2 + 1)
    again = now(tokens.exchanged(read, None, who))
    assert again is not None
    renewed = now(tokens.who(again))
    assert (renewed.fence, renewed.assets) == (who.fence, who.assets)
    assert renewed.until == clock.now // 1_000_000 * 1_000_000 + ATTEMPT_SECONDS * 1_000_000


def test_an_expired_token_of_the_newest_attempt_is_refused(store: Store, tokens: Tokens, clock: Clock) -> None:
    token = attempt_token(tokens, store, Who("worker", "w"))
    clock.move(seconds=ATTEMPT_SECONDS - 1)
    assert now(tokens.who(token)).role == "attempt"
    clock.move(seconds=1)
    with pytest.raises(Unauthorized, match="attempt 1 of sales/r1/extract has expired"):
        now(tokens.who(token))


def test_an_expired_token_of_a_superseded_attempt_is_stale(store: Store, tokens: Tokens, clock: Clock) -> None:
    token = attempt_token(tokens, store, Who("worker", "w"))
    clock.move(seconds=ATTEMPT_SECONDS)
    opened(store)
    with pytest.raises(StaleAttempt, match="superseded by attempt 2"):
        now(tokens.who(token))


def test_revoking_a_token_ends_the_attempts_it_began(store: Store, tokens: Tokens, clock: Clock, ticks: Ticks) -> None:
    _, row = made(store, "worker", expires_at=clock.now + 60_000_000)
    token = attempt_token(tokens, store, Who("worker", "ann", token_id=row.id))
    clock.move(minutes=2)
    ticks.now += 2
    assert now(tokens.who(token)).role == "attempt"  # it may outlast the expiry …
    store.backend.send(RevokeToken(row.id, ANN))
    ticks.now += REMEMBERED
    with pytest.raises(Unauthorized, match="token 1, for which this one was given"):
        now(tokens.who(token))  # … but not a revocation


def test_more_assets_than_a_header_holds_are_refused(store: Store, tokens: Tokens) -> None:
    request = Open(SCOPE, None, tuple(AssetScope(f"{number}" * 300) for number in range(100)))
    with pytest.raises(outlast.InvalidValue, match="100 inlets and outlets"):
        now(tokens.exchanged(request, store.backend.send(request), WORKER))


# --- Forged ones -------------------------------------------------------------------------------------------------


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def with_payload(token: str, **changes: Any) -> str:
    head, _, signature = token.split(".")
    claims = jwt.decode(token, options={"verify_signature": False})
    return f"{head}.{encoded({**claims, **changes})}.{signature}"


def unsigned(token: str) -> str:
    head = {"alg": "none", "typ": "JWT", "kid": "1"}
    return f"{encoded(head)}.{token.split('.')[1]}."


def signed_again(token: str, key: bytes, algorithm: str = "HS256", kid: object = "1", **changes: Any) -> str:
    claims = jwt.decode(token, options={"verify_signature": False})
    claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm, None if kid is None else {"kid": str(kid)})


KEY = b"k" * 64
FORGERIES: dict[str, Callable[[str, bytes], str]] = {
    "another scope": lambda token, key: with_payload(token, scope=["hr", "r1", "pay", -1, None]),
    "a later expiry": lambda token, key: with_payload(token, exp=2**40),
    "no signature": lambda token, key: unsigned(token),
    "its signature cut off": lambda token, key: token.rpartition(".")[0] + ".",
    "another key": lambda token, key: signed_again(token, KEY),
    "an empty key": lambda token, key: signed_again(token, b"\0" * 32),
    "another algorithm": lambda token, key: signed_again(token, key, "HS512"),
    "an unknown secret": lambda token, key: signed_again(token, key, kid="2"),
    "no secret named": lambda token, key: signed_again(token, key, kid=None),
    "a strange secret": lambda token, key: signed_again(token, key, kid="1' or '1'='1"),
    "for the page": lambda token, key: signed_again(token, key, aud="outlast page"),
    "for somebody else": lambda token, key: signed_again(token, key, aud="other"),
    "for nobody": lambda token, key: signed_again(token, key, aud=None),
    "of another issuer": lambda token, key: signed_again(token, key, iss="other"),
    "of no issuer": lambda token, key: signed_again(token, key, iss=None),
    "no expiry": lambda token, key: signed_again(token, key, exp=None),
    "an expiry that is no number": lambda token, key: signed_again(token, key, exp="never"),
    "no attempt": lambda token, key: signed_again(token, key, attempt=None),
    "a scope of other parts": lambda token, key: signed_again(token, key, scope=["sales"]),
    "no token at all": lambda token, key: "a.b.c",
    "deep nesting": lambda token, key: f"{token.split('.')[0]}.{'W1tb' * 5000}.x",
}


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")  # a key of 32 bytes is short for HS512
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_token_gets_nothing(store: Store, tokens: Tokens, forgery: str) -> None:
    token = attempt_token(tokens, store, Who("worker", "w"))
    key = store.backend.send(ListSecrets()).rows[0].content
    with pytest.raises(Unauthorized):
        now(tokens.who(FORGERIES[forgery](token, key)))
    assert now(tokens.who(token)).role == "attempt"


def test_what_is_signed_for_one_door_opens_no_other(store: Store, tokens: Tokens) -> None:
    attempt, session = attempt_token(tokens, store, Who("worker", "w")), now(tokens.session(Who("admin", "ann")))
    with pytest.raises(Unauthorized):
        now(tokens.who_of_session(attempt))
    with pytest.raises(Unauthorized):
        now(tokens.who(session))


# --- Secrets -----------------------------------------------------------------------------------------------------


def test_the_first_secret_is_made_when_one_is_needed(store: Store, tokens: Tokens) -> None:
    assert store.backend.send(ListSecrets()).rows == ()
    attempt_token(tokens, store)
    rows = store.backend.send(ListSecrets()).rows
    assert [(row.id, len(row.content)) for row in rows] == [(1, 32)]


def test_servers_that_begin_at_the_same_time_agree_on_a_secret(home: Home, clock: Clock) -> None:
    servers = [home.open(Config(), clock) for _ in range(4)]
    asked, reply = opened(servers[0])
    started, signed = threading.Barrier(4), []

    def begin(server: Store) -> None:
        mine = Tokens(server.backend, clock)
        started.wait()
        signed.append(asyncio.run(mine.exchanged(asked, reply, Who("worker", "w"))))

    threads = [threading.Thread(target=begin, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        for token in signed:
            assert now(Tokens(server.backend, clock).who(token)).role == "attempt"
        assert len(server.backend.send(ListSecrets()).rows) == 1
    for server in servers:
        server.close()


def test_two_secrets_are_good_during_a_rotation(store: Store, tokens: Tokens, ticks: Ticks) -> None:
    oldest = attempt_token(tokens, store, Who("worker", "w"))
    assert store.backend.send(MakeSecret(ANN)).id == 2
    ticks.now += REMEMBERED
    older = attempt_token(tokens, store, Who("worker", "w"))
    assert jwt.get_unverified_header(older)["kid"] == "2"
    assert now(tokens.who(older)).role == "attempt"
    assert now(tokens.who(oldest)).role == "attempt"
    assert store.backend.send(MakeSecret(ANN)).id == 3
    ticks.now += REMEMBERED
    assert now(tokens.who(older)).role == "attempt"
    with pytest.raises(Unauthorized):
        now(tokens.who(oldest))
    assert [row.id for row in store.backend.send(ListSecrets()).rows] == [3, 2]


def test_rotations_are_audited_and_tell_no_secret(store: Store) -> None:
    store.backend.send(MakeSecret(LIBRARY, first=True))
    store.backend.send(MakeSecret(LIBRARY, first=True))
    store.backend.send(MakeSecret(ANN))
    rows = store.runs_as(ANN).audit()
    assert [(row.who, row.action, row.place, row.before, row.after) for row in rows] == [
        ("ann@desk", "rotate secret", "secret 2", None, None)
    ]


# --- The page ----------------------------------------------------------------------------------------------------


def test_a_link_is_good_once(tokens: Tokens) -> None:
    code = tokens.link("ann@desk")
    assert tokens.redeem(code) == Who("admin", "ann@desk")
    with pytest.raises(Unauthorized, match="used before"):
        tokens.redeem(code)


def test_a_link_is_good_for_ten_minutes(tokens: Tokens, ticks: Ticks) -> None:
    code, late = tokens.link("ann"), tokens.link("ann")
    ticks.now += LINK_SECONDS - 1
    assert tokens.redeem(code).role == "admin"
    ticks.now += 1
    with pytest.raises(Unauthorized):
        tokens.redeem(late)
    assert LINK_SECONDS == 600


def test_a_link_s_code_is_no_token(tokens: Tokens) -> None:
    code = tokens.link("ann")
    for text in (code, f"outl_a_{code}"):
        with pytest.raises(Unauthorized):
            now(tokens.who(text))


def test_a_session_lasts_twelve_hours(tokens: Tokens, clock: Clock) -> None:
    cookie = now(tokens.session(Who("viewer", "ann", ("a*",))))
    clock.move(seconds=SESSION_SECONDS - 1)
    who = now(tokens.who_of_session(cookie))
    assert (who.role, who.name, who.dags) == ("viewer", "ann", ("a*",))
    clock.move(seconds=1)
    with pytest.raises(Unauthorized, match="session has ended"):
        now(tokens.who_of_session(cookie))
    assert SESSION_SECONDS == 12 * 3600


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_session_ends_with_the_token_it_was_given_for(
    store: Store, tokens: Tokens, clock: Clock, ticks: Ticks, end: str
) -> None:
    text, row = made(store, expires_at=clock.now + 60_000_000)
    cookie = now(tokens.session(now(tokens.who(text))))
    assert now(tokens.who_of_session(cookie)).token_id == row.id
    if end == "revoked":
        store.backend.send(RevokeToken(row.id, ANN))
    else:
        clock.move(minutes=1)
    ticks.now += REMEMBERED
    with pytest.raises(Unauthorized, match="is not good any more"):
        now(tokens.who_of_session(cookie))


def test_a_session_ends_when_it_is_left_and_when_the_secret_is_rotated(
    store: Store, tokens: Tokens, ticks: Ticks
) -> None:
    left, kept = (now(tokens.session(Who("admin", name))) for name in ("ann", "bob"))
    now(tokens.end_session(left))
    with pytest.raises(Unauthorized, match="session has ended"):
        now(tokens.who_of_session(left))
    assert now(tokens.who_of_session(kept)).name == "bob"
    store.backend.send(MakeSecret(ANN))
    ticks.now += REMEMBERED
    with pytest.raises(Unauthorized, match="session has ended"):
        now(tokens.who_of_session(kept))


def test_a_session_goes_on_at_another_server_and_after_a_restart_and_ends_at_all(
    store: Store, tokens: Tokens, clock: Clock, ticks: Ticks
) -> None:
    text, row = made(store)
    cookie, other = now(tokens.session(now(tokens.who(text)))), Tokens(store.backend, clock, ticks)
    assert now(other.who_of_session(cookie)) == now(tokens.who_of_session(cookie))
    assert now(other.who_of_session(cookie)).token_id == row.id
    now(tokens.end_session(cookie))
    ticks.now += REMEMBERED
    with pytest.raises(Unauthorized, match="session has ended"):
        now(other.who_of_session(cookie))


def test_a_session_is_listed_and_revoked_like_a_token_but_is_none(store: Store, tokens: Tokens, ticks: Ticks) -> None:
    cookie = now(tokens.session(Who("editor", "ann", ("a*",))))
    (row,) = store.backend.send(ListTokens()).rows
    assert (row.role, row.name, row.dags) == ("editor", "page of ann", ("a*",))
    assert not any_exist(store)  # nobody can show it from another machine
    with pytest.raises(Unauthorized):
        now(tokens.who(cookie))
    store.backend.send(RevokeToken(row.id, ANN))
    ticks.now += REMEMBERED
    with pytest.raises(Unauthorized, match="session has ended"):
        now(tokens.who_of_session(cookie))


def test_somebody_can_log_in_to_a_server_whose_store_cannot_be_written(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "s.db"
    with outlast.connect(path) as store:
        tokens, other = (Tokens(store.backend, clock, Ticks()) for _ in range(2))
        now(tokens.session(Who("viewer", "bob")))  # the first secret is there
        path.rename(tmp_path / "aside")
        cookie = now(tokens.session(Who("viewer", "ann")))
        (tmp_path / "aside").rename(path)
        assert now(tokens.who_of_session(cookie)).name == "ann"
        with pytest.raises(Unauthorized, match="session has ended"):
            now(other.who_of_session(cookie))
        now(tokens.end_session(cookie))
        with pytest.raises(Unauthorized, match="session has ended"):
            now(tokens.who_of_session(cookie))


@pytest.mark.parametrize("text", ["", "none", "a.b.c", "x" * 40_000])
def test_what_is_no_cookie_of_ours_is_no_session(tokens: Tokens, text: str) -> None:
    now(tokens.session(Who("admin", "ann")))
    with pytest.raises(Unauthorized, match="session has ended"):
        now(tokens.who_of_session(text))


@pytest.mark.parametrize("role", ["attempt", "runner", "admin"])
def test_a_token_for_afterwards_is_given_only_for_the_newest_attempt_when_it_is_over_and_something_is_due(
    store: Store, tokens: Tokens, role: Any
) -> None:
    desk = Desk(store.backend, "etl", "r9")
    desk.start("done", "load")

    def asked(task_id: str, number: int = 1) -> str | None:
        task = desk.task(task_id)
        fence = Fence(task.scope, number, task.scope_id) if role == "attempt" else None
        note = NoteAftermath(task.scope, number)
        return now(tokens.exchanged(note, store.backend.send(note), Who(role, "it", fence=fence)))

    desk.begin("done")
    desk.report(desk.fence("done"), "success")
    assert asked("done") is None
    desk.begin("load")
    assert asked("load") is None  # it runs
    desk.report(desk.fence("load"), "failed")
    if role != "attempt":
        assert asked("load", 7) is None  # nobody has begun that one
    token = asked("load")
    assert token is not None
    assert now(tokens.who(token)).over
    if role == "attempt":
        store.task(desk.task("load").scope, attempt="new")
        with pytest.raises(StaleAttempt):
            asked("load")


def test_a_person_gets_no_attempt_s_token(store: Store, tokens: Tokens) -> None:
    desk = Desk(store.backend, "etl", "r9")
    desk.start("load")
    desk.ran("load", "failed")
    note = NoteAftermath(desk.scope("load"), 1)
    assert now(tokens.exchanged(note, store.backend.send(note), Who("editor", "ann"))) is None


def test_the_token_of_an_attempt_that_has_ended_is_not_renewed(store: Store, tokens: Tokens, clock: Clock) -> None:
    desk = Desk(store.backend, "etl", "r9")
    desk.start("load")
    desk.begin("load")
    fence, until = desk.fence("load"), clock() + ATTEMPT_SECONDS * 1_000_000
    clock.move(hours=13)

    def used() -> str | None:
        who = Who("attempt", "it", fence=fence, until=until)
        return now(tokens.exchanged(Read(fence.scope, ()), None, who))

    assert used() is not None
    desk.report(fence, "deferred", deferral=Deferral("t.T", "{}", "go_on"))
    assert used() is not None
    store.backend.send(CancelRun("etl", "r9", ANN))
    assert used() is None


def test_who_ask_at_the_same_time_have_the_store_asked_once(path: str, clock: Clock, ticks: Ticks) -> None:
    class Counting(SQLiteBackend):
        asked = 0

        def send(self, request: Any) -> Any:
            self.asked += type(request) is FindToken
            return super().send(request)

    backend = Counting(path, Config(), clock)
    text = token_text("viewer", os.urandom(32))
    backend.send(CreateToken(digest_of(text), "viewer", "ann", ANN))
    tokens = Tokens(backend, clock, ticks)

    async def crowd() -> set[str]:
        return {who.name for who in await asyncio.gather(*(tokens.who(text) for _ in range(20)))}

    for times in (1, 2):
        assert now(crowd()) == {"ann"}
        assert backend.asked == times
        ticks.now += REMEMBERED
    backend.close()


def test_what_a_token_stands_for_is_not_remembered_past_its_end(
    store: Store, tokens: Tokens, clock: Clock, ticks: Ticks
) -> None:
    text, _ = made(store, expires_at=clock() + 1)
    attempt = attempt_token(tokens, store, Who("worker", "airflow", ("sales",)))
    assert [now(tokens.who(each)).role for each in (text, attempt)] == ["viewer", "attempt"]
    clock.now += 1
    with pytest.raises(Unauthorized, match="expired"):
        now(tokens.who(text))
    clock.now += ATTEMPT_SECONDS * 10**6
    with pytest.raises(Unauthorized, match="expired"):
        now(tokens.who(attempt))
