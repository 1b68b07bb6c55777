"""The fixture of tests that run real sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sessions import Sessions


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    running = Sessions(tmp_path)
    yield running
    running.kill_all()
