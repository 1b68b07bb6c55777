"""Norms: gradients equal those of autograd, and long norms are accurate."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench.implementations import torch as impl


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
