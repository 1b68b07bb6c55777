"""The rows of the starter database, and of those of GPUs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from opatlas.shapes.models import QWEN3_32B
from opatlas.shapes.starter import MODELS, Entry, RowsPart, write_gpu_rows, write_starter
from tests_of_shapes import sizes_of_shapes

from opatlas.data.database import Database
from opatlas.row.columns import AVERAGE, BASE, INPUT_DTYPES, INPUT_FORMATS
from opatlas.row.communication import is_communication
from opatlas.row.signature import signatures
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.model_calls import model_calls
from opatlas.theory.plan import read_table
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB

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


FOLDERS = ("torch", "libraries", "compiled")
WEIGHTS = ("MatMulV2", "GroupedMatmul", "QuantBatchMatmulV3", "BatchMatMulV2", "TransposeBatchMatMul")
OTHERS_OF_A_STEP = ("RmsNorm", "GatherV2", "Index", "ArgMaxV2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu")
    write_gpu_rows(path)
    return path


def rows_of(database: Database) -> Counter[str]:
    return Counter({name: len(database.read(name).frame) for name in database.kernel_types()})


def test_a_gpu_measures_them_in_minutes(folder: Path) -> None:
    counts = {name: rows_of(Database(folder / name)).total() for name in FOLDERS}
    assert 8000 < counts["torch"] < 13000
    assert counts["libraries"] < 1500
    # Some of these are compiled for seconds.
    assert counts["compiled"] < 500


def test_rows_have_no_duration_and_no_format_of_npus(folder: Path) -> None:
    for name in FOLDERS:
        database = Database(folder / name)
        for kernel_type in database.kernel_types():
            frame = database.read(kernel_type).frame
            assert set(frame[AVERAGE]) == {""}
            assert set(BASE) <= set(frame.columns)
            assert not frame[INPUT_FORMATS].str.contains("FRACTAL").any()


@pytest.mark.parametrize("kernel_type", [*WEIGHTS, *OTHERS_OF_A_STEP])
def test_every_shape_of_every_model_has_enough_sizes(folder: Path, kernel_type: str) -> None:
    kernel = built_in_catalog().kernel(kernel_type)
    table, counted = read_table(Database(folder / "torch"), kernel_type), dict[tuple[int, ...], int]()
    for pattern in kernel.patterns:
        for shape, sizes in sizes_of_shapes(pattern, table, MODELS):
            key = tuple(shape.values.values())
            counted[key] = max(counted.get(key, 0), sizes)
    assert counted
    assert min(counted.values()) >= 16


def test_rows_of_one_dtype(tmp_path: Path) -> None:
    """Products of quantized matrices are in FP8 where torch has a kernel, and in INT8 where a library has one."""
    targets = Targets([QWEN3_32B], (1,), (1,))
    entry = Entry(["QuantBatchMatmulV3"], dtype="INT8")
    part = RowsPart("QuantBatchMatmulV3", "quant_matmul", entry, 2, targets)
    database = Database(tmp_path)
    assert part.write(database, 16 * GB, is_npu=False) == 2 * 4
    assert part.write(database, 16 * GB, is_npu=False) == 0
    assert set(database.read("QuantBatchMatmulV3").cells(INPUT_DTYPES)) == {"INT8;INT8;FLOAT"}


def test_calls_of_a_step_meet_these_rows(folder: Path) -> None:
    databases = [Database(folder / name) for name in FOLDERS]
    calls = model_calls(QWEN3_32B, tp=2, batch=64, context=4096, phase="decode")
    met = {
        call.part
        for call in calls
        for database in databases
        if call.signature() in database.read_or_empty(call.kernel_type).signatures
    }
    assert {call.part for call in calls if not is_communication(call.kernel_type)} == met
