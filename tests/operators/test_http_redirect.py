"""A redirect is an answer, not a place to send a submission and its headers to."""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from outlast.operators import http


class Elsewhere(BaseHTTPRequestHandler):
    """Answers every request with a redirect to itself, and remembers what it was asked."""

    asked: list[str]

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


def test_a_redirect_is_not_followed() -> None:
    Elsewhere.asked = []
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/jobs"
            request = urllib.request.Request(url, b"{}", {"Authorization": "Bearer x"}, method="POST")
            with pytest.raises(http.HttpJobError, match="302"):
                http._send(request, 5.0)
        finally:
            server.shutdown()
            thread.join()
    assert Elsewhere.asked == ["/jobs"]
