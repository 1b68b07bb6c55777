"""Fixtures of tests that run real sessions, and which files go first; property tests may take any time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from sessions import Sessions
from stand_in_npus import StandInNpus

hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")
#: Their files take up to minutes each, the others seconds.
LONG = ("chaos", "groups", "collectives", "plugins")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets several workers begin with the longest files, so that none is left with one at the end.

    pytest-xdist keeps this order with `--no-loadscope-reorder`; its own is by the number of tests in a file.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.parent.name not in LONG)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    running = Sessions(tmp_path)
    yield running
    running.end()


@pytest.fixture
def npus(sessions: Sessions) -> StandInNpus:
    return StandInNpus(sessions)
