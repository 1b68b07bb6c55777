"""The starter database."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from opatlas.shapes.starter import write_starter

from opatlas.data.database import Database
from opatlas.row.columns import AVERAGE, BASE
from opatlas.row.signature import signatures

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    database = Database(tmp_path_factory.mktemp("starter"))
    write_starter(database)
    return {name: database.read(name).frame for name in database.kernel_types()}


def test_it_holds_the_kernels_of_a_small_model(tables: dict[str, pd.DataFrame]) -> None:
    assert 150 <= sum(map(len, tables.values())) <= 250
    assert list(tables) == ["Add", "GatherV2", "MatMulV2", "Mul", "RmsNorm", "SoftmaxV2", "SwiGlu"]
    for name, frame in tables.items():
        assert list(frame.columns) == [*BASE, AVERAGE]
        assert set(frame[AVERAGE]) == {""}
        assert len(set(signatures(name, frame))) == len(frame)


def test_existing_rows_keep_their_cells(tmp_path: Path) -> None:
    database = Database(tmp_path)
    write_starter(database)
    path = database.csv_path("SwiGlu")
    header, first, *others = path.read_text().splitlines()
    path.write_text("\n".join([header + ",Note", first + "12.5,mine"]) + "\n")
    assert write_starter(database) == len(others)
    frame = database.read("SwiGlu").frame
    assert (frame[AVERAGE][0], frame["Note"][0]) == ("12.5", "mine")
    assert set(frame["Note"][1:]) == {""}
