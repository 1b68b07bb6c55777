"""Replays of elementwise kernels, of comparisons and of kernels that make tensors.

Operands of comparisons are whole numbers, so that some are equal.
"""

from __future__ import annotations

import math

from opatlas.row.columns import OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("Add", "AddAiCore", npu="torch.add")
def test_add(row, replay):
    replay(impl.add, *row.operands(), expected=formulas.add)


@replays("Sub", "SubAiCore", npu="torch.sub")
def test_sub(row, replay):
    replay(impl.sub, *row.operands(), expected=formulas.subtract)


@replays("Mul", "MulAiCore", npu="torch.mul")
def test_mul(row, replay):
    replay(impl.mul, *row.operands(), expected=formulas.multiply)


@replays("Muls", "MulsAiCore", npu="torch.mul")
def test_muls(row, replay):
    row.expect_inputs(1, 2)
    if row.has(1):
        row.expect_shape(1, (), (1,), meaning="a number")
    dtype = row.input_slot(0).dtype
    # CANN launches Muls for a double and BF16 (on later devices also FLOAT16), and Mul for other numbers.
    if row.on_npu and dtype not in ("BF16", "FLOAT16"):
        raise Unsupported(
            f"torch.mul launches Mul, and not {row.kernel_type}, for {dtype} and a number: "
            f"{row.kernel_type} is launched for BF16, on later devices than A2 and A3 for FLOAT16 too"
        )
    replay(impl.mul, row.tensor(0), 2.0, expected=formulas.multiply)


@replays("RealDiv", "RealDivAiCore", npu="torch.div")
def test_real_div(row, replay):
    replay(impl.div, *row.operands(second=(0.5, 2.0)), expected=formulas.divide)


@replays("FloorDiv", "FloorDivAiCore", npu="torch.floor_divide")
def test_floor_div(row, replay):
    replay(impl.floor_divide, *row.integer_operands((-20, 20), (1, 8)), expected=formulas.floor_divide)


@replays("FloorMod", "FloorModAiCore", npu="torch.remainder")
def test_floor_mod(row, replay):
    replay(impl.remainder, *row.integer_operands((-20, 20), (1, 8)), expected=formulas.floor_modulo)


@replays("Pows", "PowsAiCore", npu="torch.pow")
def test_pows(row, replay):
    base, exponent = row.operands((0.1, 2.0), (1.1, 1.9))
    if len(row.input_slots) == 2 and not row.shape(1):
        # Pows takes an exponent that is a number; a tensor would launch another kernel.
        exponent = row.number(1, 1.1, 1.9)
    replay(impl.pow, base, exponent, expected=formulas.power)


@replays("Neg", "NegAiCore", npu="torch.neg")
def test_neg(row, replay):
    replay(impl.neg, row.only_input(), expected=formulas.negate)


@replays("Abs", "AbsAiCore", npu="torch.abs")
def test_abs(row, replay):
    replay(impl.abs, row.only_input(), expected=formulas.absolute)


@replays("Relu", "ReluAiCore", npu="torch.relu")
def test_relu(row, replay):
    replay(impl.relu, row.only_input(), expected=formulas.relu)


@replays("Log", "LogAiCore", npu="torch.log")
def test_log(row, replay):
    replay(impl.log, row.only_input(0.1, 4.0), expected=formulas.logarithm)


@replays("Exp", "ExpAiCore", npu="torch.exp")
def test_exp(row, replay):
    replay(impl.exp, row.only_input(-4.0, 4.0), expected=formulas.exponential)


@replays("Square", "SquareAiCore", npu="torch.square")
def test_square(row, replay):
    replay(impl.square, row.only_input(), expected=formulas.square)


@replays("Reciprocal", "ReciprocalAiCore", npu="torch.reciprocal")
def test_reciprocal(row, replay):
    replay(impl.reciprocal, row.only_input(0.5, 2.0), expected=formulas.reciprocal)


@replays("Rsqrt", "RsqrtAiCore", npu="torch.rsqrt")
def test_rsqrt(row, replay):
    replay(impl.rsqrt, row.only_input(0.1, 4.0), expected=formulas.reciprocal_root)


@replays("ClipByValueV2", "ClipByValueV2AiCore", npu="torch.clamp")
def test_clamp(row, replay):
    """Reads the slots x, least value, largest value: numbers, or tensors that broadcast to x."""
    row.expect_inputs(3)
    row.expect_broadcast()
    row.expect_output_shape_like(0)
    x = row.integers(0, -8, 8)
    if all(row.shape(slot) in ((), (1,)) for slot in (1, 2)):
        replay(impl.clamp, x, 2, 5, expected=formulas.clamp)
    else:
        replay(impl.clamp, x, row.integers(1, 1, 3), row.integers(2, 4, 6), expected=formulas.clamp)


@replays("Sin", "SinAiCore", npu="torch.sin")
def test_sin(row, replay):
    replay(impl.sin, row.only_input(-math.pi, math.pi), expected=formulas.sine)


@replays("Cos", "CosAiCore", npu="torch.cos")
def test_cos(row, replay):
    replay(impl.cos, row.only_input(-math.pi, math.pi), expected=formulas.cosine)


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


@replays("Equal", "EqualAiCore", npu="torch.eq")
def test_equal(row, replay):
    replay(impl.eq, *row.integer_operands(), expected=formulas.equal)


@replays("NotEqual", "NotEqualAiCore", npu="torch.ne")
def test_not_equal(row, replay):
    replay(impl.ne, *row.integer_operands(), expected=formulas.not_equal)


@replays("Greater", "GreaterAiCore", npu="torch.gt")
def test_greater(row, replay):
    replay(impl.gt, *row.integer_operands(), expected=formulas.greater)


@replays("GreaterEqual", "GreaterEqualAiCore", npu="torch.ge")
def test_greater_equal(row, replay):
    replay(impl.ge, *row.integer_operands(), expected=formulas.greater_equal)


@replays("Less", "LessAiCore", npu="torch.lt")
def test_less(row, replay):
    replay(impl.lt, *row.integer_operands(), expected=formulas.less)


@replays("LogicalAnd", "LogicalAndAiCore", npu="torch.logical_and")
def test_logical_and(row, replay):
    row.expect_inputs(2)
    replay(impl.logical_and, *row.integer_operands(), expected=formulas.logical_and)


@replays("LogicalOr", "LogicalOrAiCore", npu="torch.logical_or")
def test_logical_or(row, replay):
    row.expect_inputs(2)
    replay(impl.logical_or, *row.integer_operands(), expected=formulas.logical_or)


@replays("LogicalNot", "LogicalNotAiCore", npu="torch.logical_not")
def test_logical_not(row, replay):
    row.expect_inputs(1)
    replay(impl.logical_not, row.integers(0, -1, 1), expected=formulas.logical_not)


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


@replays("ZerosLike", "ZerosLikeAiCore", npu="torch.zeros_like")
def test_zeros_like(row, replay):
    replay(impl.zeros_like, row.only_input(), expected=formulas.zeros_like)


@replays("OnesLike", "OnesLikeAiCore", npu="torch.ones_like")
def test_ones_like(row, replay):
    replay(impl.ones_like, row.only_input(), expected=formulas.ones_like)


@replays("Range", "ArangeAiCore", npu="torch.arange")
def test_range(row, replay):
    """Counts from 1 in steps of 1; the output says how far."""
    row.expect_inputs(3)
    for slot in range(3):
        row.expect_scalar(slot)
    row.expect(len(row.output_shape()) == 1, OUTPUT_SHAPES, "the output must have one axis")
    replay(
        impl.arange,
        1,
        1 + row.output_shape()[0],
        1,
        dtype=row.output_dtype(),
        device=row.device,
        expected=formulas.arange,
    )
