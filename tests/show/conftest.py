"""A small site with every page, among its names HTML that must do no harm, and a browser that opens it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, missing

import opatlas
from opatlas.show.site.pages import write_site
from tests.ask.tables import product_rows, write_table
from tests.show.small_databases import HOSTILE, SIZES, small_databases, write_step


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_databases(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def start(database: Path) -> Path:
    """The file to open."""
    other = database.parent / "other"
    write_table(other, "MatMulV2", product_rows(SIZES, [4 + m * k / 1e4 for m, _, k in SIZES]))
    with pytest.MonkeyPatch.context() as patch:
        # The cache of fitted models lies in the user's folder otherwise.
        patch.setenv("XDG_CACHE_HOME", str(database.parents[3] / "cache"))
        steps = [opatlas.Step("Qwen/Qwen3-32B", batch=8, context=512)]
        site = write_site(database, database.parents[3] / "site", against=str(other), steps=steps)
    assert all(HOSTILE in problem for problem in site.problems)
    return site.start


@pytest.fixture(scope="session")
def whole_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a row for each call of a step of Qwen3-0.6B."""
    return write_step(tmp_path_factory.mktemp("step"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if why := missing():
        pytest.skip(why)
    with chromium() as opened:
        yield opened
