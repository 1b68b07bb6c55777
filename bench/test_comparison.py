"""Replays of comparisons, logic and selection. Operands are whole numbers, so that some are equal."""

from __future__ import annotations

from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


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
