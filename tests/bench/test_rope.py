"""Properties of rotary position embeddings."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from replaying import replay_row, time_instead
from sample_rows import ROWS

from opatlas.row.status import Status
from opatlas.run.result_check import check

sizes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
modes = st.sampled_from(["half", "interleave"])
seeds = st.integers(0, 999)


def tensors(size, seed):
    """x (tokens, heads, 2 pairs); cos and sin (tokens, 1, 2 pairs) of an angle for each pair, laid out by halves."""
    tokens, heads, pairs = size
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, heads, 2 * pairs, generator=generator, dtype=torch.float64)
    angles = torch.randn(tokens, 1, pairs, generator=generator, dtype=torch.float64).repeat(1, 1, 2)
    return x, angles.cos(), angles.sin()


def neighbours(x):
    """From features half a vector apart to neighbours: (a0 a1 ... b0 b1 ...) to (a0 b0 a1 b1 ...)."""
    return torch.stack(x.chunk(2, -1), -1).flatten(-2)


@given(size=sizes, seed=seeds)
def test_interleaved_is_half_after_a_permutation(size, seed):
    x, cos, sin = tensors(size, seed)
    y = impl.rotary_mul(x, cos, sin)
    torch.testing.assert_close(
        impl.rotary_mul(neighbours(x), neighbours(cos), neighbours(sin), "interleave"), neighbours(y)
    )
    torch.testing.assert_close(impl.interleave_rope(neighbours(x), cos, sin), y)


@given(size=sizes, seed=seeds, mode=modes)
def test_turning_back_is_the_gradient(size, seed, mode):
    x, cos, sin = tensors(size, seed)
    cos, sin = torch.rand_like(cos), torch.rand_like(sin)
    grad = torch.rand_like(x)
    signs = {"half": torch.cat, "interleave": lambda parts, dim: neighbours(torch.cat(parts, dim))}[mode]
    wanted = [value.clone().requires_grad_() for value in (x, cos, sin)]
    first, second = wanted[0].chunk(2, -1) if mode == "half" else (wanted[0][..., ::2], wanted[0][..., 1::2])
    y = wanted[0] * wanted[1] + signs([-second, first], -1) * wanted[2]
    torch.testing.assert_close(y.detach(), impl.rotary_mul(x, cos, sin, mode))
    gradients = torch.autograd.grad(y, wanted, grad)
    torch.testing.assert_close(impl.rotary_mul_backward(grad, x, cos, sin, mode), gradients)
    torch.testing.assert_close(impl.rotary_mul_backward(grad, None, cos, sin, mode)[0], gradients[0])


@given(size=sizes, seed=seeds, mode=modes)
def test_references_know_both_modes(size, seed, mode):
    x, cos, sin = tensors(size, seed)
    check(formulas.rotary_mul, [x, cos, sin, mode], {}, [impl.rotary_mul(x, cos, sin, mode)], seed)
    gradients = impl.rotary_mul_backward(x, x, cos, sin, mode)
    check(formulas.rotary_mul_backward, [x, x, cos, sin, mode], {}, gradients, seed)


@given(size=sizes, seed=seeds, neox=st.booleans(), more=st.integers(0, 3))
def test_table_of_angles_equals_the_angles_of_each_token(size, seed, neox, more):
    """Tokens out of order, and features past the table's, which stay."""
    x, cos, sin = tensors(size, seed)
    tokens, heads, pairs = size
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))
    table = torch.cat([cos[:, 0, :pairs], sin[:, 0, :pairs]], -1)[order.argsort()]
    wide = torch.cat([x, x.new_ones(tokens, heads, more)], -1)
    arguments = [order, wide.clone(), wide[:, :1].clone(), table, 2 * pairs + more, 2 * pairs, neox]
    unmodified = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
    query, key = impl.rotary_embedding(*arguments)
    check(formulas.rotary_embedding, unmodified, {}, [query, key], seed)
    if not neox:
        cos, sin = neighbours(cos), neighbours(sin)
    turned = impl.rotary_mul(x, cos, sin, "half" if neox else "interleave")
    torch.testing.assert_close(query[..., : 2 * pairs], turned)
    torch.testing.assert_close(key[..., : 2 * pairs], turned[:, :1])
    assert torch.equal(query[..., 2 * pairs :], wide[..., 2 * pairs :])


def test_gradient_of_the_angles_is_not_asked_for_without_x():
    """torch_npu's call would compute it all the same, and take longer than the row's kernel did."""
    row = ROWS["RotaryPositionEmbeddingGrad"][1]
    assert replay_row("RotaryPositionEmbeddingGrad", row).measurement.total_elements == 96 * 8 * 128


@pytest.mark.parametrize("kernel_type", ["RotaryPositionEmbedding", "InterleaveRope", "ApplyRotaryPosEmb"])
def test_a_kernel_may_read_one_half_of_the_angles(monkeypatch, kernel_type):
    """As libraries for CUDA do: models have one angle for both features of a pair."""
    functions = {"RotaryPositionEmbedding": impl.rotary_mul, "InterleaveRope": impl.interleave_rope}

    def reads_first_half(*arguments, **keywords):
        *turned, cos, sin = arguments
        angles = [torch.cat([x.chunk(2, -1)[0]] * 2, -1) for x in (cos, sin)]
        return functions.get(kernel_type, impl.apply_rotary_pos_emb)(*turned, *angles, **keywords)

    time_instead(monkeypatch, reads_first_half)
    for row in ROWS[kernel_type]:
        assert replay_row(kernel_type, row).status is Status.MEASURED
