"""The fixture of tests that run real sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from sessions import Sessions


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)
