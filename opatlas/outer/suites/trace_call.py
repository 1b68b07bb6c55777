"""Makes the call of a trace from the text of its arguments: tensors with values that the operator takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from opatlas.outer.suites.arguments import ArgumentsText, TensorText, TorchConstant
from opatlas.outer.suites.listing import SlotText
from opatlas.outer.suites.operators import Call

#: Arguments that are a variance or its root, by their names in the schemas.
_POSITIVE = ("running_var", "save_invstd", "invstd", "rstd", "var", "weight_var")
#: Operators of real numbers above 0.
_OF_POSITIVE = ("log", "log2", "log10", "rsqrt", "sqrt", "pow", "reciprocal")
_INTEGERS = (-8, 9)


def make_call(overload: torch._ops.OpOverload, text: ArgumentsText, device: torch.device, seed: int) -> Call:
    """Returns a call with tensors on a device, from a seed.

    Real numbers are uniform in -1 ... 1; variances and arguments of logarithms are in 0.1 ... 1. Integers are indices
    where the operator takes indices, and else in -8 ... 8.
    """
    generator = None if device.type == "meta" else torch.Generator(device=device).manual_seed(seed)
    names = [argument.name for argument in overload._schema.arguments]
    arguments = dict(zip(names, text.positional, strict=False)) | dict(text.keywords)
    bounds = _index_bounds(overload._schema.name.partition("::")[2].strip("_"), arguments)

    def made(name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(made(f"{name}[{place}]", item) for place, item in enumerate(value))
        if isinstance(value, TensorText):
            is_positive = name in _POSITIVE or overload._schema.name.partition("::")[2].strip("_") in _OF_POSITIVE
            return _tensor(value, device, generator, is_positive=is_positive, most=bounds.get(name))
        if isinstance(value, TorchConstant):
            return getattr(torch, value.name)
        return value

    positional = tuple(made(name, value) for name, value in zip(names, text.positional, strict=False))
    keywords = {name: made(name, value) for name, value in text.keywords.items()}
    keywords.pop("pin_memory", None)
    if keywords.get("device") is not None:
        keywords["device"] = device
    return Call(overload, positional, keywords)


def _tensor(
    text: TensorText, device: torch.device, generator: torch.Generator | None, *, is_positive: bool, most: int | None
) -> torch.Tensor:
    dtype, extent = getattr(torch, text.dtype), text.extent
    if device.type == "meta":
        memory = torch.empty(extent, dtype=dtype, device=device)
    elif dtype.is_floating_point or dtype.is_complex:
        drawn = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
        memory = torch.rand(extent, dtype=drawn, device=device, generator=generator)
        memory = (memory.mul_(0.9).add_(0.1) if is_positive else memory.mul_(2).sub_(1)).to(dtype)
    elif dtype is torch.bool:
        memory = torch.randint(0, 2, (extent,), device=device, generator=generator).to(dtype)
    else:
        low, high = _INTEGERS if most is None and dtype.is_signed else (0, most or _INTEGERS[1])
        memory = torch.randint(low, max(high, low + 1), (extent,), device=device, generator=generator).to(dtype)
    return memory.view(text.shape) if text.stride is None else torch.as_strided(memory, text.shape, text.stride)


def _index_bounds(operator: str, arguments: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number that the integers of an argument stay below, by its name ("indices[1]" of a list)."""
    shapes = {name: value.shape for name, value in arguments.items() if isinstance(value, TensorText)}
    source = shapes.get("self", ())

    def size(shape: tuple[int, ...], axis: Any) -> int:
        return shape[axis] if isinstance(axis, int) and -len(shape) <= axis < len(shape) else 1

    match operator:
        case "embedding" | "embedding_bag":
            return {"indices": size(shapes.get("weight", ()), 0), "offsets": 1}
        case "embedding_dense_backward":
            return {"indices": arguments.get("num_weights", 1)}
        case "index" | "index_put" | "index_put_impl":
            return {f"indices[{axis}]": length for axis, length in enumerate(source)}
        case "gather" | "scatter" | "scatter_add" | "index_select" | "index_add" | "scatter_reduce":
            return {"index": size(source, arguments.get("dim"))}
        case "nll_loss_forward" | "nll_loss_backward" | "nll_loss2d_forward" | "nll_loss2d_backward":
            return {"target": size(source, 1 if len(source) > 1 else 0)}
        case "max_pool2d_with_indices_backward":
            return {"indices": size(source, -1) * size(source, -2)}
    return {}


def output_slots(overload: torch._ops.OpOverload, text: ArgumentsText) -> list[SlotText]:
    """Returns shapes and dtypes of the results; none where they depend on values, or torch refuses the call."""
    try:
        call = make_call(overload, text, torch.device("meta"), 0)
        results = call.results()
    except Exception:
        # Operators without an implementation for "meta" raise errors of many types.
        return []
    return [(tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in results]
