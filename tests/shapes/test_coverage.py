"""What of the models' shapes is in a database, and which kernel types a database gets rows of."""

from __future__ import annotations

from pathlib import Path

import pytest
from opatlas.shapes.models import DEEPSEEK_V3, QWEN3_0_6B
from tests_of_shapes import request

from opatlas.errors import OpAtlasError
from opatlas.store.database import Database
from opatlas.theory.catalog import built_in_catalog, database_kernels
from opatlas.theory.known_rows import model_coverage
from opatlas.theory.plan import add_theory_rows, read_table
from opatlas.theory.sources import Targets

HEADER = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats\n"
TARGETS = Targets((QWEN3_0_6B,), tp_sizes=(1,))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path)


def matmuls(database: Database, *calls: tuple[int, int, int]) -> None:
    lines = [f'"{m},{k};{n},{k}",DT_BF16;DT_BF16,ND;ND,"{m},{n}",DT_BF16,ND\n' for m, n, k in calls]
    database.csv_path("MatMulV2").write_text(HEADER + "".join(lines))


def test_shapes_that_are_there_and_shapes_that_are_not(database: Database) -> None:
    matmuls(database, (1, 4096, 1024), (16, 4096, 1024), (24, 4096, 1024), (7, 1024, 3072), (5, 123, 456))
    (found,) = model_coverage(built_in_catalog().kernel("MatMulV2"), database.read("MatMulV2"), TARGETS)
    assert (found.model, found.shapes, found.present) == ("Qwen/Qwen3-0.6B", 5, 2)
    assert found.missing == {
        "o_proj, tp 1: n 1024, k 2048": ["BF16;BF16 -> BF16"],
        "gate_up, tp 1: n 6144, k 1024": ["BF16;BF16 -> BF16"],
        "lm_head, tp 1: n 151936, k 1024": ["BF16;BF16 -> BF16"],
    }
    (sizes,) = found.sizes
    # 1, and 16 with 24, which share an octave; 7 of the other shape.
    assert (sizes.axis, sizes.wanted, sizes.shapes, sizes.found, sizes.fewest) == ("m", 16, 5, 3, 1)
    assert (sizes.gap_from, sizes.gap_to) == (7, 32768)
    assert sizes.at_one_size == ["down, tp 1: n 1024, k 3072: m 7"]


def test_a_single_token_is_one_size_of_many(database: Database) -> None:
    matmuls(database, (1, 4096, 1024))
    (found,) = model_coverage(built_in_catalog().kernel("MatMulV2"), database.read("MatMulV2"), TARGETS)
    (sizes,) = found.sizes
    assert (sizes.found, sizes.wanted, sizes.gap_from, sizes.gap_to) == (1, 16, 1, 32768)
    assert sizes.at_one_size == ["qkv, tp 1: n 4096, k 1024: m 1"]


def test_a_shape_that_is_missing_in_several_dtypes_is_named_once(database: Database) -> None:
    kernel = built_in_catalog().kernel("QuantBatchMatmulV3")
    (found,) = model_coverage(kernel, read_table(database, "QuantBatchMatmulV3"), TARGETS)
    assert (found.shapes, found.present, len(found.missing)) == (12, 0, 4)
    assert {len(dtypes) for dtypes in found.missing.values()} == {3}


def test_a_small_sample_is_shared_among_the_models(database: Database) -> None:
    wanted = request(DEEPSEEK_V3, QWEN3_0_6B, rows=8)
    kernel = built_in_catalog().kernel("MatMulV2")
    add_theory_rows(database, kernel, wanted)
    found = model_coverage(kernel, read_table(database, "MatMulV2"), wanted.targets)
    assert sorted(each.present for each in found) == [4, 4]


def test_blocked_weights_count(database: Database) -> None:
    line = '"7,1024;64,256,16,16",DT_BF16;DT_BF16,ND;FRACTAL_NZ,"7,4096",DT_BF16,ND\n'
    database.csv_path("MatMulV2").write_text(HEADER + line)
    (found,) = model_coverage(built_in_catalog().kernel("MatMulV2"), database.read("MatMulV2"), TARGETS)
    assert found.present == 1


def test_without_a_file_everything_is_missing(database: Database) -> None:
    (found,) = model_coverage(built_in_catalog().kernel("MatMulV2"), read_table(database, "MatMulV2"), TARGETS)
    assert (found.shapes, found.present) == (5, 0)
    assert [(sizes.found, sizes.wanted, sizes.shapes) for sizes in found.sizes] == [(0, 16, 5)]


@pytest.mark.parametrize("kernel_type", built_in_catalog().kernels)
def test_a_run_covers_every_shape(database: Database, kernel_type: str) -> None:
    wanted = request(DEEPSEEK_V3, QWEN3_0_6B, rows=150)
    kernel = built_in_catalog().kernel(kernel_type)
    add_theory_rows(database, kernel, wanted)
    for found in model_coverage(kernel, read_table(database, kernel_type), wanted.targets):
        assert not found.missing


def test_twins_of_kernel_types_get_rows_where_there_are_some(database: Database) -> None:
    database.csv_path("AddAiCore").write_text(HEADER)
    database.csv_path("AscendQuantV2Aicore").write_text(HEADER)
    database.csv_path("SomethingAiCore").write_text(HEADER)
    found = database_kernels(database, built_in_catalog())
    assert set(found) - set(built_in_catalog().kernels) == {"AddAiCore", "AscendQuantV2Aicore"}
    assert found["AddAiCore"].patterns == built_in_catalog().kernel("Add").patterns


def test_a_mapping_names_more_kernel_types(database: Database) -> None:
    (database.path / "op_mapping.yaml").write_text(
        """
operator_mappings:
  aten.bmm.default: {kernel_type: BatchMatMulV2, alternate_kernel_types: [TransposeBatchMatMul, BatchMatMulNd]}
  aten.rope: {kernel_type: _triton_rope, alternate_kernel_types: [split_qkv_rmsnorm_rope_kernel_0, OtherRope]}
  aten.own: {kernel_type: OwnAdd, alternate_kernel_types: [AddAiCore], query_mode: elementwise}
  aten.add: {kernel_type: Add, alternate_kernel_types: [AddAiCore]}
  aten.free: {kernel_type: Free, query_mode: elementwise, zero_cost: true}
  aten.parts: {kernel_type: Parts, query_mode: elementwise, composite: true}
  c.all_reduce: {kernel_type: hcom_allReduce_, alternate_kernel_types: [Reduce], category: communication}
  aten.unknown: {kernel_type: Unknown, alternate_kernel_types: [Unknown2]}
"""
    )
    found = database_kernels(database, built_in_catalog())
    assert set(found) - set(built_in_catalog().kernels) == {"BatchMatMulNd", "OtherRope", "OwnAdd"}
    assert found["OwnAdd"].patterns == built_in_catalog().kernel("Add").patterns


@pytest.mark.parametrize("text", ["a: [", "other: {}", "- 1"])
def test_a_mapping_that_cannot_be_read_is_named(database: Database, text: str) -> None:
    (database.path / "op_mapping.yaml").write_text(text)
    with pytest.raises(OpAtlasError, match=r"op_mapping\.yaml"):
        database_kernels(database, built_in_catalog())
