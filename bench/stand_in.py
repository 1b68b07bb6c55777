"""Tells whether what is timed stands in for the kernel that a row names: several operators in place of one kernel.

A kernel type is one kernel of Ascend's. Elsewhere a composition of torch's operators may take its place, whose time is
no estimate of a fused kernel's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Operators that neither compute nor copy, besides views. `_local_scalar_dense` reads a number.
_FREE = {
    "_local_scalar_dense",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
#: In the place of operators that were not counted.
REST = "..."
#: So many names fit into a cell.
_MOST_NAMES = 4


class OperatorCount(TorchDispatchMode):
    """While active, notes the operators that torch is asked for; views and allocations are left out.

    An operator of torch's that calls several kernels counts as one: it is how the device does that operation.

    Attributes:
        names: of the operators, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler for that, which every device process would wait a second for.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not _is_free(func):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operators_of(call: Callable[[], object], again: Callable[[], object]) -> list[str]:
    """Calls, and gives the operators that this took; the last one is REST where the others could not be counted.

    Args:
        again: the same call from a fresh start, made where counting keeps it from running.
    """
    count = OperatorCount()
    try:
        with count:
            call()
    except RuntimeError as error:
        if "Creating a new Tensor subclass" not in str(error):
            raise
        # torch's causal bias cannot be made while operators are counted.
        again()
        return [*count.names, REST]
    return count.names


def may_be_compiled(impl: Callable[..., Any]) -> bool:
    """Whether torch.compile may have made a function, or part of it; while operators are counted it would not run."""
    return "torch._dynamo" in sys.modules and not (getattr(impl, "__module__", None) or "").startswith("bench.impl.")


def _is_free(operator: torch._ops.OpOverload) -> bool:
    is_view = any(each.alias_info and not each.alias_info.is_write for each in operator._schema.returns)
    return is_view or operator.overloadpacket.__name__ in _FREE


def stand_in(operators: Sequence[str], device_kernels: int | None) -> str:
    """What stands in for a kernel: "" if one operator was called, or one device kernel launched.

    Args:
        operators: their names, in the order of the calls; none where the kernel bypasses torch.
        device_kernels: how many device kernels the call launched; None: not known.
    """
    if len(operators) <= 1 or device_kernels == 1:
        return ""
    names = list(dict.fromkeys(operators))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [REST]
    least = "at least " if operators[-1] == REST else ""
    text = f"composition of {least}{len(operators)} torch operators ({', '.join(names)})"
    return text if device_kernels is None else f"{text}, {device_kernels} device kernels"
