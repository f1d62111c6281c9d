"""Keep a triggerer at work: start it again when it has died or stands still, and give up on what did that to it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from ..deferral_requests import DeferredRow, DeferredRows, Fire, ListDeferred
from ..log_files import log_folder
from ..store import Store
from . import users
from .board import NOBODY, Key
from .logs import trigger_log, watcher_log
from .remote import is_remote, to_triggerer, triggers_token
from .triggerer import LocalTriggerer
from .watcher_lease import elapsed
from .watching import Watcher

__all__ = ["BLOCKS", "STUCK_FOR", "TriggerHost"]

#: Seconds without a sign of life after which a triggerer is replaced, and how long one may take to begin.
STUCK_FOR, START_FOR = 10.0, 60.0
#: How often a trigger may hold up all the others that long, or end their process, before it is given up.
BLOCKS = 3
#: Seconds between two starts; doubled, at most, with each end that no trigger is to blame for.
AGAIN_AFTER, AGAIN_AT_MOST = 1.0, 60.0
#: Seconds after which a triggerer gets a younger token: half as long as one is good that is good for an hour only.
RENEW_AFTER = 1800.0


class TriggerHost:
    """Has a triggerer run the triggers of some runs, and watchers; `say` is told what a person should know.

    Behind a server the triggerer is of the user that workers are, and has a token for triggers only.
    """

    def __init__(
        self,
        store: Store,
        say: Callable[[str], None],
        stuck_for: float = STUCK_FOR,
        renew_after: float = RENEW_AFTER,
    ) -> None:
        self.store, self.say, self.stuck_for, self.renew_after = store, say, stuck_for, renew_after
        self.is_remote = is_remote(store)
        self.user = users.user_of(store.config.runner) if self.is_remote else None
        self.logs = log_folder(store.config, store.url)
        self.triggerer: LocalTriggerer | None = None
        self.blocked: Counter[Key] = Counter()
        self.pause, self.begin_at, self.renew_at = AGAIN_AFTER, 0.0, 0.0

    def look(
        self,
        runs: Mapping[int, str],
        watchers: Sequence[Watcher],
        *,
        wanted: bool,
        news: bool,
        names: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Have these runs (their ids, with their DAG files) and watchers looked after, if that is `wanted` at all.

        `names` are the runs' DAGs' and own ids: what may be logged of. With `news` something of theirs has changed.
        """
        watchers = [watcher for watcher in watchers if self.blocked[watcher.key] < BLOCKS]
        self._replace(runs, watchers)
        if (wanted or watchers) and self.triggerer is None and time.monotonic() >= self.begin_at:
            self.triggerer = self._begin()
        if self.triggerer is not None:
            self._keep_young(self.triggerer)
            if self.triggerer.relay is not None:
                self.triggerer.relay.order(names, [watcher.name for watcher in watchers])
            self.triggerer.look(runs, watchers, self.blocked, now=news)

    def _begin(self) -> LocalTriggerer | None:
        """Start one; None where there may be no more processes, threads or open files: runs do not end of that."""
        given = environ = None
        if self.is_remote:
            self.renew_at = elapsed() + self.renew_after
            environ = users.environment(self.user, self.store.config.runner, self.store.url)
            given = to_triggerer(self.store)
        try:
            return LocalTriggerer(self.store.url, self.logs, given, environ, self.user)
        except OSError as error:
            self._space(NOBODY, time.monotonic())
            self.say(f"the process of the triggers cannot be started: {error}; that is tried again in {self.pause:g} s")
            return None

    def _keep_young(self, triggerer: LocalTriggerer) -> None:
        """Have the triggerer show another token in the second half of the life of the one it has."""
        if self.is_remote and elapsed() >= self.renew_at:
            self.renew_at = elapsed() + self.renew_after
            triggerer.token = triggers_token(self.store)

    def close(self) -> None:
        """End the triggerer."""
        if self.triggerer is not None:
            self.triggerer.close()
            self.triggerer = None

    def _replace(self, runs: Mapping[int, str], watchers: Sequence[Watcher]) -> None:
        """Let one go that has ended, and one that stands still."""
        triggerer = self.triggerer
        if triggerer is None:
            return
        key = triggerer.at_work
        if triggerer.ended:
            self._space(key, triggerer.began)
            self.close()
            again = f"; they begin again in {self.pause:g} s" if key == NOBODY else ", so they begin again"
            what = f"the process of the triggers has ended ({triggerer.end_text})"
            self._blame(key, runs, watchers, what, again, f"has ended the process of all triggers {BLOCKS} times")
        elif triggerer.silent_for > (self.stuck_for if triggerer.has_begun else START_FOR):
            triggerer.kill()
            self.close()
            what, again = f"the triggers have stood still for {self.stuck_for:g} s", ", so they begin again"
            times = f"has held up all the other triggers {BLOCKS} times, {self.stuck_for:g} s each"
            self._blame(key, runs, watchers, what, again, times)

    def _space(self, key: Key, began: float) -> None:
        """Say when one may be started after another that has ended: what cannot start is not started ever so often."""
        lived = time.monotonic() - began
        if key != NOBODY or lived > AGAIN_AT_MOST:
            self.pause = AGAIN_AFTER
        else:
            self.pause = min(2 * self.pause, AGAIN_AT_MOST)
        self.begin_at = began + self.pause if key != NOBODY else time.monotonic() + self.pause

    def _blame(
        self, key: Key, runs: Mapping[int, str], watchers: Sequence[Watcher], what: str, again: str, times: str
    ) -> None:
        """Count against a trigger what it has done to the others, and give it up when it has done so too often."""
        self.blocked[key] += key != NOBODY
        row = self._deferral(key, runs)
        watcher = next((each for each in watchers if each.key == key), None)
        if row is not None:
            whose, log = f" in that of {row.scope}", trigger_log(self.logs, row.scope)
        elif watcher is not None:
            whose, log = f" in that of the watcher {watcher.name}", watcher_log(self.logs, watcher.name)
        else:
            whose, log = "", f"{self.logs}/triggerer.log"
        self.say(f"{what}{whose}{again}; see {log}")
        if self.blocked[key] >= BLOCKS:
            self._give_up(row, watcher, times)

    def _deferral(self, key: Key, runs: Mapping[int, str]) -> DeferredRow | None:
        reply: DeferredRows = self.store.backend.send(ListDeferred(tuple(runs)))
        return next((row for row in reply.rows if (row.scope_id, row.attempt, row.number) == key), None)

    def _give_up(self, row: DeferredRow | None, watcher: Watcher | None, times: str) -> None:
        if row is not None:
            stands_still = times.startswith("has held up")
            to_do = "run() has to await, or to use a thread: await asyncio.to_thread(…)"
            error = f"it {times}; {to_do if stands_still else 'run() has to raise what is wrong'}"
            text = msgspec.json.encode({"error": error}).decode()
            self.store.backend.send(Fire(row.scope_id, row.attempt, text, row.number, row.scope.dag_id))
        elif watcher is not None:
            self.say(f"the watcher {watcher.name} {times}; it is not run any more until `outlast run` is started again")
