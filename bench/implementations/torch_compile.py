"""The functions of bench/implementations/torch, each compiled to one graph. Written for torch 2.6 to 2.13.

A function whose graph breaks is unsupported: it would run in pieces, with kernels of torch between them. So are the
rotary embeddings, which write into views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
import torch._dynamo

from opatlas import Prepared, Unsupported, implements
from opatlas.run.inputs.shape_rules import SCALE_BLOCK

from ._calls import FP8
from .torch.moe import grouped_matmul as torch_grouped_matmul
from .torch.quantized import quant_matmul as torch_quant_matmul

DISTRIBUTIONS = ("torch",)
DEVICES = ("cuda", "cpu")


def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, compiled for the shapes of its first call."""
    # Without this, the compilations of earlier rows count towards the limit of recompilations.
    torch._dynamo.reset()
    # Operators have no frame that can be compiled; a function that calls them has one.
    traced = function if isinstance(function, FunctionType) else lambda *args, **named: function(*args, **named)
    compiled: Callable[..., Any] = torch.compile(traced, fullgraph=True, dynamic=False)

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        try:
            return compiled(*arguments, **keywords)
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise Unsupported(f"torch.compile breaks the graph: {reason}") from error

    return kernel


@implements("QuantBatchMatmulV3")
def quant_matmul(x1, x2, scale, **added):
    if "group_sizes" in added and any(size % SCALE_BLOCK for size in x2.shape):
        raise Unsupported(f"K, N {tuple(x2.shape)}: torch.compile has whole blocks of {SCALE_BLOCK}")
    return _after_set_up(x1.dtype in FP8, torch_quant_matmul, x1, x2, scale, **added)


@implements("GroupedMatmul")
def grouped_matmul(x, weight, *, scale=None, **added):
    # torch has no single operator for scales of blocks.
    has_set_up = x[0].dtype in FP8 and scale is not None and scale[0].dim() == 2
    return _after_set_up(has_set_up, torch_grouped_matmul, x, weight, scale=scale, **added)


def _after_set_up(has_set_up, function, *arguments, **named):
    """Compiles a function of torch, or the call that remains after its set-up: a graph would time new layouts."""
    prepared = function(*arguments, **named) if has_set_up else None
    if isinstance(prepared, Prepared):
        return replace(prepared, call=wrap(prepared.call))
    compiled = wrap(function)
    return Prepared(lambda: compiled(*arguments, **named))
