"""Kernels of a training step: mistakes that are easy to make, rows that contradict themselves, derivatives."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from replaying import assert_wrong, time_instead
from sample_rows import ROWS

from opatlas.engine.check import check
from opatlas.model.errors import WrongResult

aten = torch.ops.aten


def adam_with(**changes):
    def wrong(*arguments, **options):
        torch._fused_adamw_(*arguments[:5], [arguments[5][0].float()], **options | changes)

    return wrong


def never_corrected(*arguments, **options):
    torch._fused_adamw_(*arguments[:5], [torch.tensor([1e6])], **options)


def decay_in_the_gradient(*arguments, **options):
    torch._fused_adam_(*arguments[:5], [arguments[5][0].float()], **options)


def apply_adamw_with(change):
    """The step with other numbers than those that it is called with."""
    return lambda *arguments, out: impl.apply_adamw(*change(*arguments[:7]), *arguments[7:], out=out)


MISTAKES = {
    "halves exchanged": ("SwiGluGrad", lambda g, x, d: impl.swiglu_backward(g, x.roll(x.shape[-1] // 2, -1), d)),
    "no derivative of the sigmoid": (
        "SwiGluGrad",
        lambda g, x, d: torch.cat([g * x.chunk(2, -1)[1], g * torch.nn.functional.silu(x.chunk(2, -1)[0])], -1),
    ),
    "threshold above 0": ("ReluGrad", lambda g, x, t: aten.threshold_backward(g, x, 0.1)),
    "softmax without logarithm": ("LogSoftmaxV2", lambda x, d: torch.softmax(x, d)),
    "gradient without the sum": ("LogSoftmaxGrad", lambda g, y, d, t: g - y.exp()),
    "weights of all classes": ("NLLLoss", lambda x, t, w, r, i: aten.nll_loss_forward(x, t, torch.ones_like(w), r, i)),
    "a sum, not a mean": ("NLLLoss", lambda x, t, w, r, i: aten.nll_loss_forward(x, t, w, 2, i)),
    "gradient of a sum": ("NLLLossGrad", lambda g, x, t, w, r, *rest: aten.nll_loss_backward(g, x, t, w, 2, *rest)),
    "by frequency": ("EmbeddingDenseGradV2", lambda g, i, n, p, s: aten.embedding_dense_backward(g, i, n, p, True)),
    "other bits": ("DropOutDoMask", lambda x, m, p: impl.dropout_by_mask(x, m // 16 + m % 16 * 16, p)),
    "not scaled": ("DropOutDoMask", lambda x, m, p: impl.dropout_by_mask(x, m, 0.0)),
    "no bias correction": ("ApplyAdamWV2", never_corrected),
    "decay in the gradient": ("ApplyAdamWV2", decay_in_the_gradient),
    "no decay": ("ApplyAdamWV2", adam_with(weight_decay=0.0)),
    "uphill": ("ApplyAdamWV2", adam_with(maximize=True)),
    "betas exchanged": ("ApplyAdamWV2", adam_with(beta1=0.9, beta2=0.8)),
    # Arguments: the powers of both betas, the rate, the decay, both betas, epsilon.
    "powers of this step": ("ApplyAdamW", apply_adamw_with(lambda b1, b2, *rest: (b1 * rest[2], b2 * rest[3], *rest))),
    "without decay": ("ApplyAdamW", apply_adamw_with(lambda b1, b2, rate, _, *rest: (b1, b2, rate, 0.0, *rest))),
    "powers exchanged": ("ApplyAdamW", apply_adamw_with(lambda b1, b2, *rest: (b2, b1, *rest))),
    "not multiplied": ("ForeachAddList", lambda x, y, alpha: torch._foreach_add(x, y)),
    "first tensor only": ("ForeachMulScalar", lambda x, s: [x[0] * s, *x[1:]]),
}


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[f"{kernel_type}-{mistake}" for mistake, (kernel_type, _) in MISTAKES.items()]
)
def test_mistake_is_caught(monkeypatch, mistake):
    kernel_type, wrong = MISTAKES[mistake]
    time_instead(monkeypatch, wrong)
    assert_wrong(kernel_type, ROWS[kernel_type][0])


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
