"""Formulas of a training step equal the derivatives of their forward formulas."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench import formulas

from opatlas.row.errors import WrongResult
from opatlas.run.result_check import check

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
