"""`outlast token`: making, listing and revoking tokens, and rotating the secret that signs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from outlast.cli.person import person
from outlast.token_requests import FindToken, ListTokens, MakeSecret, RevokeToken, TouchToken, digest_of, is_token

from .conftest import SHOWN_THEN, THEN, Told

Call = Callable[..., Told]


def test_a_token_is_printed_once_and_alone(call: Call, store: outlast.Store) -> None:
    told = call("token", "create", "--role", "worker", "--dag", "sales_*", "--dag", "nightly", "--name", "airflow")
    (token,) = told.lines
    assert is_token(token)
    assert token.startswith("outl_w_")
    assert re.fullmatch(
        r"token 1: worker of sales_\*, nightly as airflow, good until revoked; shown only this once\n", told.err
    )
    row = store.backend.send(FindToken(digest_of(token))).rows[0]
    assert (row.role, row.name, row.dags, row.expires_at) == ("worker", "airflow", ("sales_*", "nightly"), None)
    assert token not in call("token", "ls", "--all", "--json").out
    assert token not in call("audit", "--json").out


def test_making_the_first_token_makes_the_store(call: Call, place: str) -> None:
    told = call("token", "create", "--role", "admin")
    assert told.status == 0
    assert is_token(told.lines[-1])
    assert Path(place).exists()
    with outlast.connect(place) as store:
        row = store.backend.send(ListTokens()).rows[0]
    assert (row.name, row.dags) == (person().name, ("*",))


def test_a_token_for_programs(call: Call) -> None:
    told = call("token", "create", "--role", "viewer", "--expires", "30d", "--name", "ann", "--json")
    made = told.json
    assert is_token(made.pop("token"))
    assert (made["id"], made["role"], made["name"], made["dags"], made["status"]) == (1, "viewer", "ann", ["*"], "good")
    assert (made["revoked_at"], made["used_at"]) == (None, None)
    with outlast.connect() as store:
        row = store.backend.send(ListTokens()).rows[0]
    assert row.expires_at is not None
    assert row.expires_at - row.created_at == pytest.approx(30 * 86_400_000_000, abs=10_000_000)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "--role"),
        (("--role", "boss"), 2, "viewer"),
        (("--role", "viewer", "--expires", "soon"), 2, "not a span of time"),
        (("--role", "viewer", "--expires", "36501d"), 2, "'36501d' is not 1s to 36500d"),
        (("--role", "viewer", "--expires", "0s"), 2, "good until revoked"),
        (("--role", "viewer", "--dag", ""), 65, "patterns of its dags"),
        (("--role", "viewer", "--name", "a\nb"), 65, "control character"),
    ],
    ids=str,
)
def test_a_token_that_cannot_be_made(call: Call, words: tuple[str, ...], status: int, said: str) -> None:
    told = call("token", "create", *words)
    assert (told.status, told.out) == (status, "")
    assert said in told.err


@pytest.fixture
def three(call: Call, store: outlast.Store) -> None:
    """A token in use, one that is revoked, and one that has expired; all made at the same time."""
    from outlast.token_requests import CreateToken

    rows = (("viewer", ("*",), None), ("worker", ("a*", "b"), None), ("editor", ("*",), THEN))
    for number, (role, dags, end) in enumerate(rows):
        store.backend.send(CreateToken(bytes([number]) * 32, role, f"p{number}", person(), dags, end))  # type: ignore[arg-type]
    store.backend.send(TouchToken(1))
    store.backend.send(RevokeToken(2, person()))


def test_tokens_that_are_good_are_listed(call: Call, three: None) -> None:
    told = call("token", "ls")
    assert [line.split() for line in told.lines] == [
        ["ID", "ROLE", "NAME", "DAGS", "CREATED", "EXPIRES", "USED", "STATUS"],
        ["1", "viewer", "p0", "*", SHOWN_THEN, "never", SHOWN_THEN, "good"],
    ]


def test_all_tokens_are_listed_if_asked(call: Call, three: None) -> None:
    told = call("token", "ls", "--all")
    assert [line.split()[-1] for line in told.lines] == ["STATUS", "good", "revoked", "expired"]
    document = call("token", "ls", "--all", "--json").json[1]
    assert document == {
        "id": 2,
        "role": "worker",
        "name": "p1",
        "dags": ["a*", "b"],
        "status": "revoked",
        "created_at": SHOWN_THEN,
        "expires_at": None,
        "revoked_at": SHOWN_THEN,
        "used_at": None,
    }


def test_listing_none(call: Call, store: outlast.Store) -> None:
    told = call("token", "ls")
    assert (told.status, told.out) == (0, "")
    assert "outlast token create --role viewer" in told.err
    assert call("token", "ls", "--json").json == []


def test_tokens_are_revoked(call: Call, three: None) -> None:
    told = call("token", "revoke", "1", "2")
    assert told.lines == ["token 1 (viewer, p0) is revoked", "token 2 (worker, p1) is revoked"]
    assert call("token", "ls").out == ""
    audited = call("audit", "--json", "--limit", "1").json[0]
    assert (audited["action"], audited["place"], audited["who"]) == ("revoke token", "token 1", person().name)
    assert audited["before"] == {"role": "viewer", "name": "p0", "dags": ["*"], "expires_at": None}


def test_revoking_what_is_not_there(call: Call, store: outlast.Store) -> None:
    told = call("token", "revoke", "7")
    assert (told.status, told.err) == (4, "outlast: there is no token 7; `outlast token ls` lists those there are\n")
    assert call("token", "revoke").status == 2
    assert call("token", "revoke", "x").status == 2


def test_looking_makes_no_store(call: Call, place: str) -> None:
    assert call("token", "ls").status == 4
    assert call("token", "revoke", "1").status == 4
    assert not Path(place).exists()


def test_rotating_the_secret(call: Call, store: outlast.Store) -> None:
    store.backend.send(MakeSecret(person(), first=True))
    told = call("token", "rotate-secret")
    assert told.lines == ["secret 2 signs from now on; what the one before has signed stays good"]
    row = call("audit", "--json").json[0]
    assert (row["action"], row["place"], row["after"]) == ("rotate secret", "secret 2", None)


def test_help_says_what_each_role_is_for(call: Call) -> None:
    told = call("token", "--help")
    for role in ("viewer", "editor", "admin", "worker", "runner"):
        assert re.search(rf"^  {role} +\w", told.out, re.MULTILINE)
