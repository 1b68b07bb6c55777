"""Databases that several files of tests combine, and the command that does so."""

from __future__ import annotations

from pathlib import Path

import pytest
from combining import RunCombine

from opatlas.cli.main import main
from opatlas.store.database import Database


@pytest.fixture
def target(tmp_path: Path) -> Database:
    return Database(tmp_path / "target")


@pytest.fixture
def source(tmp_path: Path) -> Database:
    return Database(tmp_path / "source")


@pytest.fixture
def run_combine(capsys: pytest.CaptureFixture[str]) -> RunCombine:
    """Runs `opatlas combine`; returns status, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["combine", *map(str, arguments)])
        return status, *capsys.readouterr()

    return run
