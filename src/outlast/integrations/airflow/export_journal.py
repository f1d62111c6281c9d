"""What an export has written where, so that the next one goes on from there and rolls nothing back."""

from __future__ import annotations

import json
import os
from typing import TextIO

import msgspec

from .airflow_rest import Place

__all__ = ["Journal", "Noted"]


class Noted(msgspec.Struct, frozen=True):
    """What was written under a key: its digest, and when the store's entry was last written (None: not noted)."""

    digest: str
    at: str | None = None


class Journal:
    """What has been written where, one line an entry, so that an export can go on where it was interrupted.

    It also tells what Airflow was given from what Airflow's tasks have written since.
    """

    def __init__(self, path: str, url: str) -> None:
        self.path, self.url = path, url
        self._done: dict[tuple[str, str], Noted] = {}
        self._file: TextIO | None = None
        self._is_torn = False
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self._is_torn = text != "" and not text.endswith("\n")  # its writer was killed
            self._read(text.splitlines())

    def noted(self, place: Place, key: str) -> Noted | None:
        """Return what was written last under a key."""
        return self._done.get((str(place), key))

    def note(self, place: Place, key: str, noted: Noted) -> None:
        """Write down that a key has been written."""
        self._done[str(place), key] = noted
        line = {"to": self.url, "place": str(place), "key": key, "digest": noted.digest, "at": noted.at}
        if self._file is None:
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
            self._file.write("\n" if self._is_torn else "")
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            try:
                noted = json.loads(line)
            except ValueError:  # a torn one
                continue
            if isinstance(noted, dict) and noted.get("to") == self.url:
                self._done[noted["place"], noted["key"]] = Noted(noted["digest"], noted.get("at"))
