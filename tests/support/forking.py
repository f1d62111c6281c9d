"""A process that forks again and again while its threads read and write; run as a script with a path."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from outlast import connect
from outlast.config import Config, StateStoreSettings

FORKS = 8


def main() -> None:
    store = connect(sys.argv[1], config=Config(state_store=StateStoreSettings(durability="process")))
    state = store.task("dag/run/task")
    state.set("n", 0)
    stop = threading.Event()
    failures: list[BaseException] = []

    def busy(step: Callable[[], Any]) -> None:
        try:
            while not stop.is_set():
                step()
        except BaseException as error:
            failures.append(error)

    steps: list[Callable[[], Any]] = [state.items, lambda: state.set("other", time.time()), lambda: state.get("n")]
    threads = [threading.Thread(target=busy, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for number in range(FORKS):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if [state.increment("n"), len(state.keys())] == [number + 1, 2] else 1)
        if os.waitpid(pid, 0)[1] != 0:
            sys.exit(f"child {number} failed")
    stop.set()
    for thread in threads:
        thread.join()
    problems = store.inspect(deep=True).problems
    sys.exit(str((failures, state.get("n"), problems)) if failures or state.get("n") != FORKS or problems else 0)


if __name__ == "__main__":
    main()
