"""Drawn rows of every kernel type: legal, within the budget, and read as they were meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from opatlas.shapes.models import DEEPSEEK_V3, GLM_5_1, QWEN3_32B
from opatlas.shapes.strategies import theory_rows

from opatlas.row.columns import BASE, INPUT_SLOTS, OUTPUT_SLOTS, RUNTIME_PREFIX
from opatlas.row.signature import signature
from opatlas.row.slots import Slot, parse_slots
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.sources import Targets
from opatlas.theory.space import FLUSH_BUFFER_BYTES, GB, TheoryRow

TARGETS = Targets((DEEPSEEK_V3, QWEN3_32B, GLM_5_1), tp_sizes=(1, 16), ep_sizes=(1, 32), generic=True)
KERNEL_TYPES = tuple(built_in_catalog().kernels)
BUDGETS = (0.6, 4.0, 32.0)


def inputs(row: TheoryRow) -> tuple[Slot, ...]:
    return parse_slots(*(row.cells[column] for column in INPUT_SLOTS), INPUT_SLOTS)


def outputs(row: TheoryRow) -> tuple[Slot, ...]:
    return parse_slots(*(row.cells[column] for column in OUTPUT_SLOTS), OUTPUT_SLOTS)


@pytest.fixture(scope="module")
def strategies() -> dict[tuple[str, float], SearchStrategy[TheoryRow]]:
    """Made when they are first asked for."""
    return {}


@pytest.mark.parametrize("kernel_type", KERNEL_TYPES)
def test_rows_are_legal(kernel_type: str, strategies: dict[tuple[str, float], SearchStrategy[TheoryRow]]) -> None:
    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        gb = data.draw(st.sampled_from(BUDGETS))
        if (kernel_type, gb) not in strategies:
            strategies[kernel_type, gb] = theory_rows(kernel_type, targets=TARGETS, budget_bytes=int(gb * GB))
        row = data.draw(strategies[kernel_type, gb])
        assert row.kernel_type == kernel_type
        assert tuple(row.cells)[: len(BASE)] == BASE
        assert all(size > 0 for slot in (*inputs(row), *outputs(row)) for size in slot.shape)
        assert row.bytes + FLUSH_BUFFER_BYTES <= gb * GB
        assert row.signature() == signature(kernel_type, {name: f'"{cell}"' for name, cell in row.cells.items()})

    check()


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_lengths_of_sequences_are_those_of_the_slots(data: st.DataObject) -> None:
    row = data.draw(theory_rows("FusedInferAttentionScore", targets=TARGETS))
    cells = {name.removeprefix(RUNTIME_PREFIX): cell for name, cell in row.cells.items()}
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
    rows = theory_rows("QuantBatchMatmulV3", targets=TARGETS)
    row = data.draw(rows.filter(lambda row: len(inputs(row)) > 2 and len(inputs(row)[2].shape) == 1))
    (m, k), (a, b, c, d) = inputs(row)[0].shape, inputs(row)[1].shape
    assert (inputs(row)[1].format, c, d) == ("FRACTAL_NZ", 16, 32)
    assert (b * c, a * d) == (k, outputs(row)[0].shape[1])
    assert outputs(row)[0].shape[0] == m
