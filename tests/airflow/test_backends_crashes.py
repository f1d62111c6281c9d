"""Both backends on the database of a real Airflow 3.3: ten thousand operations, random SIGKILLs, keys that change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.airflow_home import Airflow

pytestmark = pytest.mark.airflow(since="3.3")

HERE = Path(__file__).parent


@pytest.mark.parametrize("place", ["{home}/payloads", "raising://{home}/payloads"])
def test_no_reference_is_ever_without_payload_and_one_sweep_leaves_no_orphan(
    airflow_home: Callable[..., Airflow], place: str, soak: bool
) -> None:
    home = airflow_home(
        dags=HERE / "dags_backends",
        FAILING="{home}/failing",
        OLD_KEY="b2xkIGtleSBmb3IgdGVzdHMgb25seSwgMzIgYnl0ZXM=",
        NEW_KEY="bmV3IGtleSBmb3IgdGVzdHMgb25seSwgMzIgYnl0ZXM=",
        AIRFLOW__OUTLAST__STATE_OFFLOAD_URL=place,
        AIRFLOW__OUTLAST__STATE_OFFLOAD_ABOVE="2000",
    )
    (home.folder / "failing").write_text("")
    home.command("dags", "reserialize")
    home.command("dags", "trigger", "-r", "run1", "keeps")
    wanted = 30_000 if soak else 5_000
    said = home.run("python", "-W", "ignore", str(HERE / "backend_rounds.py"), str(wanted), "7", timeout=1700)
    told = json.loads(said.strip().splitlines()[-1])
    assert told["operations"] >= wanted
    assert told["lives"] > wanted / 150
    assert told["rotations"] > 0
    assert told["payloads"] == told["referred"] > 0
