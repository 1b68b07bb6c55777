"""Replays of kernels of a training step: losses, gradients, dropout, the optimizer."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: Settings of the optimizer with which a mistake in any term shows; a capture does not record its own.
ADAMW = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.3, "eps": 1e-8, "amsgrad": False, "maximize": False}
DROPPED = 0.5
#: torch's number of the reduction to a mean.
_MEAN = 1
_IGNORE_NONE = -100


@replays("SwiGluGrad", npu="torch_npu.npu_swiglu_backward")
def test_swiglu_gradient(row, replay):
    """Reads the slots gradient of the result, input."""
    row.expect_inputs(2)
    gradient, x = row.tensor(0), row.tensor(1, -4.0, 4.0)
    halves = x.dim() and gradient.shape == (*x.shape[:-1], x.shape[-1] / 2)
    row.expect(halves, INPUT_SHAPES, "slot 0 must have half of the last axis of slot 1")
    replay(impl.swiglu_backward, gradient, x, -1, expected=formulas.swiglu_backward)


@replays("ReluGrad", npu="torch.ops.aten.threshold_backward")
def test_relu_gradient(row, replay):
    row.expect_inputs(2)
    row.sizes("*all; *all")
    replay(impl.threshold_backward, *row.inputs(), 0, expected=formulas.threshold_backward)


@replays("LogSoftmaxV2", "LogSoftmaxAiCore", npu="torch.log_softmax")
def test_log_softmax(row, replay):
    replay(impl.log_softmax, row.only_input(-4.0, 4.0), -1, expected=formulas.log_softmax)


@replays("LogSoftmaxGrad", npu="torch.ops.aten._log_softmax_backward_data")
def test_log_softmax_gradient(row, replay):
    """Reads the slots gradient of the result, result."""
    row.expect_inputs(2)
    row.sizes("*all; *all")
    gradient, result = row.tensor(0), impl.log_softmax(row.tensor(1, -4.0, 4.0), -1)
    replay(impl.log_softmax_backward, gradient, result, -1, gradient.dtype, expected=formulas.log_softmax_backward)


@replays("NLLLoss", "NLLLossAiCore", npu="torch.ops.aten.nll_loss_forward")
def test_nll_loss(row, replay):
    """Reads the slots log-probabilities (N, C), targets (N,), weights of the classes (C,). The loss is a mean."""
    row.expect_inputs(3)
    row.sizes("rows,classes; rows; classes")
    if row.output_shape(0):
        raise Unsupported("NLLLoss is replayed with one loss for all, not one for each target")
    arguments = _of_nll(row, target=1, weight=2)
    replay(impl.nll_loss, *arguments, _MEAN, _IGNORE_NONE, expected=formulas.nll_loss)


@replays("NLLLossGrad", "NLLLossGradAiCore", npu="torch.ops.aten.nll_loss_backward")
def test_nll_loss_gradient(row, replay):
    """Reads the slots log-probabilities, gradient of the loss, targets, weights of the classes and their sum."""
    row.expect_inputs(5)
    row.sizes("rows,classes; ; rows; classes")
    for slot in (1, 4):
        row.expect_scalar(slot)
    x, target, weight = _of_nll(row, target=2, weight=3)
    how = (_MEAN, _IGNORE_NONE, weight[target.long()].sum())
    gradient, expected = row.tensor(1, 0.5, 2.0), formulas.nll_loss_backward
    replay(impl.nll_loss_backward, gradient, x, target, weight, *how, expected=expected)


def _of_nll(row, target, weight):
    """Returns log-probabilities, and the targets and the weights of the classes from these slots."""
    row.assume("the loss is a mean")
    return row.tensor(0, -8.0, 0.0), row.indices(target, row.shape(0)[1]), row.tensor(weight, 0.5, 2.0)


@replays("EmbeddingDenseGradV2", npu="torch.ops.aten.embedding_dense_backward")
def test_embedding_gradient(row, replay):
    """Reads the slots gradient (..., D), sorted indices, their original positions; the call takes unsorted indices."""
    row.expect_inputs(3)
    counts, _, lines = row.sizes("*counts,width -> lines,width")
    row.expect_list(1, math.prod(counts), "indices")
    row.expect_list(2, math.prod(counts), "the order of indices")
    gradient, indices = row.tensor(0), row.indices(1, lines).reshape(counts)
    replay(impl.embedding_backward, gradient, indices, lines, -1, False, expected=formulas.embedding_backward)


@replays("DropOutDoMask", "DropoutDoMaskAiCore", npu="torch_npu.npu_dropout_backward")
def test_dropout(row, replay):
    """Reads the slots x, a mask with a bit for each element, padded to 128 bits, the share that is kept."""
    row.expect_inputs(3)
    x = row.tensor(0)
    row.expect_dtype(1, "UINT8")
    row.assume(f"a share of {DROPPED} is dropped")
    row.expect_list(1, -(-x.numel() // 128) * 16, "a bit for each number of slot 0, in groups of 128")
    replay(impl.dropout_by_mask, x, row.integers(1, 0, 255), DROPPED, expected=formulas.dropout_by_mask)


@replays("ApplyAdamWV2", npu="torch._fused_adamw_")
def test_adamw(row, replay):
    """Reads the slots parameter, two moments, gradient, number of steps. A capture has no outputs."""
    row.expect_inputs(5, 6)
    if len(row.input_slots) == 6:
        raise Unsupported("AdamW is replayed without AMSGrad (slot 5)")
    row.sizes("*all; *all; *all; *all")
    row.expect_shape(4, (), (1,), meaning="the number of steps")
    parameter, first, gradient = (row.tensor(slot) for slot in (0, 1, 3))
    second, steps = row.tensor(2, 0.1, 1.0), row.tensor(4, 3.0, 4.0)
    call = {**ADAMW, "mutates": [0, 2, 3], "output_slots": [None] * 3, "expected": formulas.adamw}
    replay(impl.adamw, [parameter], [gradient], [first], [second], [], [steps], **call)


@replays("ApplyAdamW", npu="torch_npu.npu_apply_adam_w")
def test_apply_adamw(row, replay):
    """Reads the slots parameter, two moments, seven numbers (powers of the betas to epsilon), gradient.

    Slot 11 is for AMSGrad.
    """
    row.expect_inputs(11, 12)
    if row.has(11):
        raise Unsupported("AdamW is replayed without AMSGrad (slot 11)")
    row.sizes("*all; *all; *all;;;;;;;; *all")
    for slot in range(3, 10):
        row.expect_shape(slot, (), (1,), meaning="one number")
    state = [row.tensor(0), row.tensor(1), row.tensor(2, 0.1, 1.0)]
    beta1, beta2 = ADAMW["beta1"], ADAMW["beta2"]
    settings = (beta1**2, beta2**2, ADAMW["lr"], ADAMW["weight_decay"], beta1, beta2, ADAMW["eps"])
    outputs = range(3) if row.output_slots else [None] * 3
    call = {"out": state, "mutates": ["out"], "output_slots": outputs, "expected": formulas.apply_adamw}
    replay(impl.apply_adamw, *settings, row.tensor(10), None, False, False, **call)


@replays("ForeachAddList", npu="torch._foreach_add")
def test_foreach_add(row, replay):
    """Reads the slots two lists of tensors, factor of the second list."""
    count = (len(row.input_slots) - 1) // 2
    fits = len(row.input_slots) == 2 * count + 1 and not any(row.shape(i) != row.shape(i + count) for i in range(count))
    problem = "the slots must be two lists of tensors of the same shapes, and a number"
    row.expect(fits, INPUT_SHAPES, problem, "restore the slots")
    tensors = [row.tensor(slot) for slot in range(2 * count)]
    _expect_flat_outputs(row, tensors[:count])
    replay(
        impl.foreach_add,
        tensors[:count],
        tensors[count:],
        alpha=row.number(2 * count, -2.0, -0.5),
        output_slots=[None] * count,
        expected=formulas.foreach_add,
    )


@replays("ForeachMulScalar", npu="torch._foreach_mul")
def test_foreach_multiply(row, replay):
    """Reads the slots list of tensors, number."""
    count = len(row.input_slots) - 1
    tensors = [row.tensor(slot) for slot in range(count)]
    _expect_flat_outputs(row, tensors)
    replay(
        impl.foreach_multiply,
        tensors,
        row.number(count, 0.5, 2.0),
        output_slots=[None] * count,
        expected=formulas.foreach_multiply,
    )


def _expect_flat_outputs(row, results):
    """Refuses outputs that differ from `results`; captures may record them flat, with one axis."""
    for slot, result in enumerate(results):
        allowed = (tuple(result.shape), (result.numel(),))
        row.expect(
            row.output_shape(slot) in allowed, OUTPUT_SHAPES, f"output {slot} must have {result.numel()} numbers"
        )
        row.expect(row.output_dtype(slot) == result.dtype, OUTPUT_DTYPES, f"output {slot} must be {result.dtype}")
    row.expect(len(row.output_slots) == len(results) > 0, OUTPUT_SHAPES, f"the kernel has {len(results)} outputs")
