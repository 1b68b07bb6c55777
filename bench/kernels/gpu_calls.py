"""Which of torch's operators the timed code of each kernel type calls on a GPU, as the tests found on one.

The tests in tests/cuda run a row of every kernel type and keep what they saw in gpu_calls.json, so that it can be told
where there is no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.kernels import kept

CALLS = Path(__file__).with_suffix(".json")
_ALLOCATES = re.compile(r"::(new_)?empty")


def read_calls() -> dict[str, list[str]]:
    """By kernel type: operators in the order of their first call."""
    return kept.read(CALLS)


def write_calls(calls: Mapping[str, Sequence[str]]) -> None:
    """For `read_calls`."""
    kept.write(CALLS, calls)


def operators_of(function: Callable[..., Any], tell: Callable[[list[str]], object]) -> Callable[..., Any]:
    """`function`, which tells at its first call what it calls of torch. What launches nothing is left out."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not operator.is_view and not _ALLOCATES.search(operator._schema.name):
                seen.setdefault(operator._schema.name.replace("::", "."))
            return operator(*args, **(kwargs or {}))

    seen: dict[str, None] = {}
    told = False

    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal told
        if told:
            return function(*arguments, **keywords)
        try:
            with Watch():
                result = function(*arguments, **keywords)
        except RuntimeError as error:
            if "Creating a new Tensor subclass" not in str(error):
                raise
            # torch's causal bias, which cannot be made while anybody watches: another row of the kernel type tells.
            told = True
            return function(*arguments, **keywords)
        told = True
        tell(list(seen))
        return result

    return call
