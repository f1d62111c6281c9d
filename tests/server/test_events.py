"""Event streams: nothing is missed, nothing comes twice or out of order, and nobody sees more than they may."""

from __future__ import annotations

import http.client
import itertools
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from outlast import connect
from outlast.requests import LIBRARY, Feed, Sweep
from outlast.server import feed_reader
from outlast.token_requests import BYTES, CreateToken, RevokeToken, digest_of, token_text
from support.public import Door, open_door
from support.servers import ServerProcess
from support.streams import EventStream


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path, secret_keys=("secret*",)) as door:
        yield door


def listen(door: Door, last_id: str | None = None, /, **query: Any) -> EventStream:
    """Open a stream; the first event says where it begins."""
    return EventStream(door.url, door.token, last_id, **query)


# --- What comes ------------------------------------------------------------------------------------------------


def test_a_stream_begins_now_and_brings_every_write_in_order(door: Door) -> None:
    state = door.task()
    state.set("old", 0)
    with listen(door) as stream:
        assert stream.take(1) == ["position"]
        state.set("a", 1)
        assert stream.take(1) == [("a", 1)]
        state.set_many({"b": 2, "c": 3})
        state.delete("a")
        assert stream.take(3) == [("b", 2), ("c", 3), ("a", None)]
        assert stream.retry == 2000


def test_an_event_says_where_what_when_and_by_whom(door: Door) -> None:
    state = door.task("load", 3)
    with listen(door) as stream:
        stream.take(1)
        big = 12345678901234567890123
        door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/n?map_index=3", value=big)
        told = stream.next()
    assert told is not None
    entry = state.entry("n")
    assert told.name == "entry"
    assert told.data["scope"]["address"] == "etl/r1/load/3"
    assert told.data["value"] == big
    assert told.data["revision"] == entry.revision
    assert told.data["updated_at"] == "2026-11-29T12:00:00Z"
    assert told.data["expires_at"] == "2026-12-29T12:00:00Z"
    assert told.data["writer"]["name"] == "ann@desk"
    assert told.data["deleted"] is False
    assert told.id == stream.last_id


def test_runs_that_change_are_told(door: Door) -> None:
    with listen(door) as stream:
        stream.take(1)
        desk = door.desk("r7")
        desk.start("load")
        assert stream.take(1) == [("run", "r7")]
        desk.ran("load")
        assert ("run", "r7") in stream.take(1)


def test_a_list_of_runs_hears_of_runs_only(door: Door) -> None:
    state = door.task()
    with listen(door, kinds="run") as runs, listen(door, kinds="run", dag="other") as others:
        place = runs.last_id if runs.take(1) else None
        others.take(1)
        state.set("a", 1)
        desk = door.desk("r7")
        desk.start("load")
        assert runs.take(1) == [("run", "r7")]
        state.set("b", 2)
        desk.begin("load")
        assert runs.take(1) == [("run", "r7")]
        door.desk("r8", "other").start("load")
        assert runs.take(1) == [("run", "r8")]
        assert others.take(1) == [("run", "r8")]
    with listen(door, place, kinds="run") as again:  # what it has missed, too
        assert again.take(1) == [("run", "r7")]
    with listen(door, place, kinds="entry") as entries:
        assert entries.take(2) == [("a", 1), ("b", 2)]
    with listen(door, after="start", kinds="run") as anew:  # runs are no part of the present state
        assert anew.take(2) == ["reset", "position"]


@pytest.mark.parametrize("query", ["key=a", "task=load", "asset=orders", "map_index=3"])
def test_runs_have_no_keys_to_choose_them_by(door: Door, query: str) -> None:
    answer = door.get(f"/api/outlast/v1/events?kinds=run&{query}")
    assert answer.status == 422
    assert "`kinds=run` goes with `dag` and `run` only" in answer.text
    assert door.get("/api/outlast/v1/events?kinds=runs").status == 422


def test_an_expired_entry_is_told_as_gone(door: Door) -> None:
    state = door.task()
    with listen(door) as stream:
        stream.take(1)
        state.set("short", 1, retention=timedelta(seconds=5))
        assert stream.take(1) == [("short", 1)]
        state.set("other", 2)
        assert stream.take(1) == [("other", 2)]
        place = stream.last_id
        state.set("short", 3, retention=timedelta(seconds=5))
        stream.take(1)
    door.clock.move(seconds=5)
    with listen(door, place) as stream:
        assert stream.take(1) == [("short", None)]


def test_a_write_is_told_within_a_second_and_one_through_this_server_sooner(door: Door) -> None:
    state = door.task()
    with listen(door) as stream:
        stream.take(1)
        for number in range(3):
            began = time.monotonic()
            state.set("other process", number)  # straight into the file
            stream.take(1)
            assert time.monotonic() - began < 1


# --- From where one left off -----------------------------------------------------------------------------------


def test_a_client_that_comes_back_gets_what_it_missed_once(door: Door) -> None:
    state = door.task()
    with listen(door) as stream:
        stream.take(1)
        state.set("a", 1)
        state.set("b", 1)
        assert stream.take(1) == [("a", 1)]
        place = stream.last_id
    state.set("b", 2)
    state.set("c", 3)
    state.delete("a")
    for again in (listen(door, place), listen(door, after=place), listen(door, place, after="start")):
        with again as stream:
            assert stream.take(3) == [("b", 2), ("c", 3), ("a", None)]
            state.set("d", 4)
            assert stream.take(1) == [("d", 4)]
            state.delete("d")
            assert stream.take(1) == [("d", None)]
            place = again.last_id
        state.set_many({"b": 2, "c": 3})
        state.delete("a")
        state.set("a", 1)
        state.delete("a")


def test_a_client_that_left_in_the_middle_of_a_commit_gets_the_rest_of_it(door: Door) -> None:
    state, names = door.task(), [f"key{number:02} é%:/ " + "x" * (number == 3) for number in range(10)]
    with listen(door) as stream:
        stream.take(1)
        state.set_many(dict.fromkeys([name.strip() for name in names], 1))
        assert [each[0] for each in stream.take(4)] == [name.strip() for name in names[:4]]
        place = stream.last_id
    with listen(door, place) as stream:
        assert [each[0] for each in stream.take(6)] == [name.strip() for name in names[4:]]
        state.set("z", 1)
        assert stream.take(1) == [("z", 1)]


@pytest.mark.parametrize("place", ["start", "", "nonsense", "0badf00d:1:x", "0badf00d:9:a:b"])
def test_a_position_that_is_not_known_is_answered_by_a_reset_and_the_present_state(door: Door, place: str) -> None:
    first, second, asset = door.task(), door.task("other"), door.store.asset("orders")
    first.set_many({"a": 1, "b": 2})
    first.delete("a")
    second.set("c", 3)
    asset.set("d", 4)
    with listen(door, after=place) as stream:
        if place == "":
            assert stream.take(1) == ["position"]
            return
        told = [stream.next() for _ in range(5)]
        assert [each and each.short for each in told] == ["reset", ("b", 2), ("c", 3), ("d", 4), "position"]
        assert [each.id is None for each in told if each] == [True, True, True, True, False]
        first.set("a", 5)
        assert stream.take(1) == [("a", 5)]
        assert stream.rest(0.5) == []


def test_what_an_asset_had_before_it_was_named_is_told_to_who_waits_for_that_name(door: Door) -> None:
    """It is in the present state, where nobody who asks by name sees it yet."""
    door.store.asset(uri="s3://orders").set("watermark", 5)
    with listen(door, asset="orders", after="start") as stream:
        assert stream.take(2) == ["reset", "position"]
        door.store.asset("orders", uri="s3://orders").set("other", 6)
        assert sorted(stream.take(2)) == [("other", 6), ("watermark", 5)]


def test_the_present_state_is_paged_and_what_is_written_meanwhile_comes_once(door: Door) -> None:
    for task in range(4):
        door.task(f"t{task}").set_many({f"k{number:04}": 0 for number in range(300)})
    stop = threading.Event()

    def write() -> None:
        state, number = door.store.task("etl/r1/t1"), 0
        while not stop.is_set():
            number += 1
            state.set_many({f"k{key:04}": number for key in range(0, 300, 37)})

    writer = threading.Thread(target=write)
    writer.start()
    newest: dict[Any, int] = {}
    try:
        with listen(door, after="start") as stream:
            for told in iter(stream.next, None):
                if told.name == "entry":
                    place = told.data["scope"]["task_id"], told.data["key"]
                    assert told.data["revision"] > newest.get(place, 0), place
                    newest[place] = told.data["revision"]
                    if told.data["key"] == "last":
                        break
                elif told.name == "position":
                    time.sleep(0.3)
                    stop.set()
                    writer.join()
                    door.task("t3").set("last", 1)
    finally:
        stop.set()
        writer.join()
    assert newest["t1", "k0037"] == door.store.task("etl/r1/t1").entry("k0037").revision > 3
    assert len(newest) == 4 * 300 + 1


@pytest.mark.parametrize("number", ["99999999999999999999999", "1.2.3.4", "-1", "", "1_0", "5000"])
def test_a_position_that_was_never_given_out_is_answered_by_a_reset(door: Door, number: str) -> None:
    door.task().set("a", 1)
    epoch = door.store.backend.send(Feed()).position.partition(":")[0]
    with listen(door, f"{epoch}:{number}") as stream:
        assert stream.take(3) == ["reset", ("a", 1), "position"]


def test_a_position_that_is_too_old_is_answered_by_a_reset(door: Door) -> None:
    state = door.task()
    with listen(door) as stream:
        stream.take(1)
        place = stream.last_id
    state.set("a", 1)
    door.clock.move(hours=25)
    state.set("b", 2)
    while door.store.backend.send(Sweep(1000)).more:
        pass
    with listen(door, place) as stream:
        assert stream.take(4) == ["reset", ("a", 1), ("b", 2), "position"]


def test_open_streams_begin_anew_when_the_store_is_another(door: Door, tmp_path: Path) -> None:
    state = door.task()
    state.set("a", 1)
    with listen(door) as stream, listen(door, key="b") as other:
        stream.take(1)
        other.take(1)
        connection = apsw.Connection(str(tmp_path / "served.db"))
        connection.set_busy_timeout(5000)
        connection.execute("update meta set content = 'restored' where name = 'feed_epoch'")  # as a restore does
        connection.close()
        assert stream.take(3) == ["reset", ("a", 1), "position"]
        assert other.take(2) == ["reset", "position"]
        state.set("b", 2)
        assert stream.take(1) == other.take(1) == [("b", 2)]


def test_a_silent_stream_shows_signs_of_life_and_how_far_it_has_got(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_reader, "HEARTBEAT", 0.1)
    monkeypatch.setattr(feed_reader, "CHECK_EVERY", 0.05)
    state = door.task()
    with listen(door, key="seen") as stream:
        stream.take(1)
        state.set("unseen", 1)
        now = door.store.backend.send(Feed()).position
        told = stream.next(signs=8)
        assert told is not None
        assert told.data is None
        assert stream.last_id == now


def test_who_comes_back_with_the_position_of_the_present_state_is_told_nothing_of_it_again(door: Door) -> None:
    """Also of what was written while the present state was sent: that is part of it."""
    for task in range(6):
        door.task(f"t{task}").set_many({f"k{number:04}": 0 for number in range(300)})
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        state = door.store.task("etl/r1/t5")
        for number in itertools.count():
            state.set(f"new{number:06}", number)
            written.set()
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    present: dict[Any, int] = {}
    try:
        written.wait(10)
        with listen(door, after="start") as stream:
            assert stream.take(1) == ["reset"]
            for told in iter(stream.next, None):
                if told.name == "position":
                    break
                assert told.id is None
                place = told.data["scope"]["task_id"], told.data["key"]
                assert told.data["revision"] > present.get(place, 0), place
                present[place] = told.data["revision"]
            last_id = stream.last_id
    finally:
        stop.set()
        writer.join()
    door.task("t5").set("last", 1)
    with listen(door, last_id) as stream:
        missed = [(each.data["scope"]["task_id"], each.data["key"]) for each in stream.until("last")]
    assert [place for place in missed if place in present] == []
    assert len(present) + len(missed) == 6 * 300 + len(door.task("t5").keys("new")) + 1


def test_large_values_that_were_missed_come_in_pieces_and_once(door: Door) -> None:
    state = door.task()
    with listen(door) as stream:
        stream.take(1)
        place = stream.last_id
    for number in range(6):
        state.set(f"k{number}", str(number) * 1_500_000)
    for again in (listen(door, place), listen(door, after="start")):
        with again as stream:
            told = [(each.data["key"], len(each.data["value"])) for each in stream.until("k5") if each.name == "entry"]
            assert told == [(f"k{number}", 1_500_000) for number in range(6)]
            state.set("end", 1)
            assert [each.data["key"] for each in stream.until("end") if each.name == "entry"] == ["end"]
            state.delete("end")


@pytest.mark.parametrize("place", ["%2500", "a%2500b", "x" * 5000])
def test_a_position_no_feed_could_have_given_is_422_so_that_no_browser_comes_back_for_ever(
    door: Door, place: str
) -> None:
    assert door.get(f"/api/outlast/v1/events?after={place}").status == 422
    assert door.get("/api/outlast/v1/events", headers={"Last-Event-ID": place.replace("%25", "%")}).status == 422


def test_one_token_has_only_its_share_of_the_streams(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.server.events.MOST_STREAMS", 8)
    viewer, editor = door.as_role("viewer"), door.as_role("editor")
    with ExitStack() as opened:
        for asker, share in ((viewer, 4), (editor, 2)):
            for _ in range(share):
                assert opened.enter_context(listen(asker)).take(1) == ["position"]
            refused = asker.get("/api/outlast/v1/events")
            assert refused.status == 503
            assert f"{share} event streams are open with this token" in refused.text
        with listen(door) as stream:
            assert stream.take(1) == ["position"]


# --- Who sees what ---------------------------------------------------------------------------------------------


def fill(door: Door) -> None:
    door.task("load", run_id="r1").set("progress", 1)
    door.task("load", 2, run_id="r2").set("page", 2)
    door.task("sum", run_id="r1").set("progress/x", 3)
    door.task("load", dag_id="other", run_id="r1").set("progress", 4)
    door.store.asset("orders", uri="s3://orders").set("watermark", 5)
    door.desk("r1").start("load")


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ({}, [1, 2, 3, 4, 5, "run"]),
        ({"dag": "etl"}, [1, 2, 3, "run"]),
        ({"dag": "etl", "run": "r1"}, [1, 3, "run"]),
        ({"run": "r1"}, [1, 3, 4, "run"]),
        ({"dag": "etl", "task": "load"}, [1, 2]),
        ({"map_index": 2}, [2]),
        ({"map_index": -1, "dag": "etl"}, [1, 3]),
        ({"key": "progress"}, [1, 3, 4]),
        ({"key": "progress/", "dag": "etl"}, [3]),
        ({"asset": "orders"}, [5]),
        ({"asset": "s3://orders"}, [5]),
        ({"asset": "orders", "key": "x"}, []),
        ({"dag": "absent"}, []),
    ],
)
def test_filters_hold_for_what_happens_for_what_was_missed_and_for_the_present(
    door: Door, query: dict[str, Any], values: list[Any]
) -> None:
    def values_of(events: list[Any]) -> list[Any]:
        told = [each[1] if each[0] != "run" else "run" for each in events if each not in ("position", "reset")]
        return sorted(told, key=str)

    with listen(door, **query) as live:
        live.take(1)
        place = live.last_id
        fill(door)
        assert values_of(live.rest(0.6)) == values
    with listen(door, place, **query) as missed:
        assert values_of(missed.rest(0.5)) == values
    with listen(door, after="start", **query) as present:
        assert values_of(present.rest(0.5)) == [value for value in values if value != "run"]


def test_a_token_for_some_dags_sees_only_those_and_not_who_else_wrote(door: Door) -> None:
    restricted = door.as_role("viewer", "other")
    with listen(restricted) as stream:
        stream.take(1)
        place = stream.last_id
        fill(door)
        assert stream.rest(0.6) == [("progress", 4), ("watermark", 5)]
    with listen(restricted, place) as stream:
        assert stream.rest(0.5) == [("progress", 4), ("watermark", 5)]
    with listen(restricted, after="start") as stream:
        assert stream.rest(0.5) == ["reset", ("progress", 4), ("watermark", 5), "position"]


def test_secret_values_are_masked_unless_an_admin_asks_or_a_runner_does(door: Door) -> None:
    state = door.task()
    viewer, runner = door.as_role("viewer"), door.as_role("runner")
    streams = [listen(door), listen(door, reveal=True), listen(viewer), listen(viewer, reveal=True)]
    streams += [listen(runner), listen(runner, reveal=True)]
    for stream in streams:
        stream.take(1)
    place = streams[0].last_id
    state.set("secret_token", "hush")
    told = [stream.next() for stream in streams]
    for stream in streams:
        stream.close()
    values = [(each.data["value"], each.data["masked"]) for each in told if each]
    assert values == [(None, True), ("hush", False), (None, True), (None, True), (None, True), ("hush", False)]
    for door_, after in ((viewer, place), (viewer, "start")):
        with listen(door_, after=after) as stream:
            events = stream.until("secret_token")
            assert events[-1].data["value"] is None


@pytest.mark.parametrize("role", ["worker", None])
def test_who_may_not_read_gets_no_stream(door: Door, role: str | None) -> None:
    asker = door.as_role(role) if role else Door(door.url, door.store, door.clock, None)
    assert asker.get("/api/outlast/v1/events").status == 401


@pytest.mark.parametrize("query", ["asset=a&dag=d", "map_index=x", "map_index=-2", "dag=", "what=1", "key=%00"])
def test_a_filter_that_is_wrong_is_422(door: Door, query: str) -> None:
    assert door.get(f"/api/outlast/v1/events?{query}").status == 422


def test_head_is_answered_without_a_stream(door: Door) -> None:
    answer = door.ask("HEAD", "/api/outlast/v1/events")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_a_stream_ends_when_its_token_is_revoked(door: Door) -> None:
    viewer = door.as_role("viewer")
    with listen(viewer) as stream, listen(door) as other:
        stream.take(1)
        other.take(1)
        door.store.backend.send(RevokeToken(1, LIBRARY))
        assert stream.next() is None
        door.task().set("a", 1)
        assert other.take(1) == [("a", 1)]


# --- Slow clients, many clients ---------------------------------------------------------------------------------


def test_a_client_that_takes_nothing_is_dropped_and_others_go_on(door: Door) -> None:
    state = door.task()
    with listen(door) as slow, listen(door) as other:
        slow.take(1)
        other.take(1)
        place = slow.last_id
        for number in range(60):
            state.set("big", "x" * 200_000 + str(number))
            other.take(1)
        state.set("end", 1)
        assert other.take(1) == [("end", 1)]
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            slow.until("end")
    with listen(door, place) as again:
        assert [each.data["key"] for each in again.until("end")] == ["big", "end"]


def test_many_streams_get_everything(door: Door, soak: bool) -> None:
    count = 1000 if soak else 200
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))  # both ends are in this process
    state = door.task()
    streams = [listen(door, dag="etl") for _ in range(count)]
    try:
        for stream in streams:
            stream.take(1)
        began = time.monotonic()
        for number in range(20):
            state.set("n", number)
        assert all(_last_number(stream) == 19 for stream in streams)
        assert time.monotonic() - began < 10
    finally:
        for stream in streams:
            stream.close()


def _last_number(stream: EventStream) -> int:
    """Read until 19 comes; numbers only rise, and some may have been passed over."""
    number = -1
    while number < 19:
        told = stream.next()
        assert told is not None
        assert told.data["value"] > number
        number = told.data["value"]
    return number


# --- Servers that die, and other processes ----------------------------------------------------------------------

WRITER = """
import sys
from outlast import connect
store = connect(sys.argv[1])
state = store.task("etl/r1/load")
number, log = 0, open(sys.argv[2], "w")
while True:
    number += 1
    state.set("n", number)
    print(number, file=log, flush=True)
"""


def admin(place: Path) -> str:
    """Make an admin's token for a store."""
    token = token_text("admin", os.urandom(BYTES))
    with connect(place) as store:
        store.backend.send(CreateToken(digest_of(token), "admin", "ann", LIBRARY))
    return token


def test_across_kills_of_the_server_a_stream_misses_nothing_another_process_writes(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    connect(place).task("etl/r1/load").set("n", 0)
    server = ServerProcess(place)
    token = admin(place)
    log = tmp_path / "written"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(place), str(log)])
    last, last_id, received = 0, None, 0
    try:
        for life in range(3):
            server.start()
            with EventStream(server.url, token, last_id, dag="etl") as stream:
                for _ in range(5):
                    told = stream.next()
                    assert told is not None
                    if told.name == "entry":
                        assert told.data["value"] > last
                        last, received = told.data["value"], received + 1
                if life == 1:
                    assert server.stop()[0] == 0
                else:
                    server.kill()
                while (told := _next(stream)) is not None:
                    assert told.data["value"] > last
                    last = told.data["value"]
                last_id = stream.last_id
        while connect(place).task("etl/r1/load").get("n") < last + 2:
            time.sleep(0.01)
        writer.kill()
        writer.wait()
        newest = connect(place).task("etl/r1/load").get("n")
        server.start()
        with EventStream(server.url, token, last_id, dag="etl") as stream:
            assert stream.take(1) == [("n", newest)]
            assert newest >= int(log.read_text().rpartition("\n")[0].split()[-1]) > last
            assert stream.rest(0.5) == []
    finally:
        writer.kill()
        writer.wait()
        if server.process is not None:
            server.kill()
    assert received >= 10


def _next(stream: EventStream) -> Any:
    """Return the next event, None where the connection breaks off."""
    try:
        return stream.next()
    except (http.client.HTTPException, OSError):
        return None


def test_a_server_that_is_stopped_ends_its_streams_at_once(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    connect(place).task("etl/r1/load").set("n", 0)
    with ServerProcess(place) as server:
        token = admin(place)
        with EventStream(server.url, token) as stream:
            stream.take(1)
            began = time.monotonic()
            status, _, logged = server.stop()
            assert stream.next() is None
        assert status == 0
        assert "ERROR" not in logged
        assert time.monotonic() - began < 5


def test_positions_are_the_same_through_two_servers_of_one_store(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with connect(place) as store, ServerProcess(place) as one, ServerProcess(place) as two:
        token = admin(place)
        state = store.task("etl/r1/load")
        state.set("a", 1)
        with EventStream(one.url, token) as stream:
            stream.take(1)
            state.set("b", 2)
            state.set("c", 3)
            assert stream.take(1) == [("b", 2)]
            last = stream.last_id
        with EventStream(two.url, token, last) as stream:
            assert stream.take(1) == [("c", 3)]
            position = store.backend.send(Feed()).position
            assert stream.last_id is not None
            assert stream.last_id.startswith(position)
