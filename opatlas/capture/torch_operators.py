"""Operators of torch, as a trace of torch.profiler names them, and the rows that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opatlas.capture.launches import SkipReason


@dataclass(frozen=True, slots=True)
class Operator:
    """A call of an operator.

    Attributes:
        name: the operator with its namespace, `aten::mm`.
        dims: for each argument the dimensions of a tensor; those of each tensor for a list; () for anything else.
        types: for each argument the type as torch writes it, `c10::BFloat16`, `Scalar`, `TensorList`; "" for None.
        strides: for each argument as `dims`, in elements; empty if the trace has none.
        values: for each argument the text of a number or a list of numbers; "" for tensors.
    """

    name: str
    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapturedRow:
    """A row of a kernel type; `cells` has its base columns."""

    kernel_type: str
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a call has no row; `detail` says what of it, in a few words."""

    reason: SkipReason
    detail: str = ""


def is_known(name: str) -> bool:
    """Returns whether the table has an operator."""
    return False


def wins_over_inner(name: str) -> bool:
    """Returns whether an operator is the row of all kernels that known operators inside it launch."""
    return False


def row_of(operator: Operator, kernels: Sequence[str]) -> CapturedRow | LeftOut:
    """Returns the row of a call, or why it has none.

    Args:
        kernels: the names of the kernels, copies and fills that the call launched, in their order.
    """
    return LeftOut(SkipReason.NO_OPERATOR, operator.name)
