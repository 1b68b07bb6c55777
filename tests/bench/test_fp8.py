"""FP8: random inputs, products with scales, and quantization."""

from __future__ import annotations

import pytest
import torch

from opatlas.engine.inputs.replay_row import ReplayRow
from opatlas.model.schema import INPUT_DTYPES, INPUT_SHAPES

DTYPES = {"FLOAT8_E4M3FN": torch.float8_e4m3fn, "FLOAT8_E5M2": torch.float8_e5m2}


def input_row(shape: str, name: str) -> ReplayRow:
    return ReplayRow("Any", {INPUT_SHAPES: shape, INPUT_DTYPES: name}, torch.device("cpu"))


@pytest.mark.parametrize("name", [*DTYPES, "DT_FLOAT8_E4M3FN"])
def test_random_numbers_are_those_of_the_dtype_in_their_range(name):
    drawn = input_row("64,96", name).tensor(0, -16.0, 16.0)
    assert drawn.dtype is DTYPES[name.removeprefix("DT_")]
    numbers = drawn.float()
    assert float(numbers.abs().max()) <= 16.0
    # Several binades, both signs, and about the deviation of uniform numbers.
    assert len(numbers.unique()) > 64
    assert 8.5 < float(numbers.std()) < 10.0
    assert torch.equal(input_row("64,96", name).tensor(0, -16.0, 16.0).float(), numbers)


def test_large_tensors_are_drawn_in_pieces(monkeypatch):
    monkeypatch.setattr("opatlas.engine.inputs.replay_row.FP8_PIECE", 100)
    numbers = input_row("7,93", "FLOAT8_E4M3FN").tensor(0).float()
    assert numbers.shape == (7, 93)
    assert not torch.equal(numbers.flatten()[:100], numbers.flatten()[100:200])
