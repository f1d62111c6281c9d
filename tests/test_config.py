"""Settings: where they are looked for, which one wins, and what is said about a wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from outlast import config
from outlast.config import Config, load, resolve_url, without_password
from outlast.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def written(folder: Path, text: str) -> Path:
    file = folder / "outlast.toml"
    file.write_text(text)
    return file


def from_text(folder: Path, text: str, **environ: str) -> Config:
    written(folder, text)
    return load(folder, environ)


def message(folder: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        from_text(folder, text, **environ)
    return str(caught.value)


def shown(loaded: Config) -> dict[str, object]:
    return {f"{setting.section}.{setting.key}": setting.value for setting in loaded.explain()}


# Defaults


def test_defaults_are_those_of_the_contract(folder: Path) -> None:
    assert shown(load(folder, {})) == {
        "store.url": None,
        "state_store.default_retention_days": 30,
        "state_store.clear_on_success": False,
        "state_store.discard_on_clear": False,
        "state_store.max_value_storage_bytes": 65535,
        "state_store.state_cleanup_batch_size": 1000,
        "state_store.history_versions": 20,
        "state_store.durability": "full",
        "state_store.feed_hours": 24,
        "state_store.backend": None,
        "state_store.secret_keys": (),
        "runner.parallelism": config.default_parallelism(),
        "runner.crash_retries": 3,
        "runner.lease_seconds": 30.0,
        "runner.keep_runs_days": 90,
        "runner.logs_dir": None,
        "runner.run_as": None,
        "runner.pass_environment": (),
        "client.retry_for": 30.0,
        "client.timeout": 60.0,
        "client.token": None,
        "client.ca_file": None,
        "client.find_token": True,
        "server.host": "127.0.0.1",
        "server.port": 8765,
        "server.uds": None,
        "server.root_path": "",
        "server.names": (),
        "server.trusted_proxies": (),
        "server.tls_certificate": None,
        "server.tls_key": None,
        "server.max_body_bytes": 17 * 1024 * 1024,
        "server.request_seconds": 30.0,
        "server.drain_seconds": 30.0,
    }


def test_without_a_file_and_variables_every_origin_is_the_default(folder: Path) -> None:
    loaded = load(folder, {})
    assert loaded.file is None
    assert {setting.origin for setting in loaded.explain()} == {"default"}


def test_a_bare_config_has_the_defaults_too(folder: Path) -> None:
    assert shown(Config()) == shown(load(folder, {}))


def test_every_setting_says_what_it_is_for() -> None:
    assert all(setting.help.endswith(".") for setting in Config().explain())


def test_parallelism_defaults_to_the_cpus_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, slots in [(1, 4), (8, 8), (64, 16)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)), raising=False)
        assert config.default_parallelism() == slots


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().state_store.history_versions = 3  # type: ignore[misc]


# Where settings come from


def test_the_file_is_found_upward_from_the_folder(folder: Path) -> None:
    file = written(folder, "[state_store]\nhistory_versions = 5\n")
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    loaded = load(below, {})
    assert loaded.state_store.history_versions == 5
    assert loaded.file == str(file)
    assert loaded.origin("state_store", "history_versions") == str(file)
    assert loaded.origin("state_store", "feed_hours") == "default"


def test_the_nearest_file_is_the_only_one_read(folder: Path) -> None:
    written(folder, "[state_store]\nhistory_versions = 5\nfeed_hours = 5\n")
    (folder / "a").mkdir()
    written(folder / "a", "[state_store]\nhistory_versions = 6\n")
    loaded = load(folder / "a", {})
    assert (loaded.state_store.history_versions, loaded.state_store.feed_hours) == (6, 24)


def test_a_folder_of_that_name_is_no_file(folder: Path) -> None:
    (folder / "outlast.toml").mkdir()
    assert load(folder, {}).file is None


def test_the_search_begins_in_the_current_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, "[runner]\ncrash_retries = 1\n")
    monkeypatch.chdir(folder)
    assert load(environ={}).runner.crash_retries == 1


def test_the_process_environment_is_read_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST__RUNNER__CRASH_RETRIES", "8")
    assert load(folder).runner.crash_retries == 8


def test_a_removed_current_directory_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={}).file is None


def test_outlast_config_names_the_file(folder: Path) -> None:
    written(folder, "[runner]\ncrash_retries = 1\n")
    other = folder / "other.toml"
    other.write_text("[runner]\ncrash_retries = 2\n")
    loaded = load(folder, {"OUTLAST_CONFIG": str(other)})
    assert loaded.runner.crash_retries == 2
    assert loaded.origin("runner", "crash_retries") == str(other)


def test_an_empty_outlast_config_names_none(folder: Path) -> None:
    assert from_text(folder, "[runner]\ncrash_retries = 1\n", OUTLAST_CONFIG="").runner.crash_retries == 1


def test_the_null_device_turns_the_search_off(folder: Path) -> None:
    loaded = from_text(folder, "[runner]\ncrash_retries = 1\n", OUTLAST_CONFIG=os.devnull)
    assert loaded.runner.crash_retries == 3


def test_a_variable_wins_over_the_file(folder: Path) -> None:
    loaded = from_text(folder, "[runner]\ncrash_retries = 1\n", OUTLAST__RUNNER__CRASH_RETRIES="2")
    assert loaded.runner.crash_retries == 2
    assert loaded.origin("runner", "crash_retries") == "OUTLAST__RUNNER__CRASH_RETRIES"


def test_a_wrong_value_in_the_file_is_an_error_although_a_variable_wins(folder: Path) -> None:
    assert "crash_retries" in message(folder, "[runner]\ncrash_retries = -1\n", OUTLAST__RUNNER__CRASH_RETRIES="2")


def test_an_empty_variable_counts_as_not_set(folder: Path) -> None:
    loaded = from_text(
        folder, "[runner]\ncrash_retries = 1\n", OUTLAST__RUNNER__CRASH_RETRIES="", OUTLAST_URL=" ", OUTLAST__X__Y=""
    )
    assert loaded.runner.crash_retries == 1
    assert loaded.store.url is None


def test_other_variables_are_left_alone(folder: Path) -> None:
    environ = {"AIRFLOW__STATE_STORE__DEFAULT_RETENTION_DAYS": "-1", "OUTLAST_SOMETHING": "x", "outlast__a__b": "x"}
    assert shown(load(folder, environ)) == shown(Config())


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("OUTLAST__STORE__URL", "postgresql://db/outlast", "postgresql://db/outlast"),
        ("OUTLAST__STATE_STORE__DEFAULT_RETENTION_DAYS", "0", 0),
        ("OUTLAST__STATE_STORE__CLEAR_ON_SUCCESS", "True", True),
        ("OUTLAST__STATE_STORE__DISCARD_ON_CLEAR", "true", True),
        ("OUTLAST__STATE_STORE__MAX_VALUE_STORAGE_BYTES", " 10 ", 10),
        ("OUTLAST__STATE_STORE__DURABILITY", "process", "process"),
        ("OUTLAST__STATE_STORE__BACKEND", "mine.stores:Backend", "mine.stores:Backend"),
        ("OUTLAST__STATE_STORE__BACKEND", "mine.stores.Backend", "mine.stores.Backend"),
        ("OUTLAST__STATE_STORE__SECRET_KEYS", "token, *.password ,", ("token", "*.password")),
        ("OUTLAST__RUNNER__LEASE_SECONDS", "0.5", 0.5),
        ("OUTLAST__RUNNER__LOGS_DIR", "/var/log/outlast", "/var/log/outlast"),
        ("OUTLAST__CLIENT__RETRY_FOR", "0", 0.0),
        ("OUTLAST__SERVER__TRUSTED_PROXIES", "10.0.0.1, 10.0.0.2", ("10.0.0.1", "10.0.0.2")),
        ("OUTLAST__SERVER__ROOT_PATH", "/outlast", "/outlast"),
    ],
)
def test_variables_are_read_in_the_shape_of_their_setting(
    folder: Path, variable: str, text: str, value: object
) -> None:
    loaded = load(folder, {variable: text})
    section, key = variable.removeprefix("OUTLAST__").lower().split("__")
    assert shown(loaded)[f"{section}.{key}"] == value
    assert loaded.origin(section, key) == variable


def test_every_setting_can_stand_in_a_file(folder: Path) -> None:
    loaded = from_text(
        folder,
        """
        [store]
        url = "https://outlast.example"
        [state_store]
        default_retention_days = 7
        clear_on_success = true
        discard_on_clear = true
        max_value_storage_bytes = 0
        state_cleanup_batch_size = 10
        history_versions = 0
        durability = "process"
        feed_hours = 1
        backend = "mine:Backend"
        secret_keys = ["token"]
        [runner]
        parallelism = 1
        crash_retries = 0
        lease_seconds = 5
        keep_runs_days = 0
        logs_dir = "/logs"
        run_as = "nobody"
        pass_environment = ["AWS_*"]
        [client]
        retry_for = 2.5
        timeout = 9
        token = "outl_w_secret"
        ca_file = "/etc/ca.pem"
        find_token = true
        [server]
        host = "0.0.0.0"
        port = 0
        uds = "/run/socket"
        root_path = "/a/b"
        names = ["state.example"]
        trusted_proxies = ["10.0.0.1"]
        tls_certificate = "/etc/site.pem"
        tls_key = "/etc/key.pem"
        max_body_bytes = 2048
        request_seconds = 1
        drain_seconds = 0
        """,
    )
    assert {setting.origin for setting in loaded.explain()} == {loaded.file}
    assert list(shown(loaded).values()) == [
        "https://outlast.example", 7, True, True, 0, 10, 0, "process", 1, "mine:Backend", ("token",),
        1, 0, 5.0, 0, "/logs", "nobody", ("AWS_*",), 2.5, 9.0, "***", "/etc/ca.pem", True,
        "0.0.0.0", 0, "/run/socket", "/a/b", ("state.example",), ("10.0.0.1",), "/etc/site.pem", "/etc/key.pem",
        2048, 1.0, 0.0,
    ]  # fmt: skip


@pytest.mark.parametrize("environ", [{}, {"OUTLAST__STATE_STORE__STATE_CLEANUP_BATCH_SIZE": "0"}])
def test_a_batch_size_of_0_means_1000(folder: Path, environ: dict[str, str]) -> None:
    loaded = from_text(folder, "[state_store]\nstate_cleanup_batch_size = 0\n", **environ)
    assert loaded.state_store.state_cleanup_batch_size == 1000


# What is refused


@pytest.mark.parametrize(
    ("section", "line", "allowed"),
    [
        ("state_store", "default_retention_days = -1", "0 to 1000000"),
        ("state_store", "default_retention_days = 30.0", "a whole number of days"),
        ("state_store", "default_retention_days = true", "a whole number of days"),
        ("state_store", "default_retention_days = '30'", "a whole number of days"),
        ("state_store", "default_retention_days = 1_000_001", "0 to 1000000"),
        ("state_store", "clear_on_success = 1", "true or false"),
        ("state_store", "clear_on_success = 'true'", "true or false"),
        ("state_store", "max_value_storage_bytes = -1", "0 or more"),
        ("state_store", "max_value_storage_bytes = 99999999999999999999999", "0 or more"),
        ("state_store", "state_cleanup_batch_size = -5", "0 or more"),
        ("state_store", "history_versions = -1", "0 or more"),
        ("state_store", "durability = 'FULL'", '"full" or "process"'),
        ("state_store", "feed_hours = 0", "1 to 10000"),
        ("state_store", "backend = 'Backend'", "'package.module:Class'"),
        ("state_store", "backend = 'a.b:c.d'", "'package.module:Class'"),
        ("state_store", "secret_keys = 'token'", "a list of texts"),
        ("state_store", "secret_keys = [1]", "a list of texts"),
        ("runner", "parallelism = 0", "1 to 10000"),
        ("runner", "lease_seconds = 0", "above 0"),
        ("runner", "lease_seconds = nan", "above 0"),
        ("runner", "lease_seconds = inf", "86400 at most"),
        ("runner", "keep_runs_days = -1", "0 to 1000000"),
        ("runner", "logs_dir = ''", "a path"),
        ("client", "retry_for = -1", "0 to 86400"),
        ("store", "url = ''", "a path or a URL"),
        ("store", "url = 5", "a path or a URL"),
    ],
)
def test_a_wrong_value_names_file_section_key_and_what_is_allowed(
    folder: Path, section: str, line: str, allowed: str
) -> None:
    text = message(folder, f"[{section}]\n{line}\n")
    assert text.startswith(f"{folder / 'outlast.toml'}: [{section}] {line.split(' ')[0]} = ")
    assert allowed in text


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("OUTLAST__STATE_STORE__DEFAULT_RETENTION_DAYS", "-1", "a whole number of days"),
        ("OUTLAST__STATE_STORE__DEFAULT_RETENTION_DAYS", "soon", "a whole number of days"),
        ("OUTLAST__STATE_STORE__CLEAR_ON_SUCCESS", "maybe", "true or false"),
        ("OUTLAST__STATE_STORE__DURABILITY", "none", '"full" or "process"'),
        ("OUTLAST__CLIENT__RETRY_FOR", "nan", "a number of seconds"),
    ],
)
def test_a_wrong_variable_is_named(folder: Path, variable: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}: .*{re.escape(repr(text))}.*{allowed}"):
        load(folder, {variable: text})


def test_an_unknown_key_is_answered_with_the_nearest_and_all_there_are(folder: Path) -> None:
    text = message(folder, "[state_store]\ndefault_retention_day = 3\n")
    assert "outlast.toml: [state_store] has no key 'default_retention_day'" in text
    assert "did you mean 'default_retention_days'?" in text
    assert "history_versions" in text


def test_an_unknown_key_that_is_near_to_nothing_gets_no_guess(folder: Path) -> None:
    assert "did you mean" not in message(folder, "[client]\nzzz = 3\n")


def test_a_key_in_the_wrong_section_is_shown_the_way(folder: Path) -> None:
    assert "crash_retries belongs under [runner]" in message(folder, "[state_store]\ncrash_retries = 3\n")


def test_a_key_outside_of_any_section_is_shown_the_way(folder: Path) -> None:
    assert "it belongs under [state_store]" in message(folder, "history_versions = 3\n")


def test_an_unknown_section_is_answered_with_the_nearest_and_all_there_are(folder: Path) -> None:
    text = message(folder, "[state-store]\n")
    assert "there is no section [state-store] (did you mean 'state_store'?)" in text
    assert "[store], [state_store], [runner], [client]" in text


def test_a_section_that_is_no_table_is_refused(folder: Path) -> None:
    assert "write a section, [runner]" in message(folder, "runner = 3\n")


def test_an_unknown_variable_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^OUTLAST__STATE_STORE__HISTORY: .*no key 'history'.*history_versions"):
        load(folder, {"OUTLAST__STATE_STORE__HISTORY": "3"})
    with pytest.raises(ConfigError, match=r"^OUTLAST__STAT_STORE__X: there is no section \[stat_store\]"):
        load(folder, {"OUTLAST__STAT_STORE__X": "3"})
    with pytest.raises(ConfigError, match=r"^OUTLAST__RUNNER: "):
        load(folder, {"OUTLAST__RUNNER": "3"})


@pytest.mark.parametrize("text", ["[workers]\nconcurrency = 3\n", "workers = 3\n"])
def test_a_section_for_workers_points_to_the_page_about_airflow(folder: Path, text: str) -> None:
    assert "docs/airflow.md" in message(folder, text)


def test_a_variable_for_workers_points_to_the_page_about_airflow(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"OUTLAST__WORKERS__X: .*docs/airflow\.md"):
        load(folder, {"OUTLAST__WORKERS__X": "3"})


def test_broken_toml_is_reported_with_its_line(folder: Path) -> None:
    assert re.search(r"outlast\.toml is not valid TOML: .*line 2", message(folder, "[runner]\ncrash_retries =\n"))


def test_a_file_that_is_not_utf_8_is_reported(folder: Path) -> None:
    (folder / "outlast.toml").write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(folder, {})


def test_a_named_file_that_is_missing_is_reported(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read: No such file"):
        load(folder, {"OUTLAST_CONFIG": str(folder / "missing.toml")})


# Which store is meant


def test_an_explicit_url_goes_before_everything(folder: Path) -> None:
    loaded = from_text(folder, "[store]\nurl = 'a.db'\n", OUTLAST_URL="b.db")
    assert resolve_url("c.db", loaded) == ("c.db", "argument")


def test_outlast_url_goes_before_the_file_and_the_sections_variable(folder: Path) -> None:
    loaded = from_text(folder, "[store]\nurl = 'a.db'\n", OUTLAST_URL="/b.db", OUTLAST__STORE__URL="/c.db")
    assert resolve_url(None, loaded) == ("/b.db", "OUTLAST_URL")


@pytest.mark.parametrize("scheme", ["", "sqlite:", "sqlite:///"])
def test_a_relative_path_in_a_file_starts_at_its_folder(folder: Path, scheme: str) -> None:
    loaded = from_text(folder, f"[store]\nurl = '{scheme}state/o.db'\n[runner]\nlogs_dir = 'logs'\n")
    assert resolve_url(None, loaded) == (f"{scheme}{folder}/state/o.db", str(folder / "outlast.toml"))
    assert loaded.runner.logs_dir == str(folder / "logs")


@pytest.mark.parametrize(
    "url", ["/o.db", "sqlite:/o.db", "sqlite:////o.db", "sqlite::memory:", "postgresql://h/d", "http://h:1", "memory:"]
)
def test_another_url_in_a_file_stays_as_it_is(folder: Path, url: str) -> None:
    assert resolve_url(None, from_text(folder, f"[store]\nurl = '{url}'\n"))[0] == url


def test_a_tilde_is_the_home_folder(folder: Path, clean_env: Path) -> None:
    assert resolve_url(None, from_text(folder, "[store]\nurl = '~/o.db'\n"))[0] == f"{clean_env}/o.db"


def test_without_any_url_the_users_state_folder_is_meant(folder: Path) -> None:
    assert resolve_url(None, load(folder, {"XDG_STATE_HOME": "/x", "HOME": "/h"})) == (
        "/x/outlast/outlast.db",
        "default",
    )


@pytest.mark.parametrize("state_home", [{}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}])
@pytest.mark.parametrize(
    ("platform", "path"),
    [
        ("linux", "/h/.local/state/outlast/outlast.db"),
        ("darwin", "/h/Library/Application Support/outlast/outlast.db"),
    ],
)
def test_the_state_folder_is_the_platforms(
    folder: Path, monkeypatch: pytest.MonkeyPatch, platform: str, path: str, state_home: dict[str, str]
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert resolve_url(None, load(folder, {"HOME": "/h", **state_home}))[0] == path


def test_without_a_home_the_remedy_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="set OUTLAST_URL"):
        resolve_url(None, load(folder, {"HOME": "not/absolute"}))


# What is shown


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("postgresql://me:s3cret@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:s3/c@r:et@db/x", "postgresql://me:***@db/x"),
        ("postgresql://:s3cret@db/x", "postgresql://:***@db/x"),
        ("postgresql://db/x?user=me&password=s3cret&a=b", "postgresql://db/x?user=me&password=***&a=b"),
        ("https://db:8080/?token=s3cret", "https://db:8080/?token=***"),
        ("http://outl_v_s3-cret@host:80/x", "http://***@host:80/x"),
        ("https://s3cret@host", "https://***@host"),
        ("/var/outl_w_S3cret-_x", "/var/outl_***"),
        ("postgresql://me@db:5432/x", "postgresql://me@db:5432/x"),
        ("/var/lib/o@1.db", "/var/lib/o@1.db"),
    ],
)
def test_a_password_is_not_printed(folder: Path, url: str, printed: str) -> None:
    assert without_password(url) == printed
    assert shown(load(folder, {"OUTLAST_URL": url}))["store.url"] == printed


def test_loading_without_a_file_needs_no_parser_of_toml() -> None:
    code = (
        "import sys, outlast.config as c; c.load(environ={}); sys.exit(bool({'tomllib', 'difflib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# The token


def test_a_token_is_printed_nowhere(folder: Path) -> None:
    """Neither by `config show`, nor in a repr, nor in an error about it."""
    loaded = load(folder, {"OUTLAST_TOKEN": "outl_w_hunter2"})
    assert loaded.client.token == "outl_w_hunter2"
    assert loaded.origin("client", "token") == "OUTLAST_TOKEN"
    assert "hunter2" not in repr(loaded) + repr(loaded.client) + repr(loaded.explain())
    with pytest.raises(ConfigError) as caught:
        from_text(folder, '[client]\ntoken = ["outl_w_hunter2"]\n')
    assert "hunter2" not in caught.value.message


def test_outlast_token_goes_before_the_file_and_the_sections_variable(folder: Path) -> None:
    environ = {"OUTLAST__CLIENT__TOKEN": "second", "OUTLAST_TOKEN": "first"}
    assert from_text(folder, '[client]\ntoken = "third"\n', **environ).client.token == "first"


@pytest.mark.parametrize("path", ["outlast", "/outlast/", "//", "/a?b"])
def test_a_root_path_begins_with_a_slash_and_does_not_end_with_one(folder: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="root_path"):
        load(folder, {"OUTLAST__SERVER__ROOT_PATH": path})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1:8765", "localhost:8765", True),
        ("[::1]:8765", "127.0.0.1:8765", True),
        ("127.0.0.1:8765", "127.0.0.1:8766", False),
        ("example.test:8765", "127.0.0.1:8765", False),
        ("/run/a.sock", "/run/b.sock", False),
    ],
)
def test_a_local_servers_token_is_filed_by_its_place(folder: Path, one: str, other: str, same: bool) -> None:
    loaded = load(folder, {"HOME": str(folder)})
    first, second = (config.local_token_file(loaded, place) for place in (one, other))
    assert first is not None
    assert (first == second) is same
