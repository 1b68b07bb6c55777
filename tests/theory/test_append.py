"""Rows of a run in the CSVs of a database, the models that they cover, and what a run tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from compared import write_tables
from opatlas.plugins.theory import summary_table
from opatlas.shapes.models import DEEPSEEK_V3, QWEN3_0_6B, QWEN3_32B
from tests_of_shapes import request, sizes_of_shapes

import opatlas.theory.plan
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, Pace, replay_pace
from opatlas.errors import TableError
from opatlas.row import columns as col
from opatlas.row.signature import signatures
from opatlas.row.table import RowTable
from opatlas.theory.catalog import built_in_catalog, database_kernels
from opatlas.theory.plan import KernelPlan, KernelResult, add_theory_rows, plan_kernel, read_table

KERNELS = built_in_catalog().kernels
HEADER = ("OP State", "Accelerator Core", *col.BASE[2:], col.AVERAGE, col.PROFILING_AVERAGE, "Note")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path)


def write(database: Database, kernel_type: str, *rows: str) -> Path:
    """Rows as `shapes | dtypes | formats -> shapes | dtypes | formats`, captured."""
    lines = [",".join(HEADER)]
    for row in rows:
        halves = [[f'"{word.strip()}"' for word in half.split("|")] for half in row.split("->")]
        lines.append(",".join(["dynamic", "CORE", *halves[0], *halves[1], "", "12.5", "mine"]))
    path = database.csv_path(kernel_type)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("folder", "has_fp8"),
    [
        ("NVIDIA_H200/torch/torch2.11.0_cuda13.0", True),
        ("NVIDIA_A100-SXM4-80GB/torch/torch2.11.0_cuda13.0", False),
        ("ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.14.0_torch2.9.0_cann8.5", False),
        ("a/folder", True),
    ],
)
def test_rows_in_fp8_are_for_devices_whose_data_sheet_has_fp8(tmp_path: Path, folder: str, has_fp8: bool) -> None:
    database = Database(tmp_path / folder)
    for kernel_type in ("QuantBatchMatmulV3", "GroupedMatmul", "DynamicQuant"):
        plan = add_theory_rows(database, KERNELS[kernel_type], request(DEEPSEEK_V3, rows=40))
        dtypes = {
            name for column in (col.INPUT_DTYPES, col.OUTPUT_DTYPES) for name in ";".join(plan.frame[column]).split(";")
        }
        assert ({"FLOAT8_E4M3FN", "DT_FLOAT8_E4M3FN"} & dtypes != set()) is has_fp8
        assert {"INT8", "DT_INT8"} & dtypes
        # A second run reads the dtypes of the first one's rows, and adds no rows.
        again = add_theory_rows(database, KERNELS[kernel_type], request(DEEPSEEK_V3, rows=40))
        assert not len(again.frame)
        stored = database.read(kernel_type).frame
        assert signatures(kernel_type, stored) == plan.signatures


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("kernel_type", ["QuantBatchMatmulV3", "FusedInferAttentionScore"])
def test_a_second_time_nothing_is_added(database: Database, kernel_type: str, rows: int) -> None:
    wanted = request(DEEPSEEK_V3, QWEN3_32B, rows=rows, seed=7)
    first = add_theory_rows(database, KERNELS[kernel_type], wanted)
    before = database.csv_path(kernel_type).read_bytes()
    again = add_theory_rows(database, KERNELS[kernel_type], wanted)
    assert (again.signatures, again.result.existing) == ([], len(first.signatures))
    assert database.csv_path(kernel_type).read_bytes() == before


def test_rows_take_each_dtype_and_format_that_is_there(database: Database) -> None:
    write(
        database,
        "MatMulV2",
        "16,5120;3200,5120 | DT_BF16;DT_BF16 | ND;ND -> 16,3200 | DT_BF16 | ND",
        "16,5120;320,200,16,16 | FLOAT16;FLOAT16 | ND;FRACTAL_NZ -> 16,3200 | FLOAT16 | ND",
        "8,5120;320,200,16,16 | FLOAT16;FLOAT16 | ND;FRACTAL_NZ -> 8,3200 | FLOAT16 | ND",
    )
    add_theory_rows(database, KERNELS["MatMulV2"], request(QWEN3_0_6B, rows=60))
    new = database.read("MatMulV2").frame.iloc[3:]
    assert set(zip(new[col.INPUT_DTYPES], new[col.INPUT_FORMATS], strict=True)) == {
        ("DT_BF16;DT_BF16", "ND;ND"),
        ("FLOAT16;FLOAT16", "ND;FRACTAL_NZ"),
    }
    assert set(new[col.ACCELERATOR_CORE]) == {"CORE"}
    assert set(new[col.OP_STATE]) == {"dynamic"}
    assert set(new["Note"]) == set(new[col.PROFILING_AVERAGE]) == {""}
    assert all(
        len(cell.split(";")[1].split(",")) == 4
        for cell in new[new[col.INPUT_DTYPES].str[:7] == "FLOAT16"][col.INPUT_SHAPES]
    )


@pytest.mark.parametrize("is_npu", [True, False])
@pytest.mark.parametrize("kernel_type", ["MatMulV2", "QuantBatchMatmulV3", "GroupedMatmul"])
def test_only_an_npu_has_rows_in_blocks(database: Database, kernel_type: str, is_npu: bool) -> None:
    wanted = replace(request(DEEPSEEK_V3, rows=60), is_npu=is_npu)
    for _ in range(2):
        add_theory_rows(database, KERNELS[kernel_type], wanted)
        cells = database.read(kernel_type).frame[col.INPUT_FORMATS]
        assert cells.str.contains("FRACTAL_NZ").any() == is_npu
        assert len(cells) == 60


def test_captured_rows_are_not_missing_and_cost_no_row(database: Database) -> None:
    write(database, "SwiGlu", "1,6144 | DT_BF16 | ND -> 1,3072 | DT_BF16 | ND")
    plan = add_theory_rows(database, KERNELS["SwiGlu"], request(QWEN3_0_6B, rows=10))
    assert (len(plan.signatures), plan.result.existing) == (10, 0)


def test_missing_shapes_of_models_come_first(database: Database) -> None:
    """Five weights: as many rows have one of each, and the next have one token of each."""
    add_theory_rows(database, KERNELS["MatMulV2"], request(QWEN3_0_6B, rows=5))
    frame = database.read("MatMulV2").frame
    pairs = {(linear.n, linear.k) for linear in QWEN3_0_6B.linears(1)}
    assert set(frame[col.OUTPUT_SHAPES].str.partition(",")[2]) == {str(n) for n, _ in pairs}
    add_theory_rows(database, KERNELS["MatMulV2"], request(QWEN3_0_6B, rows=10))
    assert (database.read("MatMulV2").frame[col.INPUT_SHAPES].str.partition(",")[0] == "1").sum() == 6


def test_unknown_columns_and_durations_stay(database: Database) -> None:
    write(database, "SwiGlu", "4,64 | DT_BF16 | ND -> 4,32 | DT_BF16 | ND")
    add_theory_rows(database, KERNELS["SwiGlu"], request(QWEN3_0_6B, rows=10))
    frame = database.read("SwiGlu").frame
    assert tuple(frame.columns) == HEADER
    assert (frame["Note"][0], frame[col.PROFILING_AVERAGE][0]) == ("mine", "12.5")


def test_a_malformed_row_is_named_and_its_file_unchanged(database: Database) -> None:
    path = write(database, "SwiGlu", "4,sixty | DT_BF16 | ND -> 4,32 | DT_BF16 | ND")
    before = path.read_bytes()
    with pytest.raises(TableError, match=r"SwiGlu\.csv:2: column 'Input Shapes' is '4,sixty'"):
        add_theory_rows(database, KERNELS["SwiGlu"], request(QWEN3_0_6B))
    assert path.read_bytes() == before


def test_rows_that_another_process_adds_meanwhile_are_not_added_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = request(QWEN3_0_6B, rows=40)
    plan_kernel = opatlas.theory.plan.plan_kernel

    def slowly(*arguments: object, **named: object) -> KernelPlan:
        plan = plan_kernel(*arguments, **named)  # type: ignore[arg-type]
        table = RowTable("SwiGlu", database.csv_path("SwiGlu"), pd.DataFrame(plan.frame.iloc[:15]))
        database.write(table)
        return plan

    monkeypatch.setattr(opatlas.theory.plan, "plan_kernel", slowly)
    plan = add_theory_rows(database, KERNELS["SwiGlu"], wanted)
    assert (len(plan.signatures), plan.result.existing) == (25, 15)
    frame = database.read("SwiGlu").frame
    assert len(frame) == len(set(signatures("SwiGlu", frame))) == 40


KERNEL_TYPE = "DispatchFFNCombine"


def planned(database: Path, rows: int = 0) -> KernelPlan:
    table = read_table(Database(database), KERNEL_TYPE)
    return plan_kernel(built_in_catalog().kernel(KERNEL_TYPE), table, request(DEEPSEEK_V3, rows=rows, gb=200))


def tokens(plan: KernelPlan) -> set[int]:
    return {int(shapes.partition(",")[0]) for shapes in plan.frame[col.INPUT_SHAPES]}


def test_sizes_beyond_the_limits_of_the_kernel_are_left_out(tmp_path: Path) -> None:
    free = planned(tmp_path)
    assert not free.result.refused
    assert max(tokens(free)) > 64
    # One after the other was run: 63 and 64 tokens are taken, 65 are not.
    rows = [
        {
            **dict.fromkeys(col.BASE, ""),
            col.INPUT_SHAPES: f"{m},7168;256,7168,4096;256,2048,7168;{m},8;256,4096;256,7168;{m},8",
            col.INPUT_DTYPES: f"DT_BF16;{weights};{weights};INT32;FLOAT;FLOAT;FLOAT",
            col.INPUT_FORMATS: ";".join(["ND"] * 7),
            col.EP_SIZE: "1",
            col.STATUS: status,
        }
        for weights in ("DT_BF16", "INT8")
        for m, status in {63: "measured", 64: "measured", 65: "failed"}.items()
    ]
    write_tables(tmp_path, {KERNEL_TYPE: rows})
    bound = planned(tmp_path)
    assert bound.result.refused
    assert len(bound.signatures) < len(free.signatures)
    assert tokens(bound) <= {m for m in tokens(free) if m <= 64}
    assert tokens(bound)


SLOTS = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats\n"


@pytest.mark.parametrize("kernel_type", built_in_catalog().kernels)
def test_a_run_covers_every_shape(database: Database, kernel_type: str) -> None:
    wanted = request(DEEPSEEK_V3, QWEN3_0_6B, rows=100)
    kernel = built_in_catalog().kernel(kernel_type)
    add_theory_rows(database, kernel, wanted)
    table = read_table(database, kernel_type)
    for pattern in kernel.patterns:
        if pattern.forms:
            assert [shape for shape, sizes in sizes_of_shapes(pattern, table, wanted.targets) if not sizes] == []


def test_twins_of_kernel_types_get_rows_where_there_are_some(database: Database) -> None:
    database.csv_path("AddAiCore").write_text(SLOTS)
    database.csv_path("AscendQuantV2Aicore").write_text(SLOTS)
    database.csv_path("SomethingAiCore").write_text(SLOTS)
    found = database_kernels(database, built_in_catalog())
    assert set(found) - set(KERNELS) == {"AddAiCore", "AscendQuantV2Aicore"}
    assert found["AddAiCore"].patterns == built_in_catalog().kernel("Add").patterns


def test_products_that_are_one_call_get_rows_once(database: Database) -> None:
    family = {"MatMulV2", "MatMulV3", "MatMulCommon"}

    def drawn(*named: str) -> set[str]:
        return family & set(database_kernels(database, built_in_catalog(), named))

    assert drawn() == {"MatMulV2"}
    database.csv_path("MatMulV2").write_text(SLOTS)
    write(database, "MatMulV3", "16,32;64,32 | DT_BF16;DT_BF16 | ND;ND -> 16,64 | DT_BF16 | ND")
    assert drawn() == {"MatMulV3"}
    assert drawn("MatMulCommon", "MatMulV2") == family


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


def manifest(run_id: str, seconds: float, **statuses: int) -> Manifest:
    return Manifest(run_id, 100.0, {}, "", finished_at=100.0 + seconds, statuses=statuses)


def results() -> list[KernelResult]:
    """One kernel type with everything that the summary tells, one with one row, and one without new rows."""
    return [
        KernelResult("Mul", 2000, 2, 10**9, 10**12, refused=2, over_budget=3),
        KernelResult("Neg", 1, 1, 8, 8, refused=1, unknown_dtypes=("FLOAT3",)),
        KernelResult("Add"),
    ]


@pytest.mark.parametrize(("read_only", "name"), [(False, "added"), (True, "to add")])
def test_the_summary_has_a_row_for_each_kernel_type(read_only: bool, name: str) -> None:
    table = summary_table(results(), read_only=read_only)
    assert table.full_columns()[1].name == name
    assert [row[:3] for row in table.rows] == [("Add", 0, 0), ("Mul", 2000, 2), ("Neg", 1, 1), ("all", 2001, 3)]


def test_the_newest_replay_sets_the_pace() -> None:
    ended = manifest("2", 30, measured=9, failed=1)
    others = [manifest("1", 500, measured=1), manifest("3", 7, added=1000), manifest("4", 7)]
    killed = Manifest("5", 100.0, {}, "", statuses={"measured": 3})
    assert replay_pace([*others, ended, killed]) == Pace(3.0, "2")
    assert not replay_pace(others[1:]).run_id


def test_a_run_of_a_few_rows_does_not_set_the_pace() -> None:
    assert replay_pace([manifest("1", 100, measured=1000), manifest("2", 10, measured=3)]) == Pace(0.1, "1")
