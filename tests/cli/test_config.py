"""`outlast config show`: every setting, its value and its origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outlast import config

from .conftest import Told

Call = Callable[..., Told]


def test_every_setting_is_listed_with_value_and_origin(call: Call, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("outlast.toml").write_text("[state_store]\nhistory_versions = 3\n")
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "*password")
    told = call("config", "show")
    rows = {line.split()[0]: line.split()[1:] for line in told.lines[1:]}
    assert (told.status, told.lines[0].split()) == (0, ["SETTING", "VALUE", "ORIGIN"])
    assert list(rows) == [f"{setting.section}.{setting.key}" for setting in config.Config().explain()]
    assert rows["store.url"] == [f'"{place}"', "OUTLAST_URL"]
    assert rows["state_store.history_versions"] == ["3", str(Path("outlast.toml").absolute())]
    assert rows["state_store.secret_keys"] == ['["*password"]', "OUTLAST__STATE_STORE__SECRET_KEYS"]
    assert rows["state_store.clear_on_success"] == ["false", "default"]
    assert rows["state_store.backend"] == ["(not", "set)", "default"]


def test_as_json_each_setting_is_explained(call: Call, place: str) -> None:
    settings = call("config", "show", "--json").json
    assert [set(setting) for setting in settings] == [{"section", "key", "value", "origin", "help"}] * len(settings)
    assert settings[0]["value"] == place
    assert all(setting["help"] for setting in settings)


def test_a_store_given_is_shown_without_its_password(call: Call) -> None:
    told = call("config", "show", "--store", "postgresql://ann:hunter2@h/db", "--json").json[0]
    assert (told["value"], told["origin"]) == ("postgresql://ann:***@h/db", "--store")


def test_a_wrong_setting_is_exit_78(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST__STATE_STORE__DURABILITY", "maybe")
    told = call("config", "show")
    assert (told.status, told.out) == (78, "")
    assert 'give "full" or "process"' in told.err
