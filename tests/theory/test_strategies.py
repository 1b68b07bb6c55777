"""Drawn rows of every kernel type: legal, within the budget, and read as they were meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from opatlas.shapes.models import DEEPSEEK_V3, GLM_5_1, QWEN3_32B
from opatlas.shapes.strategies import theory_rows

from opatlas.errors import OpAtlasError
from opatlas.row.columns import BASE, INPUT_SLOTS, OUTPUT_SLOTS, RUNTIME_PREFIX
from opatlas.row.signature import signature
from opatlas.row.slots import Slot, parse_slots
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.rows import TheoryRow
from opatlas.theory.sources import Targets
from opatlas.theory.space import FLUSH_BUFFER_BYTES, GB, row_bytes

TARGETS = Targets((DEEPSEEK_V3, QWEN3_32B, GLM_5_1), tp_sizes=(1, 16), ep_sizes=(1, 32), generic=True)
KERNEL_TYPES = tuple(built_in_catalog().kernels)
BUDGETS = (0.6, 4.0, 32.0)


def without_trailing_absent(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    while slots and slots[-1].absent:
        slots = slots[:-1]
    return slots


@pytest.fixture(scope="module")
def strategies() -> dict[tuple[str, float], SearchStrategy[TheoryRow]]:
    """Made when they are first asked for."""
    return {}


@pytest.mark.parametrize("kernel_type", KERNEL_TYPES)
def test_rows_are_legal(kernel_type: str, strategies: dict[tuple[str, float], SearchStrategy[TheoryRow]]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        gb = data.draw(st.sampled_from(BUDGETS))
        if (kernel_type, gb) not in strategies:
            strategies[kernel_type, gb] = theory_rows(kernel_type, targets=TARGETS, budget_bytes=int(gb * GB))
        row = data.draw(strategies[kernel_type, gb])
        cells = row.cells()
        assert row.kernel_type == kernel_type
        assert tuple(cells)[: len(BASE)] == BASE
        inputs = parse_slots(*(cells[column] for column in INPUT_SLOTS), INPUT_SLOTS)
        outputs = parse_slots(*(cells[column] for column in OUTPUT_SLOTS), OUTPUT_SLOTS)
        assert inputs == without_trailing_absent(row.inputs)
        assert outputs == without_trailing_absent(row.outputs)
        assert all(size > 0 for slot in (*inputs, *outputs) for size in slot.shape)
        assert row_bytes(row) + FLUSH_BUFFER_BYTES <= gb * GB
        assert row.signature() == signature(kernel_type, {name: f'"{cell}"' for name, cell in cells.items()})

    check()


@given(data=st.data())
@settings(deadline=None)
def test_lengths_of_sequences_are_those_of_the_slots(data: st.DataObject) -> None:
    row = data.draw(theory_rows("FusedInferAttentionScore", targets=TARGETS))
    cells = {name.removeprefix(RUNTIME_PREFIX): cell for name, cell in row.more}
    keys = [int(word) for word in cells["actual_seq_lengths_kv_values"].split(",")]
    query, table = row.inputs[0].shape, row.inputs[14].shape
    if cells["input_layout"] == "TND":
        assert int(cells["actual_seq_lengths_values"].split(",")[-1]) == query[0]
    if table:
        assert len(keys) == table[0]
        assert -(-max(keys) // int(cells["block_size"])) == table[1]
        assert table[0] * table[1] == row.inputs[1].shape[0]
    else:
        assert keys[-1] == row.inputs[1].shape[0]
    assert int(cells["num_heads"]) == query[1]


@given(data=st.data())
@settings(deadline=None)
def test_blocks_hold_the_matrix(data: st.DataObject) -> None:
    rows = theory_rows("QuantBatchMatmulV3", targets=TARGETS)
    row = data.draw(rows.filter(lambda row: len(row.inputs[2].shape) == 1))
    (m, k), (a, b, c, d) = row.inputs[0].shape, row.inputs[1].shape
    assert (row.inputs[1].format, c, d) == ("FRACTAL_NZ", 16, 32)
    assert (b * c, a * d) == (k, row.outputs[0].shape[1])
    assert row.outputs[0].shape[0] == m


def test_draws_shrink_to_the_simplest_row() -> None:
    from hypothesis import find

    row = find(theory_rows("SwiGlu", targets=TARGETS), lambda row: True)
    assert row.inputs[0].shape[0] == 1


def test_a_budget_in_which_nothing_fits_is_an_error() -> None:
    with pytest.raises(OpAtlasError, match=r"Sort.*0\.5 GB.*--max-hbm-gb"):
        theory_rows("Sort", targets=TARGETS, budget_bytes=GB // 2)
