"""Draws satisfy what their strategy promises, without rejecting any."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests_of_shapes import drawn

from database.schema import BASE, INPUT_SLOTS, OUTPUT_SLOTS
from database.slots import parse_slots
from shapes import strategies
from shapes.models import QWEN3_0_6B, Linear
from shapes.rows import TheoryRow
from shapes.strategies import DECODE_TOKENS, MOST_TOKENS, token_counts

DTYPES = ("BF16", "FLOAT", "FLOAT16")
LINEARS = (*QWEN3_0_6B.layer_linears(), QWEN3_0_6B.lm_head())

PATTERNS: dict[str, SearchStrategy[TheoryRow]] = {
    "matmuls": strategies.matmuls("MatMulV2", LINEARS, DTYPES, 10**9),
    "elementwise": strategies.elementwise("Add", [1024, 3072], DTYPES),
    "per_head": strategies.per_head("Mul", [16, 8], 128, DTYPES),
    "rms_norms": strategies.rms_norms([(1024,), (16, 128)], DTYPES, 1 << 20),
    "swiglus": strategies.swiglus([3072], DTYPES),
    "attention_softmaxes": strategies.attention_softmaxes(16, DTYPES, 1 << 20),
    "logit_softmaxes": strategies.logit_softmaxes(151936, DTYPES, 1 << 20),
    "embeddings": strategies.embeddings(151936, 1024, DTYPES),
}


@pytest.mark.parametrize("name", PATTERNS)
@given(data=st.data())
def test_rows_read_as_they_were_meant(name: str, data: st.DataObject) -> None:
    row = data.draw(PATTERNS[name])
    cells = row.cells()
    assert tuple(cells) == BASE
    assert parse_slots(*(cells[column] for column in INPUT_SLOTS), INPUT_SLOTS) == row.inputs
    assert parse_slots(*(cells[column] for column in OUTPUT_SLOTS), OUTPUT_SLOTS) == row.outputs


@given(st.integers(1, 10_000), st.data())
def test_token_counts_lie_within_their_bounds(most: int, data: st.DataObject) -> None:
    assert 1 <= data.draw(token_counts(most)) <= most


def test_decode_sizes_are_drawn_more_often_than_others() -> None:
    samples = 400
    counts = drawn(token_counts(), samples)
    assert sum(count in DECODE_TOKENS for count in counts) > samples / 3
    assert max(counts) > MOST_TOKENS / 2


@given(st.sampled_from(LINEARS), st.integers(10**6, 10**12), st.data())
def test_matmuls_stay_within_their_operations(linear: Linear, most_flop: int, data: st.DataObject) -> None:
    row = data.draw(strategies.matmuls("MatMulV2", [linear], DTYPES, most_flop))
    (m, k), (n, _) = row.inputs[0].shape, row.inputs[1].shape
    assert row.outputs[0].shape == (m, n)
    assert (n, k) == (linear.n, linear.k)
    assert 2 * m * n * k <= max(most_flop, 2 * n * k)


@given(PATTERNS["rms_norms"])
def test_norms_give_a_float_factor_for_each_row(row: TheoryRow) -> None:
    x, gamma = row.inputs
    y, rstd = row.outputs
    assert y == x
    assert gamma.shape == x.shape[-1:]
    assert (rstd.shape, rstd.dtype) == ((*x.shape[:-1], 1), "FLOAT")
    assert prod(x.shape) <= 1 << 20


@given(PATTERNS["swiglus"])
def test_swiglu_halves_the_last_dimension(row: TheoryRow) -> None:
    assert row.inputs[0].shape == (row.outputs[0].shape[0], 2 * row.outputs[0].shape[1])


@given(st.one_of(PATTERNS["attention_softmaxes"], PATTERNS["logit_softmaxes"]))
def test_softmaxes_stay_within_their_elements(row: TheoryRow) -> None:
    assert row.inputs[0].shape == row.outputs[0].shape
    assert prod(row.inputs[0].shape) <= 1 << 20


@given(PATTERNS["embeddings"])
def test_embeddings_take_a_row_for_each_index(row: TheoryRow) -> None:
    table, indices, axis = row.inputs
    assert (indices.dtype, axis.dtype, axis.shape) == ("INT64", "INT64", (1,))
    assert row.outputs[0].shape == (indices.shape[0], table.shape[1])
