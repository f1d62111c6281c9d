"""`outlast run --ui`: the page of the run's store, served from this process for as long as that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec

from ..backends import is_server
from ..config import without_password
from ..errors import ConfigError
from ..store import connect
from .options import Mistake

if TYPE_CHECKING:
    from ..config import ServerSettings
    from ..store import Store

__all__ = ["page_of"]


@contextmanager
def page_of(store: Store, say: Callable[[str], None]) -> Iterator[None]:
    """Serve a store's page to this machine for the length of a block, and say the link that opens it, once."""
    if is_server(store.url):
        raise Mistake(
            f"{without_password(store.url)} is a server, which has the page already; open that in a browser, and "
            "leave --ui out"
        )
    try:
        from ..server.serving import served
    except ModuleNotFoundError as error:
        raise Mistake(f"{error.name} is not installed, which --ui needs: pip install 'outlast[server]'") from None

    def announce(url: str, link: str | None) -> None:
        say(f"the page is at {url}; open it, once, within ten minutes, by {link}")

    settings = _for_this_machine(store.config.server)
    with connect(store.url, config=store.config) as shown, ExitStack() as stack:
        try:
            stack.enter_context(served(shown, settings, announce))
        except ConfigError:  # its port is taken, by another run perhaps
            stack.enter_context(served(shown, msgspec.structs.replace(settings, port=0), announce))
        yield


def _for_this_machine(settings: ServerSettings) -> ServerSettings:
    """Return the settings of `outlast serve` as far as they hold for a page that nobody else can reach."""
    return type(settings)(port=settings.port, names=settings.names, drain_seconds=1.0)
