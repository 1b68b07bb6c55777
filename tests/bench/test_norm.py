"""Normalization: rows that are refused, mistakes that are seen, gradients as autograd has them."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench.implementations import torch as impl
from replaying import assert_mistake_is_caught
from sample_rows import ROWS

BACKWARD = "RmsNormGrad"
SUM = "AddRmsNormBias"
LAYER, LAYER_FLOAT = "LayerNormV4", "FLOAT;INT32;FLOAT;FLOAT"


#: Mistakes that are easy to make, by the function that they take the place of.
MISTAKES = [
    ("rms_norm_backward", BACKWARD, lambda dy, x, gamma, rstd: (dy * gamma * rstd, (dy * x * rstd).sum((0, 1, 2)))),
    ("rms_norm_backward", BACKWARD, lambda *a: (true_backward(*a)[0], (a[0] * a[1] * a[3]).mean((0, 1, 2)))),
    ("add_rms_norm", "AddRmsNorm", lambda x1, x2, gamma, eps: (*impl.rms_norm(x1 + x2, gamma, epsilon=eps), x1)),
    ("add_rms_norm_bias", SUM, lambda x1, x2, gamma, beta, eps: true_sum(x1, x2, gamma, None, eps)),
    ("add_rms_norm_bias", SUM, lambda x1, x2, gamma, beta, eps: true_sum(x1, x2 * 0, gamma, beta, eps)),
    ("layer_norm", LAYER, lambda x, *rest: true_layer(x - x.mean(-1, keepdim=True), *rest)),
    ("layer_norm", LAYER, lambda x, sizes, gamma, beta, eps: true_layer(x, sizes, beta, gamma, eps)),
    ("layer_norm", LAYER, lambda *a: (*true_layer(*a)[:2], 1 / a[0].std(-1, keepdim=True))),
    ("layer_norm", LAYER, lambda *a: (impl.rms_norm(a[0], a[2], epsilon=1e-5)[0] + a[3], *true_layer(*a)[1:])),
    ("vector_norm", "LpNormV2", lambda x, order, axes, keepdim, dtype: x.abs().sum(axes, keepdim)),
]
true_backward, true_sum, true_layer = impl.rms_norm_backward, impl.add_rms_norm_bias, impl.layer_norm


@pytest.mark.parametrize(("name", "kernel_type", "mistake"), MISTAKES)
def test_mistake_is_caught(monkeypatch, name, kernel_type, mistake):
    assert_mistake_is_caught(monkeypatch, name, mistake, kernel_type, ROWS[kernel_type][0])


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


def test_a_sum_without_beta_is_one_with_zeros():
    generator = torch.Generator().manual_seed(2)
    x1, x2 = (torch.randn(5, 16, generator=generator) for _ in range(2))
    gamma = torch.randn(16, generator=generator)
    absent = impl.add_rms_norm_bias(x1, x2, gamma, None, 1e-6)
    torch.testing.assert_close(absent, impl.add_rms_norm_bias(x1, x2, gamma, torch.zeros(16), 1e-6))
    torch.testing.assert_close(absent[:2], impl.rms_norm(x1 + x2, gamma, epsilon=1e-6))


def test_norm_of_many_numbers_is_as_right_as_that_of_few():
    """torch's own is 5e-4 off here, on a CPU."""
    x = torch.rand((1 << 24) + 5, generator=torch.Generator().manual_seed(3))
    norm = impl.vector_norm(x, 2, (0,), False, dtype=torch.float32)
    assert float(norm) == pytest.approx(float(x.double().square().sum().sqrt()), rel=1e-6)
