"""A formula that is wrong, on either side, is seen by the check of every replay."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from replaying import assert_mistake_is_caught, assert_wrong, replay_row, types_of_replays
from sample_rows import ROWS

import opatlas.engine.runner
from opatlas.engine.check import Largest, Picks, Rounded
from opatlas.engine.formula import Part
from opatlas.engine.replay import Replay
from opatlas.model.schema import Status


def everything_off(tensor):
    """All floats off by 5 %, integers by one, booleans flipped."""
    if tensor.dtype is torch.bool:
        return ~tensor
    if tensor.is_floating_point():
        return (tensor + 0.05 * (1 + tensor.abs())).to(tensor.dtype)
    return tensor + 1


def one_element_off(tensor):
    """The last element only, but by as much as the largest."""
    changed = tensor.clone().reshape(-1)
    if tensor.dtype is torch.bool:
        changed[-1] = ~changed[-1]
    else:
        changed[-1] += 1 + changed.abs().max()
    return changed.reshape(tensor.shape)


def rotated(tensor):
    """Each element in the next one's place: right values, wrong places."""
    return tensor.reshape(-1).roll(1).reshape(tensor.shape)


def perturbed(function, how, mutates=()):
    @functools.wraps(function)
    def wrong(*arguments, **keywords):
        result = function(*arguments, **keywords)
        if result is None:
            for i in mutates:
                arguments[i].copy_(how(arguments[i]))
            return None
        if isinstance(result, (tuple, list)):
            return tuple(perturbed_value(value, how) for value in result)
        return perturbed_value(result, how)

    return wrong


def perturbed_value(value, how):
    if isinstance(value, (Part, Picks, Largest, Rounded)):
        return dataclasses.replace(value, values=perturbed_value(value.values, how))
    return how(value)


def perturbed_formula(formula, how):
    if hasattr(formula, "formulas"):
        return dataclasses.replace(formula, formulas=tuple(perturbed_formula(own, how) for own in formula.formulas))
    return dataclasses.replace(formula, function=perturbed(formula.function, how))


def plant(monkeypatch, *, change_impl=None, change_expected=None):
    """What replay functions pass is changed on the way."""

    class Planted(Replay):
        def __call__(self, kernel, *arguments, expected, mutates=(), **keywords):
            if change_impl:
                kernel = perturbed(kernel, change_impl, mutates)
            if change_expected:
                expected = perturbed_formula(expected, change_expected)
            super().__call__(kernel, *arguments, expected=expected, mutates=mutates, **keywords)

    monkeypatch.setattr(opatlas.engine.runner, "Replay", Planted)


#: Results of one value: rotated, they are the same.
CONSTANT = {"ZerosLike", "OnesLike", "Fill", "NLLLoss"}
PLANTED = [
    pytest.param(kernel_type, how, id=f"{kernel_types}-{how.__name__}")
    for kernel_types, kernel_type in types_of_replays().items()
    for how in (everything_off, one_element_off, rotated)
    if not (how is rotated and kernel_type in CONSTANT)
]


@pytest.mark.parametrize(("kernel_type", "how"), PLANTED)
def test_wrong_impl_is_caught(monkeypatch, kernel_type, how):
    plant(monkeypatch, change_impl=how)
    assert_wrong(kernel_type, ROWS[kernel_type][0])


@pytest.mark.parametrize(("kernel_type", "how"), PLANTED)
def test_wrong_reference_is_caught(monkeypatch, kernel_type, how):
    plant(monkeypatch, change_expected=how)
    assert_wrong(kernel_type, ROWS[kernel_type][0])


@pytest.mark.parametrize("kernel_type", types_of_replays().values(), ids=types_of_replays())
def test_what_is_planted_on_passes_unplanted(monkeypatch, kernel_type):
    plant(monkeypatch)
    assert replay_row(kernel_type, ROWS[kernel_type][0]).status is Status.MEASURED


#: Mistakes that are easy to make, each in place of the right implementation.
MISTAKES = {
    "floor_divide": ("FloorDiv", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    "remainder": ("FloorMod", torch.fmod),
    "sort": ("Sort", lambda x, dim, descending: torch.sort(x, dim, descending=not descending)),
    "argmax": ("ArgMaxV2", torch.argmin),
    "softmax": ("SoftmaxV2", lambda x, dim: torch.softmax(x, 0)),
    "cumsum": ("Cumsum", lambda x, dim, dtype: torch.cumsum(x, dim, dtype=dtype) - x),
    "sum": ("ReduceSum", lambda x, axes, keepdim, dtype: torch.mean(x, axes, keepdim)),
    "rms_norm": ("RmsNorm", lambda x, gamma, epsilon: (x * gamma, x[..., :1].float())),
    "swiglu": ("SwiGlu", lambda x, dim: torch.nn.functional.silu(x.chunk(2, dim)[1]) * x.chunk(2, dim)[0]),
    "linear": ("MatMulV2", lambda a, weight: torch.mm(a[:, 1:], weight.T[1:])),
    "batch_matmul": ("BatchMatMulV2", lambda a, b: torch.matmul(a.flip(0), b)),
    "transpose_copy": ("Transpose", lambda x, permutation: x.permute(0, 4, 1, 3, 2).contiguous()),
    "slice_copy": ("Slice", lambda x, offsets, sizes: x[:, :, -sizes[-1] :].clone()),
    "cat": ("ConcatD", lambda parts, axis: torch.cat([parts[0], parts[2], parts[1]], axis)),
    "tile": ("Tile", lambda x, repeats: x.repeat_interleave(2, 0).repeat_interleave(3, 1)),
    "pad": ("PadV3", lambda x, padding: torch.nn.functional.pad(x, padding, value=1.0)),
    "broadcast_to": ("BroadcastTo", lambda x, shape: torch.zeros(shape, dtype=x.dtype)),
    "embedding": ("GatherV2", lambda table, indices: table[indices * 0]),
    "masked_fill_": ("MaskedFill", lambda x, mask, value: x.masked_fill_(~mask, value)),
    "copy_": ("TensorMove", lambda destination, source: destination),
    "fill_": ("Fill", lambda destination, value: destination),
    "to": ("Cast", lambda x, dtype, copy: x.to(torch.float16).floor().to(dtype)),
    "clamp": ("ClipByValueV2", lambda x, least, largest: torch.clamp(x, max=largest)),
    "rsqrt": ("Rsqrt", torch.sqrt),
    "fast_gelu": ("FastGelu", torch.nn.functional.gelu),
    "silu": ("Swish", torch.nn.functional.hardswish),
    "scaled_masked_softmax": (
        "ScaledMaskedSoftmax",
        lambda x, mask, scale, fixed: torch.softmax((x * scale).masked_fill_(~mask, -10000.0), -1),
    ),
    "mean": ("ReduceMean", lambda x, axes, keepdim, dtype: torch.sum(x, axes, keepdim)),
    "max": ("ArgMaxWithValue", torch.min),
    "index_fill": ("IndexFill", lambda x, dim, indices, value: torch.index_fill(x, 1, indices % x.shape[1], value)),
    "triu": ("Triu", torch.tril),
    "strided_slice": (
        "StridedSlice",
        lambda x, begin, end, strides: x[tuple(slice(last // step) for last, step in zip(end, strides, strict=True))],
    ),
    "stack": ("Pack", lambda parts, axis: torch.stack(parts[::-1], axis)),
    "repeat_interleave": (
        "RepeatInterleave",
        lambda x, repeats, dim, output_size: x.repeat(-(-output_size // len(x)))[:output_size],
    ),
    "attention_update": ("AttentionUpdate", lambda lse, outs, update_type: (torch.stack(outs).mean(0), lse[0])),
    "where": ("SelectV2", lambda condition, x, y: torch.where(condition, y, x)),
}


@pytest.mark.parametrize("name", MISTAKES, ids=[f"{kernel_type}-{name}" for name, (kernel_type, _) in MISTAKES.items()])
def test_mistake_is_caught(monkeypatch, name):
    kernel_type, mistake = MISTAKES[name]
    assert_mistake_is_caught(monkeypatch, name, mistake, kernel_type, ROWS[kernel_type][0])
