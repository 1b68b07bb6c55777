"""Norms and formulas of a training step equal the derivatives of their forward formulas."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl

from opatlas.row.errors import WrongResult
from opatlas.run.result_check import check


def test_gradients_are_those_of_autograd():
    generator = torch.Generator().manual_seed(1)
    x, dy = (torch.randn(5, 3, 16, generator=generator) for _ in range(2))
    gamma = torch.randn(16, generator=generator)
    x.requires_grad_(), gamma.requires_grad_()
    rstd = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    y = x * rstd * gamma
    towards_x, towards_gamma = torch.autograd.grad(y, (x, gamma), dy)
    with torch.no_grad():
        result = impl.rms_norm_backward(dy, x, gamma, rstd)
    torch.testing.assert_close(result, (towards_x, towards_gamma), rtol=1e-4, atol=1e-5)


def test_norm_of_many_numbers_is_as_right_as_that_of_few():
    """torch's own is 5e-4 off here, on a CPU."""
    x = torch.rand((1 << 24) + 5, generator=torch.Generator().manual_seed(3))
    norm = impl.vector_norm(x, 2, (0,), False, dtype=torch.float32)
    assert float(norm) == pytest.approx(float(x.double().square().sum().sqrt()), rel=1e-6)


aten = torch.ops.aten


def gradient_of(function, x, gradient):
    x = x.clone().requires_grad_()
    function(x).backward(gradient)
    return x.grad


def test_derivatives_are_those_of_the_forward_formulas():
    """Neither side of the check is at work here: the references are differentiated by autograd."""
    x, gradient = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    swiglu = gradient_of(lambda x: formulas.swiglu.function(x, -1), x, gradient[:, :4])
    log_softmax = gradient_of(lambda x: formulas.log_softmax.function(x, -1), x, gradient)
    result = formulas.log_softmax.function(x, -1)
    assert torch.allclose(formulas.swiglu_backward.function(gradient[:, :4], x, -1), swiglu)
    assert torch.allclose(formulas.log_softmax_backward.function(gradient, result, -1, x.dtype), log_softmax)


def test_each_tensor_of_a_list_is_compared():
    xs = [torch.rand(4), torch.rand(5, 2)]
    check(formulas.foreach_multiply, [xs, 2.0], {}, [2 * x for x in xs], seed=1)
    for wrong in ([2 * xs[0], 3 * xs[1]], [3 * xs[0], 2 * xs[1]], [2 * xs[0]]):
        with pytest.raises(WrongResult):
            check(formulas.foreach_multiply, [xs, 2.0], {}, wrong, seed=1)
