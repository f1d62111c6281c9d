"""`outlast serve`: turn a store into a service for workers on other machines, for programs and for people."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from .. import config as configuration
from ..backends import file_of, is_server
from ..config import Config, ServerSettings
from .opening import opened
from .options import Command, Mistake, Place, at_place

__all__ = ["serve"]

_PATH = click.Path(dir_okay=False)


@click.command(cls=Command, short_help="Serve a store over HTTP, to workers, programs and people.")
@at_place
@click.option("--host", metavar="ADDRESS", help="The address to listen on; by default 127.0.0.1, this machine only.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; by default 8765, 0 is a free one.")
@click.option("--uds", metavar="PATH", type=_PATH, help="Listen on a Unix socket instead of a host and port.")
@click.option("--tls-cert", metavar="FILE", type=_PATH, help="Serve https with this certificate (chain), PEM.")
@click.option("--tls-key", metavar="FILE", type=_PATH, help="The certificate's key, if not in the same file.")
@click.option("--root-path", metavar="PATH", help="The path under which a proxy shows the server, such as /outlast.")
@click.option("--log-json", is_flag=True, help="Log one JSON object a line, for programs.")
def serve(place: Place, log_json: bool, **given: Any) -> None:
    """Serve a store over HTTP, until it is told to stop.

    \b
    outlast serve                                        for this machine, on port 8765
    outlast serve --uds /run/outlast/outlast.sock        on a Unix socket
    outlast serve --host 0.0.0.0 --tls-cert site.pem     for others: needs a token to exist

    Workers and programs use it as their store: OUTLAST_URL=http://HOST:8765, with a token of
    `outlast token create` in OUTLAST_TOKEN. On this machine, whoever started the server needs no token. The link
    printed at the start opens the page in a browser, once, within ten minutes.

    SIGTERM or Ctrl-C ends it: it takes no new calls and lets those in flight end. Clients wait for a server that is
    restarted. Options go before the section [server] of outlast.toml.
    """
    settings = _settings(configuration.load(), given)
    serving = _server()
    with opened(place.url, create=True) as store:
        if file_of(store.url, store.config) is None and is_server(store.url):
            raise Mistake(
                f"{store.url} is a server already; name the store it is to serve, a file or a database, with --store"
            )
        from ..server import logs

        logs.set_up(as_json=log_json)
        serving.serve(store, settings, _announce)


def _settings(config: Config, given: dict[str, Any]) -> ServerSettings:
    """Return the settings with what the options say in their place, held to the same rules."""
    if given["uds"] is not None and (given["host"] is not None or given["port"] is not None):
        raise click.UsageError("--uds is in the place of a host and port; leave --host and --port out, or --uds")
    names = {"tls_cert": "tls_certificate"}
    said = {names.get(name, name): value for name, value in given.items() if value is not None}
    if "host" in said or "port" in said:
        said.setdefault("uds", None)
    both = {**msgspec.structs.asdict(config.server), **said}
    try:
        return msgspec.convert(both, ServerSettings)
    except msgspec.ValidationError as error:
        if "root_path" not in str(error):
            raise Mistake(f"an option is not allowed: {error}") from None
        raise Mistake(
            f"--root-path {both['root_path']!r} is no path to be shown under; "
            "write one that begins with / and does not end with it, such as /outlast"
        ) from None


def _server() -> Any:
    try:
        from ..server import serving
    except ModuleNotFoundError as error:
        raise Mistake(f"{error.name} is not installed, which the server needs: pip install 'outlast[server]'") from None
    return serving


def _announce(url: str, link: str | None) -> None:
    click.echo(f"Serving at {url} (Ctrl-C stops it).")
    if link is not None:
        click.echo(f"Open in a browser, once, within ten minutes: {link}")
