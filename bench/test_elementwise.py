"""Replays of elementwise kernels, of comparisons and of kernels that make tensors.

Operands of comparisons are whole numbers, so that some are equal.
"""

from __future__ import annotations

import math
import re

from opatlas.row.columns import OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


def _elementwise(kernel_type, npu, formula, operands, *inputs):
    """Returns the replay of a kernel type, and of its variant for AI cores, whose call has the operands alone.

    Args:
        npu: the call on an NPU; its last word is the name of the timed function.
        formula: the name of the formula.
        operands: returns the operands of a row.
        inputs: the numbers of input slots that a row may have; default: those that `operands` allows.
    """

    @replays(kernel_type, f"{kernel_type}AiCore", npu=npu)
    def replay_operands(row, replay):
        if inputs:
            row.expect_inputs(*inputs)
        timed = getattr(impl, npu.rpartition(".")[2])
        replay(timed, *operands(row), expected=getattr(formulas, formula))

    # The device process finds a replay by its name: that of RealDiv is test_real_div.
    replay_operands.__name__ = replay_operands.__qualname__ = "test" + re.sub("([A-Z])", r"_\1", kernel_type).lower()
    return replay_operands


def _one(low=-1.0, high=1.0):
    """Returns a function of a row that returns its only tensor, from low to high."""
    return lambda row: [row.only_input(low, high)]


def _real(*ranges):
    return lambda row: row.operands(*ranges)


def _whole(first=(-8, 8), second=(-8, 8)):
    return lambda row: row.operands(first, second, whole=True)


#: Divisors of whole numbers.
_DIVISION = ((-20, 20), (1, 8))

test_add = _elementwise("Add", "torch.add", "add", _real())
test_sub = _elementwise("Sub", "torch.sub", "subtract", _real())
test_mul = _elementwise("Mul", "torch.mul", "multiply", _real())
test_real_div = _elementwise("RealDiv", "torch.div", "divide", _real((-1.0, 1.0), (0.5, 2.0)))
test_floor_div = _elementwise("FloorDiv", "torch.floor_divide", "floor_divide", _whole(*_DIVISION))
test_floor_mod = _elementwise("FloorMod", "torch.remainder", "floor_modulo", _whole(*_DIVISION))
test_neg = _elementwise("Neg", "torch.neg", "negate", _one())
test_abs = _elementwise("Abs", "torch.abs", "absolute", _one())
test_relu = _elementwise("Relu", "torch.relu", "relu", _one())
test_log = _elementwise("Log", "torch.log", "logarithm", _one(0.1, 4.0))
test_exp = _elementwise("Exp", "torch.exp", "exponential", _one(-4.0, 4.0))
test_square = _elementwise("Square", "torch.square", "square", _one())
test_reciprocal = _elementwise("Reciprocal", "torch.reciprocal", "reciprocal", _one(0.5, 2.0))
test_sqrt = _elementwise("Sqrt", "torch.sqrt", "square_root", _one(0.1, 4.0))
test_rsqrt = _elementwise("Rsqrt", "torch.rsqrt", "reciprocal_root", _one(0.1, 4.0))
test_sin = _elementwise("Sin", "torch.sin", "sine", _one(-math.pi, math.pi))
test_cos = _elementwise("Cos", "torch.cos", "cosine", _one(-math.pi, math.pi))
test_tanh = _elementwise("Tanh", "torch.tanh", "hyperbolic_tangent", _one(-3.0, 3.0))
test_sigmoid = _elementwise("Sigmoid", "torch.sigmoid", "sigmoid", _one(-4.0, 4.0))
test_maximum = _elementwise("Maximum", "torch.maximum", "larger", _real(), 2)
test_minimum = _elementwise("Minimum", "torch.minimum", "smaller", _real(), 2)
test_equal = _elementwise("Equal", "torch.eq", "equal", _whole())
test_not_equal = _elementwise("NotEqual", "torch.ne", "not_equal", _whole())
test_greater = _elementwise("Greater", "torch.gt", "greater", _whole())
test_greater_equal = _elementwise("GreaterEqual", "torch.ge", "greater_equal", _whole())
test_less = _elementwise("Less", "torch.lt", "less", _whole())
test_less_equal = _elementwise("LessEqual", "torch.le", "less_equal", _whole())
test_logical_and = _elementwise("LogicalAnd", "torch.logical_and", "logical_and", _whole(), 2)
test_logical_or = _elementwise("LogicalOr", "torch.logical_or", "logical_or", _whole(), 2)
test_logical_not = _elementwise(
    "LogicalNot", "torch.logical_not", "logical_not", lambda row: [row.integers(0, -1, 1)], 1
)
test_zeros_like = _elementwise("ZerosLike", "torch.zeros_like", "zeros_like", _one())
test_ones_like = _elementwise("OnesLike", "torch.ones_like", "ones_like", _one())


@replays("Muls", "MulsAiCore", npu="torch.mul")
def test_muls(row, replay):
    row.expect_inputs(1, 2)
    if row.has(1):
        row.expect_shape(1, (), (1,), meaning="a number")
    dtype = row.input_slot(0).dtype
    # CANN launches Muls for a double and BF16 (on later devices also FLOAT16), and Mul for other numbers.
    if row.on_npu and dtype not in ("BF16", "FLOAT16"):
        raise Unsupported(f"torch.mul launches Mul for {dtype} and a number; {row.kernel_type} is of BF16 or FLOAT16")
    replay(impl.mul, row.tensor(0), 2.0, expected=formulas.multiply)


@replays("muls_add_kernel", npu="torch.ops.vllm.muls_add")
def test_muls_add(row, replay, custom_opp):
    """Reads the slots x, y, of which x is scaled; the capture of a Triton kernel may have the result, too."""
    row.expect_inputs(2, 3)
    row.sizes("; ".join(["*all"] * len(row.input_slots)))
    replay(impl.muls_add, row.tensor(0), row.tensor(1), 2.5, expected=formulas.muls_add)


@replays("Pows", "PowsAiCore", npu="torch.pow")
def test_pows(row, replay):
    base, exponent = row.operands((0.1, 2.0), (1.1, 1.9))
    if len(row.input_slots) == 2 and not row.shape(1):
        # Pows takes an exponent that is a number; a tensor would launch another kernel.
        exponent = row.number(1, 1.1, 1.9)
    replay(impl.pow, base, exponent, expected=formulas.power)


@replays("FastGelu", npu="torch_npu.npu_fast_gelu")
def test_fast_gelu(row, replay):
    replay(impl.fast_gelu, row.only_input(-4.0, 4.0), expected=formulas.fast_gelu)


@replays("Gelu", npu="torch.nn.functional.gelu")
def test_gelu(row, replay):
    """Replays the approximation by tanh, which the kernel of torch.nn.functional.gelu on NPUs always is."""
    replay(impl.gelu, row.only_input(-4.0, 4.0), approximate="tanh", expected=formulas.gelu_by_tanh)


@replays("GeluV2", npu="torch_npu.npu_gelu")
def test_gelu_v2(row, replay):
    """Assumes no approximation, the default of the call, because a capture does not record it."""
    row.assume("no approximation by tanh")
    replay(impl.gelu, row.only_input(-4.0, 4.0), approximate="none", expected=formulas.gelu)


@replays("Swish", npu="torch.nn.functional.silu")
def test_silu(row, replay):
    """Assumes a scale of 1, because a capture does not record the scale."""
    row.assume("a scale of 1, which aclnnSilu passes")
    replay(impl.silu, row.only_input(-4.0, 4.0), expected=formulas.silu)


@replays("ClipByValueV2", "ClipByValueV2AiCore", npu="torch.clamp")
def test_clamp(row, replay):
    """Reads the slots x, least value, largest value: numbers, or tensors that broadcast to x."""
    row.expect_inputs(3)
    row.expect_broadcast()
    row.sizes("*all -> *all")
    x = row.integers(0, -8, 8)
    if all(row.shape(slot) in ((), (1,)) for slot in (1, 2)):
        replay(impl.clamp, x, 2, 5, expected=formulas.clamp)
    else:
        replay(impl.clamp, x, row.integers(1, 1, 3), row.integers(2, 4, 6), expected=formulas.clamp)


@replays("Cast", "CastAiCore", npu="torch.Tensor.to")
def test_cast(row, replay):
    dtype = row.output_dtype()
    if row.output_slots[0].dtype == "BOOL":
        x = row.integers(0, 0, 2)
    elif dtype.is_floating_point:
        x = row.only_input()
    else:
        # In the range of every integer type, with both signs if it has them: rounding is towards 0.
        x = row.only_input(-100.0 if dtype.is_signed else 0.0, 100.0)
    replay(impl.to, x, dtype, copy=True, expected=formulas.cast)


@replays("SelectV2", "SelectV2AiCore", npu="torch.where")
def test_select(row, replay):
    row.expect_inputs(3)
    row.expect_dtype(0, "BOOL")
    row.expect_broadcast()
    replay(impl.where, *row.inputs(), expected=formulas.select)


@replays("Fill", "FillAiCore", npu="torch.Tensor.fill_")
def test_fill(row, replay):
    """Reads the slots sizes of the output, value."""
    row.expect_inputs(2)
    row.expect_list(0, len(row.output_shape()), "the output's sizes")
    replay(impl.fill_, row.destination(), row.number(1, 0.5, 2.0), overwrites=[0], expected=formulas.fill)


@replays("Range", "ArangeAiCore", npu="torch.arange")
def test_range(row, replay):
    """Counts from 1 in steps of 1; the output says how far."""
    row.expect_inputs(3)
    for slot in range(3):
        row.expect_scalar(slot)
    row.expect(len(row.output_shape()) == 1, OUTPUT_SHAPES, "the output must have one axis")
    end, how = 1 + row.output_shape()[0], {"dtype": row.output_dtype(), "device": row.device}
    replay(impl.arange, 1, end, 1, **how, expected=formulas.arange)
