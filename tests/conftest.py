"""The fixture of tests that run real sessions; property tests may take any time on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from sessions import Sessions
from stand_in_npus import StandInNpus

hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    running = Sessions(tmp_path)
    yield running
    running.end()


@pytest.fixture
def npus(sessions: Sessions) -> StandInNpus:
    return StandInNpus(sessions)
