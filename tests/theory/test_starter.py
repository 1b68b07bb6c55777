"""The starter database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from opatlas.shapes.starter import write_starter

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.row.columns import AVERAGE, BASE, INPUT_DTYPES, INPUT_SHAPES
from opatlas.row.signature import signatures
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.patterns import Form
from opatlas.theory.space import pattern_row

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


def test_calls_are_short(tables: dict[str, pd.DataFrame]) -> None:
    for cell, dtypes in zip(tables["MatMulV2"][INPUT_SHAPES], tables["MatMulV2"][INPUT_DTYPES], strict=True):
        m, k, n, _ = map(int, cell.replace(";", ",").split(","))
        assert 2 * m * k * n <= (4e9 if dtypes == "FLOAT;FLOAT" else 1e9)


def test_an_unknown_dtype_is_an_error() -> None:
    pattern = built_in_catalog().kernel("Add").pattern("binary")
    with pytest.raises(OpAtlasError, match=r"X.*'FLOAT3'.*opatlas/row/slots\.py"):
        pattern_row("X", pattern, Form.parse("FLOAT3;FLOAT3 -> FLOAT3"), {"m": 1, "h": 1})


def test_it_does_without_torch_and_transformers(tmp_path: Path) -> None:
    script = (
        "import sys; from opatlas.shapes.starter import write_starter; from opatlas.data.database import Database; "
        f"write_starter(Database({str(tmp_path)!r})); sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False).returncode == 0
