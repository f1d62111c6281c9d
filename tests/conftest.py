"""What holds for every test: a clean environment, a home of its own, the built wheel, and no silent skip."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL = "optional:"  # README.md, "Working on outlast"
UNTESTED = "untested block"
FOR_TESTS = {"OUTLAST_SOAK", "OUTLAST_TEST_INSTALLED", "OUTLAST_TEST_POSTGRES"}

IN_CI = os.environ.get("CI") == "true"
SOAK = os.environ.get("OUTLAST_SOAK") == "1"

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=2000, database=None, print_blob=True)
settings.load_profile("soak" if SOAK else "ci" if IN_CI else "here")


@pytest.fixture(autouse=True)
def clean_env(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hide the person's settings and home, and return the home the test has instead."""
    for name in [name for name in os.environ if name.startswith("OUTLAST_") and name not in FOR_TESTS]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    return home


@pytest.fixture(scope="session")
def soak() -> bool:
    """Whether this is a long run (`make soak`): use larger numbers."""
    return SOAK


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("OUTLAST_TEST_INSTALLED"):
        import outlast

        if Path(outlast.__file__ or "").is_relative_to(ROOT / "src"):
            raise pytest.UsageError(f"the built wheel is to be tested, but outlast came from {outlast.__file__}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if IN_CI and any(not reason.startswith(OPTIONAL) for reason in skip_reasons(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reasons = skip_reasons(config)
    terminalreporter.section(f"skipped: {reasons.total()}")
    for reason, count in sorted(reasons.items()):
        refused = IN_CI and not reason.startswith(OPTIONAL)
        terminalreporter.line(f"{count} × {reason}{' (fails the run: CI=true)' if refused else ''}")
    places = [
        place for report in reported(terminalreporter) for name, place in report.user_properties if name == UNTESTED
    ]
    if places:
        terminalreporter.section(f"documentation blocks not run: {len(places)}")
        for place in sorted(places):
            terminalreporter.line(place)


def reported(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    """Return what the tests that ran have reported, each once."""
    reports = reporter.getreports("passed") + reporter.getreports("failed")
    return [report for report in reports if report.when == "call"]


def skip_reasons(config: pytest.Config) -> Counter[str]:
    """Count the reasons given for skipped tests; a worker of a parallel run has no reporter and knows of none."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
