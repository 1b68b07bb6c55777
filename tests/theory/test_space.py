"""The rows of a pattern: the same one by one and all at once; drawn ones are legal, in the budget, and repeatable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import warm_python
from hypothesis import given, settings, strategies as st
from hypothesis.strategies import SearchStrategy
from opatlas.shapes.models import DEEPSEEK_V3, GLM_5_1, QWEN3_0_6B, QWEN3_32B
from opatlas.shapes.strategies import draw_rows, space_rows
from tests_of_shapes import catalog_of, theory_rows

from opatlas.row import columns as col
from opatlas.row.signature import signature
from opatlas.row.slots import Slot, parse_slots
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.models import models_by_name
from opatlas.theory.sources import Targets
from opatlas.theory.space import FLUSH_BUFFER_BYTES, GB, Near, Space, TheoryRow

pytestmark = pytest.mark.usefixtures("forks")
REPOSITORY = Path(__file__).parents[2]
MODELS = (DEEPSEEK_V3, QWEN3_32B, GLM_5_1)
TARGETS = Targets(MODELS, tp_sizes=(16,), ep_sizes=(64,))
DRAWN = Targets(MODELS, tp_sizes=(1, 16), ep_sizes=(1, 32), generic=True)
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


def test_every_pattern_has_rows() -> None:
    targets = Targets([*{id(model): model for model in models_by_name().values()}.values()], (1,), (1,), generic=True)
    kernels = built_in_catalog().kernels.items()
    found = {
        (name, pattern.name): len(Space(name, pattern, pattern.forms, targets, 32 * GB))
        for name, kernel in kernels
        for pattern in kernel.patterns
        if pattern.forms
    }
    assert [place for place, count in found.items() if not count] == []


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
    tokens = required[col.INPUT_SHAPES].str.partition(",")[0].astype(int).tolist()
    first = required[:weights]
    assert set(first[col.OUTPUT_SHAPES].str.partition(",")[2]) == {str(shape.values["n"]) for shape in space.shapes}
    assert set(first[col.INPUT_FORMATS]) == {"ND;ND", "ND;FRACTAL_NZ"}
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
    sizes = [int(space.row(at, [near]).cells[col.OUTPUT_SHAPES]) for at in range(len(space))]
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
    assert cells[col.INPUT_SHAPES].tolist() == ["1,1,16,32", "2,1,16,32", "1,4,16,32", "2,4,16,32"]
    assert cells[col.OUTPUT_SHAPES].tolist() == ["16", "16", "64", "64"]


@pytest.mark.parametrize(("seed", "count"), [(0, 1), (0, 60), (2**32, 25), (-1, 25)])
def test_the_same_seed_gives_the_same_rows(seed: int, count: int) -> None:
    adds = space_rows([space_of("Add", Targets((QWEN3_0_6B,)))])
    sample = draw_rows(adds, count, seed=seed)
    assert list(sample.items()) == list(draw_rows(adds, count, seed=seed).items())
    assert len(sample) == count
    assert all(row.signature() == signature for signature, row in sample.items())


def test_another_process_gives_the_same_rows() -> None:
    """Whatever modules it has loaded: hypothesis mixes constants of loaded modules into some draws."""
    script = (
        "from opatlas.theory.plan import Request, plan_kernel, read_table; "
        "from opatlas.theory.sources import resolve_targets; from opatlas.shapes.strategies import sample_rows; "
        "from opatlas.theory.catalog import built_in_catalog; from opatlas.data.database import Database; "
        "kernels = [built_in_catalog().kernel(name) for name in ('MatMulV2', 'FusedInferAttentionScore')]; "
        "run = Request(resolve_targets([]), 700, 3, 32 * 10**9, sample_rows); "
        "plans = [plan_kernel(k, read_table(Database('none'), k.kernel_type), run).signatures for k in kernels]"
    )
    here: dict[str, Any] = {}
    exec(script, here)
    command = [sys.executable, "-c", f"{script}; print(repr(plans))"]
    done = warm_python.run(command, cwd=REPOSITORY)
    assert done.stdout == repr(here["plans"]) + "\n"


def test_hypothesis_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        "from opatlas.shapes.starter import write_starter; from opatlas.data.database import Database; "
        "write_starter(Database('database'))"
    )
    done = warm_python.run([sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY)})
    assert (done.returncode, done.stdout) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["database"]


BUDGETS = (0.6, 4.0, 32.0)


def inputs(row: TheoryRow) -> tuple[Slot, ...]:
    return parse_slots(*(row.cells[column] for column in col.INPUT_SLOTS), col.INPUT_SLOTS)


def outputs(row: TheoryRow) -> tuple[Slot, ...]:
    return parse_slots(*(row.cells[column] for column in col.OUTPUT_SLOTS), col.OUTPUT_SLOTS)


@pytest.fixture(scope="module")
def strategies() -> dict[tuple[str, float], SearchStrategy[TheoryRow]]:
    """Made when they are first asked for."""
    return {}


@pytest.mark.parametrize("kernel_type", built_in_catalog().kernels)
def test_rows_are_legal(kernel_type: str, strategies: dict[tuple[str, float], SearchStrategy[TheoryRow]]) -> None:
    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        gb = data.draw(st.sampled_from(BUDGETS))
        if (kernel_type, gb) not in strategies:
            strategies[kernel_type, gb] = theory_rows(kernel_type, targets=DRAWN, budget_bytes=int(gb * GB))
        row = data.draw(strategies[kernel_type, gb])
        assert row.kernel_type == kernel_type
        assert tuple(row.cells)[: len(col.BASE)] == col.BASE
        assert all(size > 0 for slot in (*inputs(row), *outputs(row)) for size in slot.shape)
        assert row.bytes + FLUSH_BUFFER_BYTES <= gb * GB
        assert row.signature() == signature(kernel_type, {name: f'"{cell}"' for name, cell in row.cells.items()})

    check()


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_lengths_of_sequences_are_those_of_the_slots(data: st.DataObject) -> None:
    row = data.draw(theory_rows("FusedInferAttentionScore", targets=DRAWN))
    cells = {name.removeprefix(col.RUNTIME_PREFIX): cell for name, cell in row.cells.items()}
    keys = [int(word) for word in cells["actual_seq_lengths_kv_values"].split(",")]
    query, keys_shape = inputs(row)[0].shape, inputs(row)[1].shape
    table = inputs(row)[14].shape if len(inputs(row)) > 14 else ()
    if cells["input_layout"] == "TND":
        assert int(cells["actual_seq_lengths_values"].split(",")[-1]) == query[0]
    if table:
        assert len(keys) == table[0]
        assert -(-max(keys) // int(cells["block_size"])) == table[1]
        assert table[0] * table[1] == keys_shape[0]
    else:
        assert keys[-1] == keys_shape[0]
    assert int(cells["num_heads"]) == query[1]


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_blocks_hold_the_matrix(data: st.DataObject) -> None:
    rows = theory_rows("QuantBatchMatmulV3", targets=DRAWN)
    row = data.draw(rows.filter(lambda row: len(inputs(row)) > 2 and len(inputs(row)[2].shape) == 1))
    (m, k), (a, b, c, d) = inputs(row)[0].shape, inputs(row)[1].shape
    assert (inputs(row)[1].format, c, d) == ("FRACTAL_NZ", 16, 32)
    assert (b * c, a * d) == (k, outputs(row)[0].shape[1])
    assert outputs(row)[0].shape[0] == m
