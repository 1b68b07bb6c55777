"""The starter database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from database.dtypes import known_dtype
from database.schema import AVERAGE, BASE
from database.signature import signatures
from database.slots import Slot
from database.store import Database
from shapes import patterns
from shapes.append import append_rows
from shapes.memory import row_bytes
from shapes.models import QWEN3_0_6B
from shapes.rows import TheoryRow, tensor
from shapes.starter import starter_rows, write_starter

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> list[TheoryRow]:
    return starter_rows()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path)


def test_it_holds_the_kernels_of_a_small_model(database: Database) -> None:
    count = write_starter(database)
    assert 150 <= count <= 250
    types = ["Add", "GatherV2", "MatMulV2", "Mul", "RmsNorm", "SoftmaxV2", "SwiGlu"]
    assert database.kernel_types() == types
    tables = {name: database.read(name).frame for name in types}
    assert sum(len(frame) for frame in tables.values()) == count
    for name, frame in tables.items():
        assert list(frame.columns) == [*BASE, AVERAGE]
        assert set(frame[AVERAGE]) == {""}
        assert len(set(signatures(name, frame))) == len(frame)


def test_a_second_time_it_adds_nothing(database: Database) -> None:
    write_starter(database)
    before = {path: path.read_bytes() for path in database.path.glob("*.csv")}
    assert write_starter(database) == 0
    assert {path: path.read_bytes() for path in database.path.glob("*.csv")} == before


def test_rows_that_are_there_keep_what_they_hold(database: Database) -> None:
    write_starter(database)
    path = database.csv_path("SwiGlu")
    header, first, *others = path.read_text().splitlines()
    path.write_text("\n".join([header + ",Note", first + "12.5,mine"]) + "\n")
    assert write_starter(database) == len(others)
    frame = database.read("SwiGlu").frame
    assert (frame[AVERAGE][0], frame["Note"][0]) == ("12.5", "mine")
    assert set(frame["Note"][1:]) == {""}


def test_every_weight_is_there_at_one_token_and_at_more(rows: list[TheoryRow]) -> None:
    for linear in (*QWEN3_0_6B.layer_linears(), QWEN3_0_6B.lm_head()):
        tokens = {
            row.inputs[0].shape[0]
            for row in rows
            if row.kernel_type == "MatMulV2" and row.inputs[1] == tensor("BF16", linear.n, linear.k)
        }
        assert 1 in tokens
        assert len(tokens) > 1


def test_weights_are_those_of_the_model() -> None:
    linears = {linear.name: (linear.n, linear.k) for linear in QWEN3_0_6B.layer_linears()}
    assert linears == {"qkv": (4096, 1024), "o_proj": (1024, 2048), "gate_up": (6144, 1024), "down": (1024, 3072)}


def test_no_row_takes_much_memory(rows: list[TheoryRow]) -> None:
    """The embedding table, which is the LM head too, is the largest tensor: 311 MB."""
    assert max(row_bytes(row) for row in rows) < 350e6


def test_dtypes_can_be_replayed(rows: list[TheoryRow]) -> None:
    assert all(known_dtype(slot.dtype) for row in rows for slot in (*row.inputs, *row.outputs))


def test_bytes_of_a_row_are_those_of_all_its_tensors() -> None:
    row = patterns.gather(100, 8, 3, "BF16")
    assert row_bytes(row) == 100 * 8 * 2 + 3 * 8 + 8 + 3 * 8 * 2


def test_an_absent_tensor_takes_no_bytes() -> None:
    assert row_bytes(TheoryRow("X", (tensor("INT8", 4), Slot((), "", "")), ())) == 4


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(Exception, match=r"X has the dtype 'FLOAT3', whose size is not known: add it to database/dty"):
        row_bytes(TheoryRow("X", (tensor("FLOAT3", 4),), ()))


def test_cells_are_written_as_profilers_write_them() -> None:
    cells = patterns.gather(151936, 1024, 7, "BF16").cells()
    assert list(cells.values()) == [
        "",
        "",
        "151936,1024;7;1",
        "DT_BF16;INT64;INT64",
        "ND;ND;ND",
        "7,1024",
        "DT_BF16",
        "ND",
    ]


def test_rows_that_differ_in_quoting_only_are_one(database: Database) -> None:
    row = patterns.swiglu(2, 8, "BF16")
    assert append_rows(database, [row, row]) == 1
    path = database.csv_path("SwiGlu")
    path.write_text(path.read_text().replace('"2,16"', '"""2,16"""'))
    assert append_rows(database, [row]) == 0


def test_it_does_without_torch() -> None:
    script = "import sys, shapes.starter; shapes.starter.starter_rows(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False).returncode == 0
