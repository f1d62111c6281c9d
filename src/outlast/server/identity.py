"""Who is asking: what a request's credential proves, and nothing else.

`Who` is what the rest of the server knows of an asker; `identify` finds it out from a request.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from ..errors import Unauthorized
from ..requests import Fence
from ..values import AssetScope
from .origins import refuse_foreign

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from .tokens import Tokens

__all__ = ["COOKIE", "Role", "Who", "cookie_name", "identify", "shown"]

#: Those of `outlast token create`, and of the signed tokens that a server gives: of an attempt, and of a triggerer.
Role: TypeAlias = Literal["viewer", "editor", "admin", "worker", "runner", "attempt", "triggers"]

#: The cookie of the page's session; where the server's address has a port, that follows.
COOKIE = "outlast_session"


class Who(msgspec.Struct, frozen=True):
    """One asker: a role, the name the audit log gets, and the DAGs and (for an attempt) the scope it may reach.

    `dags` are patterns as in `fnmatchcase`. `fence` and `assets` are of an attempt's token: its task scope with
    the attempt's number, and the assets that are its inlets and outlets; `outlets` are (name, URI) of those it may
    say it has updated, None: of any. `over` says that the token is for what is due after that attempt. `token_id` is
    the token that is shown, or for which a signed one or a session was given; `until` is when the credential
    ends, in microseconds.
    """

    role: Role
    name: str
    dags: tuple[str, ...] = ("*",)
    token_id: int | None = None
    fence: Fence | None = None
    assets: tuple[AssetScope, ...] = ()
    until: int | None = None
    outlets: tuple[tuple[str | None, str | None], ...] | None = ()
    over: bool = False

    @property
    def sees_all(self) -> bool:
        """Whether there is no DAG this asker may not know of."""
        return "*" in self.dags

    def may_see(self, dag_id: str) -> bool:
        """Say whether a DAG is among those this asker may know of."""
        return any(dag_id == pattern or fnmatchcase(dag_id, pattern) for pattern in self.dags)


async def identify(request: HTTPConnection) -> Who:
    """Return who sent a request, by its bearer token or else by the page's cookie; Unauthorized without a good one.

    A header that is no good is not made up for by a cookie. Whether a cookie may be used for this request (a page of
    another origin can have it sent along) is asked of `origins`.
    """
    tokens: Tokens = request.app.state.tokens
    credential = shown(request)
    if "authorization" in request.headers:
        return await tokens.who(credential)
    refuse_foreign(request)
    return await tokens.who_of_session(credential)


def shown(request: HTTPConnection) -> str:
    """Return the bearer token of a request, or else the page's cookie; Unauthorized if it shows neither."""
    headers = request.headers.getlist("authorization")
    if headers:
        return _bearer(headers)
    cookie = request.cookies.get(cookie_name(request))
    if cookie is None:
        raise Unauthorized(
            "this needs a token: send it as `Authorization: Bearer …` (a client: OUTLAST_TOKEN, or [client] token); "
            "`outlast token create` makes one"
        )
    return cookie


def cookie_name(request: HTTPConnection) -> str:
    """Return what the session's cookie is called at the address a browser asks: cookies themselves know no ports."""
    try:
        port = urlsplit("//" + request.headers.get("host", "")).port
    except ValueError:
        port = None
    return COOKIE if port is None else f"{COOKIE}_{port}"


def _bearer(headers: list[str]) -> str:
    scheme, _, credential = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != "bearer" or not credential.strip():
        raise Unauthorized("the Authorization header is not `Bearer TOKEN`; that is the only way this server knows")
    return credential.strip()
