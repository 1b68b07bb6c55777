"""Honest kernels pass: tasks like those of KernelBench with another way to compute each, and operators of torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from planted_trials import job_of_candidate

from opatlas.outer.judging.failures import run_judged
from opatlas.outer.judging.judgement import Judgement
from opatlas.row.columns import ARGUMENTS, SAMPLE
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation import KernelSource
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.runner import Runner

#: A minute and more: the session of judged tasks has honest kernels for every run of the tests.
pytestmark = pytest.mark.slow

_ROWS, _IMAGES, _SQUARES = "[torch.randn(48, 64)]", "[torch.randn(2, 4, 12, 12)]", "[torch.randn(32, 32)]"
_TWO, _PROBABILITIES = "[torch.randn(48, 64), torch.randn(48, 64)]", "[torch.rand(48, 64), torch.rand(48, 64)]"
_LABELS = "[torch.randn(32, 10), torch.randint(0, 10, (32,))]"
#: By name: what Model has, its forward, its inputs, and the forward of the candidate.
TASKS = {
    "square": ("", "x * x", _ROWS, "x.pow(2)"),
    "relu": ("", "F.relu(x)", _ROWS, "x.clamp(min=0)"),
    "leaky_relu": ("", "F.leaky_relu(x, 0.1)", _ROWS, "torch.where(x > 0, x, 0.1 * x)"),
    "sigmoid": ("", "torch.sigmoid(x)", _ROWS, "1 / (1 + torch.exp(-x))"),
    "tanh": ("", "torch.tanh(x)", _ROWS, "2 * torch.sigmoid(2 * x) - 1"),
    "swish": ("", "x * torch.sigmoid(x)", _ROWS, "F.silu(x)"),
    "gelu_tanh": (
        "",
        "F.gelu(x, approximate='tanh')",
        _ROWS,
        "0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))",
    ),
    "selu": ("", "F.selu(x)", _ROWS, "1.0507009873554805 * F.elu(x, 1.6732632423543772)"),
    "hardsigmoid": ("", "F.hardsigmoid(x)", _ROWS, "((x + 3) / 6).clamp(0, 1)"),
    "hardswish": ("", "F.hardswish(x)", _ROWS, "x * (x + 3).clamp(0, 6) / 6"),
    "softplus": ("", "F.softplus(x)", _ROWS, "torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0)"),
    "softsign": ("", "F.softsign(x)", _ROWS, "x / (1 + x.abs())"),
    "elu": ("", "F.elu(x)", _ROWS, "torch.where(x > 0, x, torch.expm1(x))"),
    "mish": ("", "F.mish(x)", _ROWS, "x * torch.tanh(F.softplus(x))"),
    "hardtanh": ("", "F.hardtanh(x)", _ROWS, "x.clamp(-1, 1)"),
    "glu": ("", "F.glu(x)", _ROWS, "x[:, :32] * torch.sigmoid(x[:, 32:])"),
    "softmax": ("", "torch.softmax(x, -1)", _ROWS, "(lambda e: e / e.sum(-1, True))(torch.exp(x - x.amax(-1, True)))"),
    "log_softmax": ("", "torch.log_softmax(x, -1)", _ROWS, "x - torch.logsumexp(x, -1, True)"),
    "logsumexp": ("", "torch.logsumexp(x, -1)", _ROWS, "torch.log(torch.exp(x).sum(-1))"),
    "sum_rows": ("", "x.sum(-1, keepdim=True)", _ROWS, "x @ x.new_ones(64, 1)"),
    "mean": ("", "x.mean(0)", _ROWS, "x.sum(0) / len(x)"),
    "largest": ("", "x.amax(-1)", _ROWS, "x.sort(-1).values[:, -1]"),
    "smallest": ("", "x.amin(-1)", _ROWS, "-(-x).amax(-1)"),
    "argmax": ("", "x.argmax(-1)", _ROWS, "x.sort(-1, descending=True).indices[:, 0]"),
    "product": ("", "x.prod(-1)", "[torch.rand(48, 8) + 0.5]", "torch.exp(torch.log(x).sum(-1))"),
    "variance": ("", "x.var(-1)", _ROWS, "((x - x.mean(-1, True)) ** 2).sum(-1) / 63"),
    "cumsum": ("", "x.cumsum(-1)", _ROWS, "x @ torch.ones(64, 64).triu()"),
    "reverse_cumsum": ("", "x.flip(-1).cumsum(-1).flip(-1)", _ROWS, "x @ torch.ones(64, 64).tril()"),
    "exclusive_cumsum": ("", "x.cumsum(-1) - x", _ROWS, "x @ torch.ones(64, 64).triu(1)"),
    "norm_l1": ("", "x / x.abs().sum(-1, keepdim=True)", _ROWS, "F.normalize(x, p=1, dim=-1)"),
    "norm_l2": ("", "F.normalize(x, dim=-1)", _ROWS, "x * torch.rsqrt((x * x).sum(-1, True))"),
    "norm_frobenius": ("", "x / torch.linalg.norm(x)", _ROWS, "x / (x * x).sum().sqrt()"),
    "layer_norm": (
        "self.n = nn.LayerNorm(64)",
        "self.n(x)",
        _ROWS,
        "(x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, False, keepdim=True) + 1e-5) * self.n.weight + self.n.bias",
    ),
    "rms_norm": ("", "F.rms_norm(x, (64,), eps=1e-6)", _ROWS, "x * torch.rsqrt((x * x).mean(-1, True) + 1e-6)"),
    "group_norm": (
        "self.n = nn.GroupNorm(2, 4)",
        "self.n(x)",
        _IMAGES,
        "F.group_norm(x, 2, self.n.weight, self.n.bias)",
    ),
    "instance_norm": (
        "",
        "F.instance_norm(x)",
        _IMAGES,
        "(x - x.mean((2, 3), True)) * torch.rsqrt(x.var((2, 3), False, keepdim=True) + 1e-5)",
    ),
    "matmul": ("", "x @ y", "[torch.randn(24, 32), torch.randn(32, 16)]", "(y.T @ x.T).T"),
    "matmul_transposed": (
        "",
        "x.T @ y",
        "[torch.randn(32, 24), torch.randn(32, 16)]",
        "torch.einsum('ki,kj->ij', x, y)",
    ),
    "matmul_batched": ("", "torch.bmm(x, y)", "[torch.randn(3, 8, 16), torch.randn(3, 16, 4)]", "x @ y"),
    "matmul_vector": ("", "x @ y", "[torch.randn(32, 64), torch.randn(64, 1)]", "(x * y.T).sum(-1, True)"),
    "matmul_diagonal": ("", "torch.diag(x) @ y", "[torch.randn(32), torch.randn(32, 16)]", "x[:, None] * y"),
    "matmul_triangular": ("", "torch.tril(x) @ torch.tril(x)", _SQUARES, "torch.tril(torch.tril(x) @ torch.tril(x))"),
    "gram": ("", "x @ x.T", _SQUARES, "(x[:, None] * x[None]).sum(-1)"),
    "outer": ("", "torch.outer(x, y)", "[torch.randn(24), torch.randn(16)]", "x[:, None] * y[None]"),
    "linear": ("self.l = nn.Linear(64, 32)", "self.l(x)", _ROWS, "torch.addmm(self.l.bias, x, self.l.weight.T)"),
    "mlp": (
        "self.a, self.b = nn.Linear(64, 32), nn.Linear(32, 8)",
        "self.b(torch.relu(self.a(x)))",
        _ROWS,
        "torch.relu(x @ self.a.weight.T + self.a.bias) @ self.b.weight.T + self.b.bias",
    ),
    "conv1d": (
        "self.c = nn.Conv1d(4, 8, 3)",
        "self.c(x)",
        "[torch.randn(2, 4, 32)]",
        "torch.einsum('bipk,oik->bop', x.unfold(2, 3, 1), self.c.weight) + self.c.bias[:, None]",
    ),
    "conv2d": (
        "self.c = nn.Conv2d(4, 8, 3)",
        "self.c(x)",
        _IMAGES,
        "(self.c.weight.flatten(1) @ F.unfold(x, 3)).view(2, 8, 10, 10) + self.c.bias[:, None, None]",
    ),
    "conv_pointwise": (
        "self.c = nn.Conv2d(4, 8, 1)",
        "self.c(x)",
        _IMAGES,
        "torch.einsum('bihw,oi->bohw', x, self.c.weight[:, :, 0, 0]) + self.c.bias[:, None, None]",
    ),
    "conv_depthwise": (
        "self.c = nn.Conv2d(4, 4, 3, groups=4, bias=False)",
        "self.c(x)",
        _IMAGES,
        "(x.unfold(2, 3, 1).unfold(3, 3, 1) * self.c.weight[:, 0][None, :, None, None]).sum((-1, -2))",
    ),
    "max_pool": ("", "F.max_pool2d(x, 2)", _IMAGES, "x.view(2, 4, 6, 2, 6, 2).amax((3, 5))"),
    "average_pool": ("", "F.avg_pool2d(x, 3)", _IMAGES, "x.view(2, 4, 4, 3, 4, 3).mean((3, 5))"),
    "global_pool": ("", "F.adaptive_avg_pool2d(x, 1)", _IMAGES, "x.mean((2, 3), True)"),
    "embedding": (
        "self.e = nn.Embedding(32, 8)",
        "self.e(x)",
        "[torch.randint(0, 32, (16,))]",
        "F.one_hot(x, 32).float() @ self.e.weight",
    ),
    "gather_rows": ("", "x[y]", "[torch.randn(32, 8), torch.randint(0, 32, (16,))]", "x.index_select(0, y)"),
    "masked_fill": ("", "x.masked_fill(y > 0, 0.0)", _TWO, "torch.where(y > 0, torch.zeros_like(x), x)"),
    "causal": ("", "x.masked_fill(torch.ones(32, 32).triu(1) > 0, 0.0)", _SQUARES, "torch.tril(x)"),
    "sort": ("", "x.sort(-1).values", _ROWS, "x.topk(64, -1, largest=False).values"),
    "topk": ("", "x.topk(4, -1).values", _ROWS, "x.sort(-1, descending=True).values[:, :4]"),
    "loss_mse": ("", "F.mse_loss(x, y)", _TWO, "((x - y) ** 2).mean()"),
    "loss_l1": ("", "F.l1_loss(x, y)", _TWO, "(x - y).abs().mean()"),
    "loss_huber": (
        "",
        "F.smooth_l1_loss(x, y)",
        _TWO,
        "(lambda d: torch.where(d < 1, 0.5 * d * d, d - 0.5).mean())((x - y).abs())",
    ),
    "loss_entropy": (
        "",
        "F.cross_entropy(x, y)",
        _LABELS,
        "(torch.logsumexp(x, -1) - x.gather(1, y[:, None])[:, 0]).mean()",
    ),
    "loss_kl": ("", "(x * (torch.log(x) - torch.log(y))).mean()", _PROBABILITIES, "(x * torch.log(x / y)).mean()"),
    "loss_hinge": ("", "(1 - x * torch.sign(y)).clamp(min=0).mean()", _TWO, "F.relu(1 - torch.sign(y) * x).mean()"),
    "loss_cosine": (
        "",
        "(1 - F.cosine_similarity(x, y)).mean()",
        _TWO,
        "1 - (F.normalize(x) * F.normalize(y)).sum(-1).mean()",
    ),
    "attention": (
        "",
        "F.scaled_dot_product_attention(x, x, x)",
        "[torch.randn(2, 3, 16, 8)]",
        "torch.softmax(x @ x.mT / 8**0.5, -1) @ x",
    ),
    "rotary": (
        "",
        "torch.view_as_real(torch.view_as_complex(x.view(8, 16, 2)) * torch.polar(torch.ones(16), y)).flatten(1)",
        "[torch.randn(8, 32), torch.randn(16)]",
        "torch.view_as_real(torch.complex(x[:, ::2], x[:, 1::2]) * torch.complex(y.cos(), y.sin())).flatten(1)",
    ),
    "two_results": ("", "(x.amax(-1), x.argmax(-1))", _ROWS, "tuple(x.max(-1))"),
    "bias_relu_scale": ("", "torch.relu(x + y) * 2.5", _TWO, "(2.5 * (x + y)).clamp(min=0)"),
    "half": ("", "torch.tanh(x)", "[torch.randn(48, 64).bfloat16()]", "torch.tanh(x.float()).bfloat16()"),
}
_TASK = """\
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {has}

    def forward(self, {names}):
        return {forward}


def get_inputs():
    return {inputs}
"""
#: By operator: arguments, and a kernel.
OPERATORS = {
    "add.Tensor": ("((T([32, 16], f32), T([16], f32)), {'alpha': 2})", "lambda x, y, alpha=1: x + alpha * y"),
    "sub.Tensor": ("((T([32, 16], f32), T([32, 16], f32)), {})", "lambda x, y, alpha=1: x + y * -alpha"),
    "mul.Tensor": ("((T([32, 16], bf16), T([32, 16], bf16)), {})", "lambda x, y: (x.float() * y.float()).bfloat16()"),
    "div.Tensor": ("((T([32, 16], f32), T([32, 16], f32)), {})", "lambda x, y: x * y.reciprocal()"),
    "neg.default": ("((T([64], i64),), {})", "lambda x: 0 - x"),
    "abs.default": ("((T([64], f32, stride=(2,)),), {})", "lambda x: torch.maximum(x, -x)"),
    "exp.default": ("((T([64], f32),), {})", "lambda x: torch.exp2(x * 1.4426950408889634)"),
    "sqrt.default": ("((T([64], f32),), {})", "lambda x: x.pow(0.5)"),
    "rsqrt.default": ("((T([64], f32),), {})", "lambda x: 1 / x.sqrt()"),
    "cos.default": ("((T([64], f32),), {})", "lambda x: torch.sin(x + 1.5707963267948966)"),
    "relu.default": ("((T([8, 8], f32, stride=(1, 8)),), {})", "lambda x: x.clamp(min=0)"),
    "maximum.default": ("((T([64], f32), T([64], f32)), {})", "lambda x, y: torch.where(x > y, x, y)"),
    "clamp.default": (
        "((T([64], f32), -0.5, 0.5), {})",
        "lambda x, low, high: x.minimum(x * 0 + high).maximum(x * 0 + low)",
    ),
    "gt.Tensor": ("((T([64], f32), T([64], f32)), {})", "lambda x, y: y < x"),
    "where.self": ("((T([64], b8), T([64], f32), T([64], f32)), {})", "lambda c, x, y: c * x + ~c * y"),
    "sum.dim_IntList": ("((T([8, 64], f32), [1], True), {})", "lambda x, dim, keep: x @ x.new_ones(64, 1)"),
    "mean.dim": ("((T([8, 64], f32), [0]), {})", "lambda x, dim: x.sum(0) / 8"),
    "amax.default": ("((T([8, 64], f32), [1]), {})", "lambda x, dim: -(-x).amin(1)"),
    "argmax.default": ("((T([8, 64], f32), 1), {})", "lambda x, dim: x.sort(1, descending=True).indices[:, 0]"),
    "mm.default": ("((T([16, 32], f32), T([32, 8], f32)), {})", "lambda x, y: (y.T @ x.T).T.contiguous()"),
    "bmm.default": (
        "((T([2, 16, 32], f32), T([2, 32, 8], f32)), {})",
        "lambda x, y: torch.einsum('bik,bkj->bij', x, y)",
    ),
    "addmm.default": (
        "((T([8], f32), T([16, 32], f32), T([32, 8], f32)), {})",
        "lambda c, x, y, beta=1, alpha=1: alpha * (x @ y) + beta * c",
    ),
    "_softmax.default": ("((T([8, 64], f32), -1, False), {})", "lambda x, dim, half: torch.exp(x.log_softmax(-1))"),
    "embedding.default": ("((T([32, 8], f32), T([4, 3], i64)), {})", "lambda weight, indices: weight[indices]"),
    "cat.default": ("(([T([4, 8], f32), T([4, 8], f32)], 1), {})", "lambda x, dim: torch.hstack(x)"),
    "stack.default": ("(([T([4, 8], f32), T([4, 8], f32)],), {})", "lambda x: torch.cat([each[None] for each in x])"),
    "tril.default": ("((T([16, 16], f32),), {})", "lambda x: x * torch.ones(16, 16).tril()"),
    "flip.default": ("((T([4, 8], f32), [1]), {})", "lambda x, dims: x[:, torch.arange(7, -1, -1)]"),
    "gather.default": ("((T([8, 8], f32), 1, T([8, 4], i64)), {})", "lambda x, d, i: x[torch.arange(8)[:, None], i]"),
    "native_layer_norm.default": (
        "((T([8, 64], f32), [64], None, None, 1e-05), {})",
        "lambda x, *_: ((x - (m := x.mean(-1, True))) * (r := (x.var(-1, False, keepdim=True) + 1e-5).rsqrt()), m, r)",
    ),
}


def test_there_are_a_hundred() -> None:
    assert len(TASKS) + len(OPERATORS) >= 100


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    threads = torch.get_num_threads()
    yield Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=10, threads=1))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", TASKS)
def test_an_honest_kernel_of_a_task_passes(name: str, runner: Runner, tmp_path: Path) -> None:
    has, forward, inputs, other = TASKS[name]
    names = "x, y" if ", torch" in inputs else "x"
    text = _TASK.format(has=has or "pass", names=names, forward=forward, inputs=inputs)
    task, candidate = tmp_path / f"{name}.py", tmp_path / "candidate.py"
    task.write_text(text)
    candidate.write_text(
        text.replace("class Model(", "class ModelNew(").replace(f"return {forward}", f"return {other}")
    )
    outcome = run_judged(runner.run, job_of_candidate(task, candidate))
    judgement = Judgement.of(outcome)
    assert judgement is not None, outcome.reason
    assert judgement.passed, outcome.reason


@pytest.mark.parametrize("name", OPERATORS)
def test_an_honest_kernel_of_an_operator_passes(name: str, runner: Runner, tmp_path: Path) -> None:
    arguments, kernel = OPERATORS[name]
    path = tmp_path / "kernel.py"
    path.write_text(f"import torch\n\nkernel = {kernel}\n")
    cells = {SAMPLE: "trace/0", ARGUMENTS: arguments}
    source = KernelSource("kit 1", "", str(path), "kernel")
    kernel_type = name.replace(".", "__")
    job = Job("opatlas.bench.test_listed", "", "test_operator", kernel_type, cells, 60.0, source=source)
    outcome = run_judged(runner.run, job)
    judgement = Judgement.of(outcome)
    assert judgement is not None, outcome.reason
    assert judgement.passed, outcome.reason
