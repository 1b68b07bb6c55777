"""The coverage of models' shapes by a database, and the kernel types of which a database gets rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from opatlas.shapes.models import DEEPSEEK_V3, QWEN3_0_6B
from tests_of_shapes import request

from opatlas.data.database import Database
from opatlas.theory.catalog import CatalogKernel, built_in_catalog, database_kernels
from opatlas.theory.known_rows import ShapeCoverage, model_coverage
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


def coverage(database: Database, kernel_type: str = "MatMulV2", sizes: int = 16) -> dict[str, ShapeCoverage]:
    kernel = built_in_catalog().kernel(kernel_type)
    (found,) = model_coverage(kernel, read_table(database, kernel_type), TARGETS, sizes)
    assert found.model == "Qwen/Qwen3-0.6B"
    return {shape.name.partition(",")[0]: shape for shape in found.shapes}


def test_sizes_of_each_shape_are_counted(database: Database) -> None:
    matmuls(database, (1, 4096, 1024), (16, 4096, 1024), (24, 4096, 1024), (7, 1024, 3072), (5, 123, 456))
    found = coverage(database)
    assert {name: (shape.has_rows, shape.sizes, shape.wanted) for name, shape in found.items()} == {
        "qkv": (True, 3, 16),
        "o_proj": (False, 0, 16),
        "gate_up": (False, 0, 16),
        "down": (True, 1, 16),
        "lm_head": (False, 0, 16),
    }
    assert (found["qkv"].gap_from, found["qkv"].gap_to) == (24, 32768)
    assert not any(shape.is_enough for shape in found.values())
    assert {name: dict(shape.calls) for name, shape in found.items() if name in ("qkv", "lm_head")} == {
        "qkv": {"tp 1": 28},
        "lm_head": {"tp 1": 1},
    }


def test_a_row_of_any_number_of_tokens_is_not_enough(database: Database) -> None:
    """Sixteen numbers of tokens are; fifteen, and sixteen of two dtypes, are not."""
    matmuls(
        database,
        *((m, 4096, 1024) for m in range(1, 17)),
        *((m, 1024, 2048) for m in range(1, 16)),
        *((m, 1024, 3072) for m in range(1, 9)),
    )
    lines = [f'"{m},3072;1024,3072",FLOAT16;FLOAT16,ND;ND,"{m},1024",FLOAT16,ND\n' for m in range(9, 17)]
    path = database.csv_path("MatMulV2")
    path.write_text(path.read_text() + "".join(lines))
    found = coverage(database)
    assert {name for name, shape in found.items() if shape.is_enough} == {"qkv"}
    assert (found["o_proj"].sizes, found["down"].sizes) == (15, 8)
    assert {name for name, shape in coverage(database, sizes=8).items() if shape.is_enough} == {"qkv", "o_proj", "down"}


def test_patterns_that_differ_in_scales_only_have_their_shapes_in_common(database: Database) -> None:
    kernel = built_in_catalog().kernel("QuantBatchMatmulV3")
    (found,) = model_coverage(kernel, read_table(database, "QuantBatchMatmulV3"), TARGETS)
    assert len(found.shapes) == len({shape.name for shape in found.shapes}) == 4
    assert not any(shape.has_rows for shape in found.shapes)
    for pattern in kernel.patterns[:4]:
        only = CatalogKernel(kernel.kernel_type, (pattern,))
        add_theory_rows(database, only, replace(request(QWEN3_0_6B), forms_of_database=False))
        (found,) = model_coverage(kernel, read_table(database, "QuantBatchMatmulV3"), TARGETS)
        assert all(shape.is_enough for shape in found.shapes)
        database.csv_path("QuantBatchMatmulV3").unlink()


@pytest.mark.parametrize("kernel_type", built_in_catalog().kernels)
def test_a_run_covers_every_shape(database: Database, kernel_type: str) -> None:
    wanted = request(DEEPSEEK_V3, QWEN3_0_6B, rows=150)
    kernel = built_in_catalog().kernel(kernel_type)
    add_theory_rows(database, kernel, wanted)
    for found in model_coverage(kernel, read_table(database, kernel_type), wanted.targets):
        assert [shape.name for shape in found.shapes if not shape.has_rows] == []


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
