"""Databases that several files of tests combine, and the command that does so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from abs_rows import cells, write
from combining import RunCombine

from opatlas.cli.main import main
from opatlas.data.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Three rows that never ran."""
    database = Database(tmp_path / "database")
    write(database, [cells(1), cells(2), cells(3)])
    return database


@pytest.fixture
def target(tmp_path: Path) -> Database:
    return Database(tmp_path / "target")


@pytest.fixture
def source(tmp_path: Path) -> Database:
    return Database(tmp_path / "source")


@pytest.fixture
def run_combine(capsys: pytest.CaptureFixture[str]) -> RunCombine:
    """Runs `opatlas combine --json`; returns the status, the content of stdout ({} for none), and stderr."""

    def run(*arguments: object) -> tuple[int, dict[str, Any], str]:
        status = main(["combine", *map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out else {}, err

    return run


@pytest.fixture(scope="module")
def no_sync() -> Iterator[None]:
    """Files reach the disk when the system likes: what is tested is not what a power cut leaves."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.fsync", lambda handle: None)
        yield
