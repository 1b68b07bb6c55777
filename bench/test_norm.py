"""Replays of norms, activations and reductions: kernels whose results depend on whole rows."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("RmsNorm", npu="torch_npu.npu_rms_norm")
def test_rms_norm(row, replay):
    row.expect_inputs(2)
    row.sizes("*all,width; width")
    replay(impl.rms_norm, *row.inputs(), epsilon=1e-6, expected=formulas.rms_norm)


@replays("RmsNormGrad", npu="torch_npu.npu_rms_norm_backward")
def test_rms_norm_grad(row, replay):
    """Reads the slots gradient of y, x, rstd, gamma. The call takes gamma before rstd."""
    row.expect_inputs(4)
    row.sizes("*all,width; *all,width; *all,1; width")
    grad, x, gamma = row.tensor(0), row.tensor(1), row.tensor(3)
    rstd = impl.rms_norm(x, gamma, epsilon=1e-6)[1]
    replay(impl.rms_norm_backward, grad, x, gamma, rstd, expected=formulas.rms_norm_backward)


@replays("AddRmsNorm", npu="torch_npu.npu_add_rms_norm")
def test_add_rms_norm(row, replay):
    row.expect_inputs(3)
    row.sizes("*all,width; *all,width; width")
    replay(impl.add_rms_norm, *row.inputs(), 1e-6, expected=formulas.add_rms_norm)


@replays("InplaceAddRmsNorm", npu="torch_npu.npu_add_rms_norm_v2")
def test_inplace_add_rms_norm(row, replay):
    """Writes y over x1 and the sum over x2; the call returns rstd."""
    row.expect_inputs(3)
    row.sizes("*all,width; *all,width; width")
    x1, x2, gamma = row.inputs()
    how = {"mutates": ["x1", "x2"], "output_slots": {"x1": 0, 0: 1, "x2": 2}, "expected": formulas.add_rms_norm}
    replay(impl.inplace_add_rms_norm, x1=x1, x2=x2, gamma=gamma, epsilon=1e-6, **how)


@replays("AddRmsNormBias", npu="torch.ops._C_ascend.npu_add_rms_norm_bias")
def test_add_rms_norm_bias(row, replay, custom_opp):
    """Calls a custom operator, because torch_npu's own npu_add_rms_norm launches another kernel."""
    row.expect_inputs(3, 4)
    row.sizes("*all,width; *all,width; width; ?width")
    beta = row.tensor(3) if row.has(3) else None
    x1, x2, gamma = (row.tensor(slot) for slot in range(3))
    replay(impl.add_rms_norm_bias, x1, x2, gamma, beta, 1e-6, expected=formulas.add_rms_norm_bias)


@replays("LayerNormV4", npu="torch.native_layer_norm")
def test_layer_norm(row, replay):
    """Reads the slots x, sizes of the normalized last axes, gamma, beta."""
    row.expect_inputs(4)
    sizes = _normalized_sizes(row, gamma=2)
    row.expect_list(1, len(sizes), "the sizes of these axes")
    replay(impl.layer_norm, *_layer_norm_arguments(row, sizes, 2), expected=formulas.layer_norm)


@replays("LayerNormV3", "LayerNormV3WithImplMode", npu="torch.native_layer_norm")
def test_layer_norm_v3(row, replay):
    """Reads the slots x, gamma, beta. The row has statistics in the dtype of gamma, the calls in float32."""
    row.expect_inputs(3)
    sizes = _normalized_sizes(row, gamma=1)
    arguments = _layer_norm_arguments(row, sizes, 1)
    replay(impl.layer_norm, *arguments, output_slots=[0, None, None], expected=formulas.layer_norm)


@replays("LpNormV2", "LpNormReduceV2", npu="torch.linalg.vector_norm")
def test_lp_norm(row, replay):
    """Assumes the Euclidean norm, as for the clipping of gradients; a capture does not record p.

    On 910A and 310P, which have no LpNormV2, the call launches LpNormReduceV2, then LpNormUpdateV2.
    """
    row.expect_inputs(1)
    reduction = shape_rules.reduction(row.shape(0), row.output_shape())
    if reduction is None or len(reduction[0]) == 0 < len(row.shape(0)):
        raise row.refuse(OUTPUT_SHAPES, f"no norm over axes of {row.shape(0)} has this shape", "correct a shape")
    axes, keepdim = reduction
    row.assume("the norm is the Euclidean one")
    replay(impl.vector_norm, row.tensor(0), 2, axes, keepdim, dtype=row.output_dtype(), expected=formulas.vector_norm)


@replays("LpNormUpdateV2", npu="torch.linalg.vector_norm")
def test_lp_norm_update(row, replay):
    """Replays the second half of a norm, the root of the sums, as the norm over an axis of one number."""
    row.expect_inputs(1)
    row.sizes("*all -> *all")
    row.assume("the norm is the Euclidean one")
    x = row.tensor(0)
    replay(impl.vector_norm, x.unsqueeze(-1), 2, (x.dim(),), False, dtype=x.dtype, expected=formulas.vector_norm)


def _normalized_sizes(row, gamma):
    """Returns the sizes of the normalized last axes of x, which gamma and beta, adjacent slots, must have."""
    sizes = row.shape(gamma)
    row.expect(
        sizes and row.shape(0)[-len(sizes) :] == sizes, INPUT_SHAPES, f"slot {gamma} must have slot 0's last axes"
    )
    row.expect_shape(gamma + 1, sizes, meaning="beta")
    return sizes


def _layer_norm_arguments(row, sizes, gamma):
    # The mean of x is not 0, so that a missing mean shows.
    return row.tensor(0, -1.0, 3.0), sizes, row.tensor(gamma), row.tensor(gamma + 1), 1e-5


@replays("SoftmaxV2", "SoftmaxAiCore", npu="torch.softmax")
def test_softmax(row, replay):
    replay(impl.softmax, row.only_input(-4.0, 4.0), -1, expected=formulas.softmax)


@replays("SwiGlu", npu="torch_npu.npu_swiglu")
def test_swiglu(row, replay):
    x = row.only_input(-4.0, 4.0)
    row.expect(x.dim() and not x.shape[-1] % 2, INPUT_SHAPES, "the last axis must have an even size")
    replay(impl.swiglu, x, -1, expected=formulas.swiglu)


@replays("GeGluV2", npu="torch_npu.npu_geglu")
def test_geglu(row, replay):
    """Writes the slots product and GELU. The first half is the gate, as in engines, by tanh."""
    row.sizes("*all,width -> *all,half; *all,half")
    row.expect(not row.shape(0)[-1] % 2, INPUT_SHAPES, "the last axis must have an even size")
    row.assume("GELU of the first half, by tanh")
    replay(impl.geglu, row.only_input(-4.0, 4.0), -1, 1, True, expected=formulas.geglu)


@replays("ClippedSwiglu", npu="torch_npu.npu_clipped_swiglu")
def test_clipped_swiglu(row, replay):
    """Replays the gate of gpt-oss, without groups of tokens."""
    x = row.only_input(-9.0, 9.0)
    row.expect(x.dim() and not x.shape[-1] % 2, INPUT_SHAPES, "the last axis must have an even size")
    row.assume("alpha 1.702, limit 7, bias 1, gate and product side by side, as in gpt-oss")
    replay(
        impl.clipped_swiglu,
        x,
        dim=-1,
        alpha=1.702,
        limit=7.0,
        bias=1.0,
        interleaved=True,
        expected=formulas.clipped_swiglu,
    )


@replays("ScaledMaskedSoftmax", "ScaledMaskedSoftmaxV2", npu="torch_npu.npu_scaled_masked_softmax")
def test_scaled_masked_softmax(row, replay):
    """Reads the slots x and a mask that broadcasts to x. A capture does not record the scale."""
    row.expect_inputs(2)
    row.expect_dtype(1, "BOOL")
    row.sizes("*all -> *all")
    x, mask = row.matrices(0), row.matrices(1)
    row.expect(
        shape_rules.broadcast([x.shape, mask.shape]) == x.shape, INPUT_SHAPES, "slot 1 does not broadcast to slot 0"
    )
    # A result in FRACTAL_NZ is compared as matrices, whose shape is not that of the slot.
    slots = [None] if tuple(x.shape) != row.output_shape() else [0]
    replay(impl.scaled_masked_softmax, x, mask, 4.0, False, output_slots=slots, expected=formulas.scaled_masked_softmax)


@replays("ReduceSum", "ReduceSumOpAiCore", "ReduceSumD", npu="torch.sum")
def test_reduce_sum(row, replay):
    """Replays ReduceSumD, of older toolkits with fixed axes, by a call that launches ReduceSum."""
    row.expect_inputs(1, 2)
    x = row.tensor(0)
    replay(impl.sum, x, *_reduction(row, "sum"), dtype=row.output_dtype(), expected=formulas.reduce_sum)


@replays("ReduceMean", "ReduceMeanAiCore", "ReduceMeanD", npu="torch.mean")
def test_reduce_mean(row, replay):
    """Replays ReduceMeanD, of older toolkits with fixed axes, by a call that launches ReduceMean."""
    row.expect_inputs(1, 2)
    if not row.output_dtype().is_floating_point:
        raise Unsupported("torch has no mean in integers")
    axes, keepdim = _reduction(row, "mean")
    row.expect(0 not in [row.shape(0)[axis] for axis in axes], INPUT_SHAPES, "slot 0 has no elements, and so no mean")
    x = row.tensor(0)
    replay(impl.mean, x, axes, keepdim, dtype=row.output_dtype(), expected=formulas.reduce_mean)


@replays("ReduceAll", npu="torch.all")
def test_reduce_all(row, replay):
    """Reads the slots x, axes."""
    hit, how = _hits(row, "conjunction")
    replay(impl.all, ~hit, *how, expected=formulas.reduce_all)


@replays("ReduceAny", npu="torch.any")
def test_reduce_any(row, replay):
    """Reads the slots x, axes."""
    hit, how = _hits(row, "disjunction")
    replay(impl.any, hit, *how, expected=formulas.reduce_any)


def _hits(row, name):
    """Returns booleans of which one is true for every second result, and the axes and whether they stay."""
    row.expect_inputs(1, 2)
    row.expect_dtype(0, "BOOL")
    axes, keepdim = _reduction(row, name)
    kept, reduced = (
        [size if (axis in axes) is of else 1 for axis, size in enumerate(row.shape(0))] for of in (False, True)
    )
    results, members = (impl.arange(math.prod(sizes), device=row.device).reshape(sizes) for sizes in (kept, reduced))
    return (members == results * 7 % max(math.prod(reduced), 1)) & (results % 2 == 0), (axes, keepdim)


@replays("Cumsum", npu="torch.cumsum")
def test_cumsum(row, replay):
    """Assumes the last axis, because a capture does not record the axis."""
    row.expect_inputs(1, 2)
    replay(impl.cumsum, row.tensor(0), -1, dtype=row.output_dtype(), expected=formulas.cumulative_sum)


def _reduction(row, name):
    """Returns the axes and whether they stay as ones; the length of slot 1, a list of axes, is their number."""
    count = (row.shape(1) or (1,))[0] if len(row.input_slots) == 2 else None
    reduction = shape_rules.reduction(row.shape(0), row.output_shape(), count)
    fits = reduction is not None
    problem = f"no {name} of the input {row.shape(0)} over {'some' if count is None else count} axes has this shape"
    row.expect(fits, OUTPUT_SHAPES, problem)
    return reduction


@replays("HcPre", npu="torch.ops._C_ascend.npu_hc_pre_v2")
def test_hc_pre(row, replay, custom_opp):
    """Reads the slots streams (..., n, D), weights (n n + 2 n, n D), three scales, biases (n n + 2 n)."""
    row.expect_inputs(4)
    _, streams, width, mixes, fan_in = row.sizes(
        "*all,streams,width; mixes,fan_in; 3; mixes -> *all,width; *all,streams; *all,streams,streams"
    )
    fits = (mixes, fan_in) == (streams * (streams + 2), streams * width)
    row.expect(fits, INPUT_SHAPES, f"slot 1 must be ({streams * (streams + 2)}, {streams * width})")
    row.assume("20 steps of Sinkhorn's iteration, as DeepSeek-V4")
    # The product has a variance of about 1.
    x, weight = row.tensor(0), row.tensor(1, -2 * fan_in**-0.5, 2 * fan_in**-0.5)
    replay(impl.hc_pre, x, weight, row.tensor(2), row.tensor(3), streams, 20, 1e-6, 1e-6, expected=formulas.hc_pre)


@replays("HcPost", npu="torch.ops._C_ascend.npu_hc_post")
def test_hc_post(row, replay, custom_opp):
    """Reads the slots x (..., D), streams (..., n, D), weights of x (..., n) and of the streams (..., n, n)."""
    row.expect_inputs(4)
    row.sizes("*all,width; *all,streams,width; *all,streams; *all,streams,streams -> *all,streams,width")
    replay(impl.hc_post, *row.inputs(), expected=formulas.hc_post)
