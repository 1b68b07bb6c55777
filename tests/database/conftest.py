"""Databases that several files of tests combine."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.store.database import Database


@pytest.fixture
def target(tmp_path: Path) -> Database:
    return Database(tmp_path / "target")


@pytest.fixture
def source(tmp_path: Path) -> Database:
    return Database(tmp_path / "source")
