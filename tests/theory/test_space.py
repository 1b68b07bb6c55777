"""The rows of a pattern: the same one by one and all at once, with those that no sample may lack."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from opatlas.shapes.models import DEEPSEEK_V3, GLM_5_1, QWEN3_0_6B, QWEN3_32B
from tests_of_shapes import catalog_of

from opatlas.row.columns import INPUT_FORMATS, INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.sources import Targets
from opatlas.theory.space import FLUSH_BUFFER_BYTES, GB, Near, Space

TARGETS = Targets((DEEPSEEK_V3, QWEN3_32B, GLM_5_1), tp_sizes=(16,), ep_sizes=(64,))
_NEAR = [Near(part=0.5)]


def space_of(kernel_type: str, targets: Targets = TARGETS, gb: float = 32.0) -> Space:
    pattern = built_in_catalog().kernel(kernel_type).patterns[0]
    return Space(kernel_type, pattern, pattern.forms, targets, int(gb * GB))


def all_cells(space: Space) -> pd.DataFrame:
    return pd.concat([batch.frame for batch in space.batches()], ignore_index=True)


@pytest.mark.parametrize("kernel_type", built_in_catalog().kernels)
def test_rows_one_by_one_are_those_of_all_at_once(kernel_type: str) -> None:
    for pattern in built_in_catalog().kernel(kernel_type).patterns:
        space = Space(kernel_type, pattern, pattern.forms, TARGETS, 32 * GB)
        if not len(space):
            continue
        table = all_cells(space)
        assert len(table) == len(space)
        bytes_ = [size for batch in space.batches() for size in batch.bytes.tolist()]
        for position in range(0, len(space), max(1, len(space) // 20)):
            row = space.row(position)
            assert row.cells == table.iloc[position].to_dict()
            assert row.bytes == bytes_[position]


def test_rows_beyond_the_budget_are_left_out_and_counted() -> None:
    everything, small = space_of("MatMulV2"), space_of("MatMulV2", gb=0.6)
    assert everything.over_budget == 0
    assert small.over_budget == len(everything) - len(small) > 0
    assert small.smallest_over_budget + FLUSH_BUFFER_BYTES > 0.6 * GB
    assert all(small.row(i * 7, _NEAR).bytes + FLUSH_BUFFER_BYTES <= 0.6 * GB for i in range(200))


def test_each_shape_comes_first_then_the_ends_of_its_range_and_edges_of_tiles() -> None:
    space = space_of("MatMulV2", Targets((QWEN3_0_6B,), tp_sizes=(1,)))
    weights, both = len(space.shapes), len(space.shapes) * len(space.forms)
    required = all_cells(space).iloc[space.required()]
    tokens = required[INPUT_SHAPES].str.partition(",")[0].astype(int).tolist()
    first = required[:weights]
    assert set(first[OUTPUT_SHAPES].str.partition(",")[2]) == {str(shape.values["n"]) for shape in space.shapes}
    assert set(first[INPUT_FORMATS]) == {"ND;ND", "ND;FRACTAL_NZ"}
    assert len(set(tokens[:weights])) == weights
    # The very first row is the smallest of its shape, and is there already.
    assert tokens.count(1) == tokens.count(32768) == both
    assert set(tokens[weights : weights + both - 1]) == {1}
    assert {15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129} <= set(tokens)


def test_a_size_is_near_that_of_the_grid() -> None:
    space = space_of("SwiGlu")
    (axis,) = space.free
    assert [near.size(axis, 24) for near in (Near(), Near(32), Near(32, -1), Near(part=0.5))] == [24, 32, 31, 27]
    last = axis.grid[-1]
    assert [near.size(axis, last) for near in (Near(16, 1), Near(part=0.5))] == [last, last]


@pytest.mark.parametrize(
    ("pattern", "grid", "near"),
    [
        ("where: [m % 2 == 1], inputs: [[m]], outputs: [[m * m]]", [1, 3, 9], Near(part=0.5)),
        # 10 MB fit, and 100 MB do not: sizes on the way there reach beyond the budget.
        ('inputs: [["1000000 * m"]], outputs: [[m]]', [1, 10, 100], Near(part=0.9)),
    ],
)
def test_a_size_between_that_is_not_legal_is_that_of_the_grid(
    tmp_path: Path, pattern: str, grid: list[int], near: Near
) -> None:
    pattern = f"{{axes: {{m: t}}, {pattern}, forms: [INT8 -> INT8]}}"
    text = f"grids: {{t: {grid}}}\npatterns: {{p: {pattern}}}\nkernels: {{K: p}}"
    (legal,) = catalog_of(tmp_path, text).kernel("K").patterns
    space = Space("K", legal, legal.forms, TARGETS, FLUSH_BUFFER_BYTES + 40 * 10**6)
    sizes = [int(space.row(at, [near]).cells[OUTPUT_SHAPES]) for at in range(len(space))]
    assert sizes == ([1, 9, 81] if near.part == 0.5 else [9, 10])


def test_a_matrix_that_blocks_do_not_divide_is_left_out(tmp_path: Path) -> None:
    catalog = catalog_of(
        tmp_path,
        """
        grids: {}
        patterns:
          blocked:
            axes: {n: [16, 24, 64], k: [32, 48, 64]}
            inputs: [[n, k]]
            outputs: [[n]]
            forms: [INT8 | FRACTAL_NZ -> INT8]
        kernels: {Blocked: blocked}
        """,
    )
    (pattern,) = catalog.kernel("Blocked").patterns
    cells = all_cells(Space("Blocked", pattern, pattern.forms, TARGETS, GB))
    assert cells[INPUT_SHAPES].tolist() == ["1,1,16,32", "2,1,16,32", "1,4,16,32", "2,4,16,32"]
    assert cells[OUTPUT_SHAPES].tolist() == ["16", "16", "64", "64"]
