"""A client of event streams: reads what comes over a real socket, and keeps the last id as a browser does."""

from __future__ import annotations

import http.client
import time
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

PATH = "/api/outlast/v1/events"


class Told(NamedTuple):
    """One event."""

    name: str
    data: Any
    id: str | None

    @property
    def short(self) -> Any:
        """Return it as tests compare it: key and value, or the run."""
        if self.name == "entry":
            return self.data["key"], None if self.data["deleted"] else self.data["value"]
        return (self.name, self.data["run_id"]) if self.name == "run" else self.name


class EventStream:
    """One connection; `last_id` goes with it if given, and is kept up to date."""

    def __init__(self, url: str, token: str | None, last_id: str | None = None, /, **query: Any) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        self.connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
        asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        self.connection.request("GET", f"{place.path}{PATH}?{asked}", headers=headers)
        self.socket = self.connection.sock
        self.answer = self.connection.getresponse()
        self.status, self.last_id = self.answer.status, last_id
        self.retry: int | None = None
        self.comments = 0

    def next(self, signs: int = 0) -> Told | None:
        """Return the next event; None at the end of the stream. Raises TimeoutError if none comes.

        With `signs` it returns after so many signs of life, too, then without data.
        """
        name, data, place = "", "", None
        while line := self.answer.readline().decode():
            field, _, content = line.rstrip("\n").partition(": ")
            match field:
                case "event":
                    name = content
                case "data":
                    data = content
                case "id":
                    place = content
                case "retry":
                    self.retry = int(content)
                case "":
                    self.comments += content == "alive"
                    self.last_id = place or self.last_id
                    if data or (signs and self.comments >= signs):
                        return Told(name, msgspec.json.decode(data or "null"), place)
                    name, data, place = "", "", None
        return None

    def take(self, count: int) -> list[Any]:
        """Return so many events, in short."""
        told = [self.next() for _ in range(count)]
        return [each and each.short for each in told]

    def until(self, key: str) -> list[Told]:
        """Return what comes, up to the first event about a key."""
        told = []
        while (each := self.next()) is not None:
            told.append(each)
            if each.name == "entry" and each.data["key"] == key:
                break
        return told

    def rest(self, seconds: float) -> list[Any]:
        """Return what comes within so many seconds."""
        end, told = time.monotonic() + seconds, []
        self.socket.settimeout(seconds)
        while time.monotonic() < end:
            try:
                each = self.next()
            except TimeoutError:
                break
            if each is None:
                break
            told.append(each.short)
        return told

    def close(self) -> None:
        self.answer.close()
        self.connection.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
