"""Every night, compress the exports in a folder; run again after a kill -9, it goes on where it was."""

import datetime
import gzip
import sys
from pathlib import Path

import outlast

with outlast.connect() as store:
    state = store.task(f"compress/{datetime.date.today()}/exports", attempt="new")
    for path in state.checkpoint(sorted(Path(sys.argv[1]).glob("*.csv")), id=str):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
