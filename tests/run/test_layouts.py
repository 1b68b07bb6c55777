"""The layouts that libraries share, made from the arguments of replays."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench.implementations import _layouts as layouts

from opatlas import Unsupported
from opatlas.run.implementations.implementation import Support

LIBRARY = Support("Anything")
#: (B, N, S, D): the heads are axis 1, and the angles depend on batch and token.
X = torch.arange(2 * 3 * 4 * 8.0).view(2, 3, 4, 8)
COS = torch.arange(2 * 4 * 8.0).view(2, 1, 4, 8)


def test_tokens_with_one_stride_are_a_view_and_others_are_refused() -> None:
    tokens = X.transpose(1, 2).contiguous()
    found = layouts.tokens_by_heads(tokens, 2, LIBRARY)
    assert found.shape == (8, 3, 8)
    assert found.data_ptr() == tokens.data_ptr()
    assert torch.equal(found, layouts.contiguous_tokens_by_heads(tokens, 2, LIBRARY))
    for views in (layouts.tokens_by_heads, layouts.contiguous_tokens_by_heads):
        with pytest.raises(Unsupported):
            views(X, 1, LIBRARY)


def test_the_axis_of_heads_is_the_last_one_along_which_all_have_one_angle() -> None:
    assert layouts.axis_of_heads(X, COS, LIBRARY) == 1
    assert layouts.axis_of_heads(X.transpose(1, 2), COS.transpose(1, 2), LIBRARY) == 2
    with pytest.raises(Unsupported):
        layouts.axis_of_heads(X[:, :1], COS, LIBRARY)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_token_finds_its_angles_in_the_table(dtype: torch.dtype) -> None:
    tokens = X.transpose(1, 2).contiguous()
    cos = COS.transpose(1, 2)
    rows = layouts.rows_of_tokens(tokens, cos, 2, LIBRARY, dtype)
    table = layouts.table_of_pairs(cos, -cos, torch.float64)
    assert rows.dtype == dtype
    assert torch.equal(table[rows.long(), :4], cos.expand(2, 4, 1, 8).reshape(8, 8)[:, :4].double())
    assert torch.equal(table[:, 4:], -table[:, :4])
    # One table for all sequences.
    assert layouts.rows_of_tokens(tokens, cos[:1], 2, LIBRARY).tolist() == [0, 1, 2, 3] * 2
    with pytest.raises(Unsupported):
        layouts.rows_of_tokens(tokens, tokens, 2, LIBRARY)


def test_a_scale_is_float32_whatever_it_is_stored_in() -> None:
    scale, converted = torch.tensor([0.5, 3.0]), []
    assert layouts.real_scale(scale, converted) is scale
    packed = torch.stack([scale.view(torch.int32), torch.zeros(2, dtype=torch.int32)], -1).view(torch.int64).squeeze(-1)
    assert not converted
    for stored in (packed, scale.bfloat16()):
        assert torch.equal(layouts.real_scale(stored, converted), scale)
    assert len(converted) == 2


def test_a_weight_is_stored_by_columns_and_a_conversion_is_told() -> None:
    weight, converted = torch.arange(12.0).view(3, 4), []
    found = layouts.weight_by_columns(weight, converted)
    assert torch.equal(found, weight)
    assert found.stride() == (1, 3)
    assert converted == ["weight to (N, K)"]
    assert layouts.weight_by_columns(found, converted) is found
    assert len(converted) == 1


def test_features_side_by_side_come_half_a_head_apart() -> None:
    assert layouts.pairs_in_halves(torch.tensor([[0, 4, 1, 5, 2, 6]])).tolist() == [[0, 1, 2, 4, 5, 6]]
