"""Rows of each shape at many sizes: which sizes, and how the rows are dealt among models and shapes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from opatlas.shapes.models import DEEPSEEK_V3, LLAMA_3_70B, QWEN3_0_6B, QWEN3_32B
from tests_of_shapes import catalog_of, request

from opatlas.data.database import Database
from opatlas.row.columns import INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES
from opatlas.theory.catalog import CatalogKernel, built_in_catalog
from opatlas.theory.plan import KernelPlan, Request, add_theory_rows, plan_kernel, read_table
from opatlas.theory.sources import Shape, ShapeOrigin, deal_by_calls
from opatlas.theory.space import FLUSH_BUFFER_BYTES, GB

KERNELS = built_in_catalog().kernels
MATMUL = KERNELS["MatMulV2"]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path)


def planned(database: Database, kernel: CatalogKernel, wanted: Request, sizes: int = 16) -> KernelPlan:
    wanted = replace(wanted, sizes_per_shape=sizes, is_npu=False)
    return plan_kernel(kernel, read_table(database, kernel.kernel_type), wanted)


def sizes_of(plan: KernelPlan) -> dict[str, list[int]]:
    """The sizes M of each weight of a product, ascending."""
    found: dict[str, list[int]] = {}
    for cell in plan.frame[INPUT_SHAPES]:
        left, weight = cell.split(";")[:2]
        found.setdefault(weight, []).append(int(left.split(",")[0]))
    return {weight: sorted(sizes) for weight, sizes in found.items()}


EDGES = {63, 64, 65, 127, 128, 129, 255, 256, 257}


@pytest.mark.parametrize("count", [2, 3, 16, 40, 300])
def test_sizes_are_spread_from_the_smallest_to_the_largest(database: Database, count: int) -> None:
    found = sizes_of(planned(database, MATMUL, request(QWEN3_32B), count))
    assert len(found) == len(QWEN3_32B.linears(1))
    for sizes in found.values():
        assert set(sizes) > EDGES
        assert len(set(sizes)) == len(sizes)
        assert count <= len(sizes) <= count + len(EDGES)
        assert (sizes[0], sizes[-1]) == (1, 32768)
        widest = max(later / size for size, later in pairwise(sizes))
        assert widest <= max(2.0, 1.2 * 32768 ** (1 / (count - 1)))


def test_the_largest_size_is_the_largest_that_fits(database: Database) -> None:
    plan = planned(database, MATMUL, request(QWEN3_32B, gb=3))
    assert plan.bytes.max() <= 3 * GB - FLUSH_BUFFER_BYTES
    found = sizes_of(plan)
    assert {len(set(sizes) - EDGES) for sizes in found.values()} <= set(range(13, 17))
    for weight, sizes in found.items():
        n, k = map(int, weight.split(","))
        fitting = (3 * GB - FLUSH_BUFFER_BYTES - 2 * n * k) // (2 * (n + k))
        assert 0.85 * min(32768, fitting) <= sizes[-1] <= fitting


@pytest.mark.parametrize("kernel_type", KERNELS)
def test_every_kernel_type_has_rows_within_its_conditions(database: Database, kernel_type: str) -> None:
    wanted = replace(request(DEEPSEEK_V3, QWEN3_0_6B, gb=4), sizes_per_shape=5)
    grid = plan_kernel(KERNELS[kernel_type], read_table(database, kernel_type), replace(wanted, sizes_per_shape=0))
    first = add_theory_rows(database, KERNELS[kernel_type], wanted)
    assert bool(first.signatures) == bool(grid.signatures)
    assert first.result.largest_bytes <= 4 * GB - FLUSH_BUFFER_BYTES
    again = add_theory_rows(database, KERNELS[kernel_type], wanted)
    assert (again.signatures, again.result.existing) == ([], len(first.signatures))


def test_conditions_on_sizes_hold_and_each_axis_has_its_sizes(tmp_path: Path, database: Database) -> None:
    catalog = catalog_of(
        tmp_path,
        """
        grids: {some: [1, 2, 64, 4096], few: [1, 3, 8]}
        patterns:
          toy:
            axes: {a: some, b: few, c: [5, 7]}
            where: [a % 8 == 0, a >= 2 * b]
            inputs: [[a, b, c]]
            outputs: [[a]]
            forms: [FLOAT -> FLOAT, BF16 -> BF16]
        kernels: {Toy: toy}
        """,
    )
    plan = planned(database, catalog.kernel("Toy"), request(QWEN3_0_6B), 4)
    rows = [tuple(map(int, cell.split(","))) for cell in plan.frame[INPUT_SHAPES]]
    assert all(a % 8 == 0 and a >= 2 * b and c in (5, 7) for a, b, c in rows)
    for dtype in ("FLOAT", "DT_BF16"):
        own = [row for row, name in zip(rows, plan.frame[INPUT_DTYPES], strict=True) if name == dtype]
        assert {8, 64, 128, 256, 4096} <= {a for a, _, _ in own}
        assert len({b for _, b, _ in own}) >= 4
        assert {1, 8} <= {b for _, b, _ in own}
        assert {c for _, _, c in own} == {5, 7}


def test_a_limit_of_rows_is_shared_equally_by_models_and_by_calls_within_a_model(database: Database) -> None:
    plan = planned(database, MATMUL, request(QWEN3_32B, LLAMA_3_70B, rows=120))
    found = {weight: len(sizes) for weight, sizes in sizes_of(plan).items()}
    of_models = [
        {linear.name: found[f"{linear.n},{linear.k}"] for linear in model.linears(1)}
        for model in (QWEN3_32B, LLAMA_3_70B)
    ]
    assert [sum(rows.values()) for rows in of_models] == [60, 60]
    for rows in of_models:
        # One call in a step, and as many as layers.
        assert rows.pop("lm_head") == 2
        assert max(rows.values()) - min(rows.values()) <= 1


def test_no_model_takes_the_rows_of_another(database: Database) -> None:
    """The model that is named first has four times as many shapes."""
    wanted = request(DEEPSEEK_V3, QWEN3_32B, rows=110)
    found = sizes_of(planned(database, KERNELS["QuantBatchMatmulV3"], wanted))
    stored = {f"{a},{b}" for linear in QWEN3_32B.linears(1) for a, b in permutations((linear.k, linear.n))}
    ours = sum(len(sizes) for weight, sizes in found.items() if weight in stored)
    assert 50 <= ours <= 60


def shape(*calls_of: tuple[str, int]) -> Shape:
    return Shape({}, tuple(ShapeOrigin(model, "part", "", calls) for model, calls in calls_of))


def test_rows_go_to_shapes_by_their_calls_once_each_has_its_ends() -> None:
    shapes = [shape(("a", 30)), shape(("a", 10)), shape(("a", 1))]
    dealt = list(deal_by_calls(shapes, [100, 100, 100]))
    assert Counter(dealt[:6]) == {0: 2, 1: 2, 2: 2}
    assert Counter(dealt[6:88]) == {0: 60, 1: 20, 2: 2}
    assert Counter(dealt) == {0: 100, 1: 100, 2: 100}


def test_a_shape_of_two_models_is_dealt_once_and_generic_shapes_come_last() -> None:
    shapes = [shape(), shape(("a", 1), ("b", 1)), shape(("b", 1))]
    dealt = list(deal_by_calls(shapes, [3, 4, 5]))
    assert Counter(dealt) == {0: 3, 1: 4, 2: 5}
    assert dealt[-3:] == [0, 0, 0]


def test_captured_rows_are_sizes_already(database: Database) -> None:
    header = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,"
    row = '"64,1024;4096,1024",DT_BF16;DT_BF16,ND;ND,"64,4096",DT_BF16,ND,7.5\n'
    database.csv_path("MatMulV2").write_text(f"{header}Profiling Average Duration(us)\n{row}")
    found = sizes_of(planned(database, MATMUL, request(QWEN3_0_6B)))
    assert 64 not in found["4096,1024"]
    assert 64 in found["6144,1024"]


def test_all_rows_are_in_nd(database: Database) -> None:
    plan = planned(database, MATMUL, request(QWEN3_0_6B))
    assert set(plan.frame[INPUT_FORMATS]) == {"ND;ND"}
