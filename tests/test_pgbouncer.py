"""A store behind pgbouncer in transaction mode: the process that answers is another at every transaction."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outlast import connect
from support.postgres import as_user, free_port, server

pytestmark = pytest.mark.postgres

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@pytest.fixture(scope="module")
def bouncer() -> Iterator[str]:
    """The URL of a pooler with three server connections."""
    if PROGRAM is None:
        pytest.skip("optional: no pgbouncer here (on Debian: apt install pgbouncer)")
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="outlast-bouncer-", dir="/tmp"))  # not below a private one
    folder.chmod(0o755)
    users, settings = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text('"outlast" ""\n')
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server().port}\n[pgbouncer]\nlisten_addr=127.0.0.1\n"
        f"listen_port={port}\npool_mode=transaction\nauth_type=trust\nauth_file={users}\ndefault_pool_size=3\n"
        "unix_socket_dir=\nmax_client_conn=200\n"
    )
    process = subprocess.Popen(
        [PROGRAM, "-q", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user(folder)
    )
    _wait(port)
    yield f"postgresql://outlast@127.0.0.1:{port}/postgres?schema=bounced"
    process.terminate()
    process.wait()
    shutil.rmtree(folder)
    with psycopg.connect(server().url, autocommit=True) as connection:
        connection.execute("drop schema if exists bounced cascade")


def _wait(port: int) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def test_many_writers_share_few_connections(bouncer: str) -> None:
    with connect(bouncer) as store:
        state = store.task("dag/run/task")
        sums: list[int] = []
        threads = [
            threading.Thread(target=lambda: sums.extend(state.increment("n") for _ in range(20))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(sums) == list(range(1, 161))
        assert dict(store.inspect().facts)["through a pooler"] == "yes"
        assert dict(store.inspect().facts)["schema"] == "bounced"


def test_attempts_transactions_and_lists_work(bouncer: str) -> None:
    with connect(bouncer) as store:
        state = store.task("dag/run/other", attempt="new")
        state.set_many({f"k{number}": number for number in range(40)})
        with state.transaction() as together:
            together.set("k0", together.get("k0") + 1)
        for number in range(12):  # more often than a statement is run before it would be prepared
            state.set("k1", number)
            assert state.get("k1") == number
        assert (state.get("k0"), len(state.keys()), len(list(state.history("k1")))) == (1, 40, 13)
