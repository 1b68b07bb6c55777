"""Counts the operators of torch that a call takes, for bench/stand_in.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opatlas.engine.stand_in import REST

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
    return "torch._dynamo" in sys.modules and not (getattr(impl, "__module__", None) or "").startswith(
        "opatlas.bench.implementations.torch."
    )


def _is_free(operator: torch._ops.OpOverload) -> bool:
    is_view = any(each.alias_info and not each.alias_info.is_write for each in operator._schema.returns)
    return is_view or operator.overloadpacket.__name__ in _FREE
