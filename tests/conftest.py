"""Fixtures of all tests, and which files go first; property tests may take any time.

Where nobody watches a terminal, a line a minute reports how far the tests are.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import warm_python
from sessions import Sessions
from stand_in_npus import StandInNpus

# Sessions of tests import the same modules hundreds of times; images of containers often have Python compile them each
# time, which takes longer than the sessions.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Readline, which pytest imports, gives all children of its process the width of a terminal that they do not have.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# Threads of OpenMP that spin while they wait take the cores from other workers and from sessions. Workers inherit this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

hypothesis.settings.register_profile(
    "unhurried",
    deadline=None,
    # What is drawn is the same each time, so that no run fails by chance.
    derandomize=True,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile("random", hypothesis.settings.get_profile("unhurried"), derandomize=False)
hypothesis.settings.load_profile("unhurried")
#: Files that take a minute and more, and folders whose files take up to one; the others take seconds.
LONGEST = ("test_acceptance", "test_planted", "test_wheel")
LONG = ("chaos", "npu", "outer", "plugins", "run", "show", "tests", "theory")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write golden/ and the reasons of tests/bench/refusals.txt and unsupported.txt anew (default: compare)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets several workers begin with the longest files, so that none is left with one at the end.

    pytest-xdist keeps this order with `--no-loadscope-reorder`; its own is by the number of tests in a file.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (item.path.stem not in LONGEST, item.path.parent.name not in LONG))


class MinuteByMinute:
    """Writes a whole line each minute: the log of a CI job shows no dots before the next 72 are there."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._began = self._told = time.monotonic()
        self._done = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._done += report.when == "teardown"
        now = time.monotonic()
        if now - self._told >= 60:
            self._told = now
            failed = len(self._reporter.stats.get("failed", []))
            self._reporter.write_line(
                f"\n{(now - self._began) / 60:.0f} min: {self._done} tests done, {failed} failed; last {report.nodeid}"
            )


def pytest_sessionstart(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not reporter.isatty and "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.pluginmanager.register(MinuteByMinute(reporter))


def pytest_unconfigure() -> None:
    """Objects that are there to the end are not searched for garbage, which pytest does five times, for two seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    running = Sessions(tmp_path)
    yield running
    running.end()


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Processes of this Python that the code under test starts are forks of one that has imported torch."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", warm_python.Popen)
        yield


@pytest.fixture
def npus(sessions: Sessions) -> StandInNpus:
    return StandInNpus(sessions)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of the folder golden/ next to the test; --write-golden writes the file."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--write-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8"), f"run `pytest {request.path} --write-golden`, and read the change"

    return compare
