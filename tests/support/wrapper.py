"""A tensor that wraps another one, as those of quantized weights do: it has no memory of its own."""

from __future__ import annotations

from typing import Any

import torch


class Wrapper(torch.Tensor):
    """Runs the function on the tensor inside."""

    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = [each.inner if isinstance(each, Wrapper) else each for each in args]
        result = func(*inner, **(kwargs or {}))
        return args[0] if func.overloadpacket.__name__.endswith("_") else result
