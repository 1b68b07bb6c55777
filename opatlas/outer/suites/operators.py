"""Operators of torch by name: schemas, in-place and out variants, and arguments as texts and as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map

from opatlas.outer.suites.texts import ABBREVIATIONS, ArgumentsText, SlotText, TensorText, TorchConstant
from opatlas.run.implementation import Prepared
from opatlas.run.kernel_call import flat_tensors, tensors_and_nones

#: Operators that torch's schemas do not tell to be no operators of a suite, and why they are none.
_LEFT_OUT = {
    "_unsafe_view.default": "view",
    **dict.fromkeys(("_ctc_loss.Tensor", "_ctc_loss.default"), "irreproducible"),
    **dict.fromkeys(("_to_sparse.default", "_to_sparse.sparse_dim", "hash_tensor.default"), "no-text"),
    **dict.fromkeys(("empty.memory_format", "empty_like.default", "empty_permuted.default"), "uninitialized"),
    **dict.fromkeys(("empty_strided.default", "new_empty.default", "new_empty_strided.default"), "uninitialized"),
}


class NoText(ValueError):
    """An argument has no text: a sparse tensor, a generator, a complex number."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call of an operator: the overload and its arguments."""

    overload: torch._ops.OpOverload
    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.overload(*self.positional, **self.keywords)

    def mapped(self, change: Callable[[Any], Any]) -> Call:
        """Returns the call with each argument, and each item of a list, changed by a function."""
        positional, keywords = tree_map(change, (self.positional, dict(self.keywords)))
        return Call(self.overload, positional, keywords)

    def cloned(self) -> Call:
        """Returns the call with copies of the tensors, of the same strides."""
        return self.mapped(lambda value: remade(value, torch.clone) if isinstance(value, torch.Tensor) else value)

    def places(self) -> dict[int | str, Any]:
        """Returns the arguments by position or name."""
        found: dict[int | str, Any] = dict(enumerate(self.positional))
        found.update(self.keywords)
        return found

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors of the arguments, those of lists included."""
        return flat_tensors([*self.positional, *self.keywords.values()])

    def written(self) -> list[int | str]:
        """Returns positions and names of the arguments that the operator writes into."""
        places: list[int | str] = []
        for number, argument in enumerate(self.overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                is_positional = number < len(self.positional)
                if is_positional or argument.name in self.keywords:
                    places.append(number if is_positional else argument.name)
        return places

    def results(self) -> list[torch.Tensor]:
        """Makes the call, and returns its results and the tensors that it writes into."""
        return [each for each in self.computed(self()) if each is not None]

    def computed(self, returned: Any) -> list[torch.Tensor | None]:
        """Returns the results of a call, and the tensors that it writes into, from its return value.

        A result that an `output_mask` leaves out is None. An operator that returns what it writes into has only these,
        whatever a kernel returns.
        """
        arguments, places = self.places(), self.written()
        values = [arguments[each] for each in places]
        schema = self.overload._schema
        only_written = bool(places) and all(each.alias_info is not None for each in schema.returns)
        return [*(() if only_written else tensors_and_nones(returned)), *flat_tensors(values)]

    def bound(self) -> dict[str, Any]:
        """Returns the arguments by the names of the schema, without defaults."""
        names = [argument.name for argument in self.overload._schema.arguments]
        return {**dict(zip(names, self.positional, strict=False)), **self.keywords}


def find_overload(name: str) -> torch._ops.OpOverload | None:
    """Returns torch's overload of a name ("add.Tensor"); None if this torch has none."""
    operator, _, overload = name.rpartition(".")
    found = getattr(getattr(torch.ops.aten, operator, None), overload, None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def name_of(overload: torch._ops.OpOverload) -> str:
    """Returns the name of an overload: `add.Tensor`."""
    return f"{overload._schema.name.partition('::')[2]}.{overload._overloadname}"


def is_no_operator(overload: torch._ops.OpOverload) -> str:
    """Returns why an overload computes nothing that can be checked; "" for an operator of a suite."""
    schema = overload._schema
    if overload.namespace != "aten":
        return "not-aten"
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return "random"
    if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
        return "view"
    is_written = any(each.alias_info is not None and each.alias_info.is_write for each in schema.arguments)
    if not is_written and not any("Tensor" in str(each.type) for each in schema.returns):
        return "no-tensor"
    return _LEFT_OUT.get(name_of(overload), "")


@cache
def variants_of(functional: torch._ops.OpOverload) -> Sequence[torch._ops.OpOverload]:
    """Returns the variants of a functional overload: the one that writes into self, then the one that writes into out.

    They are told by the arguments of the schemas.
    """
    if out_names(functional) or _is_in_place(functional):
        return ()
    operator = functional._schema.name.partition("::")[2]
    wanted = _inputs(functional)
    results = [str(each.type) for each in functional._schema.returns]
    in_place = [each for each in overloads(f"{operator}_") if _inputs(each) == wanted and _is_in_place(each)]
    # A list of tensors cannot be written into one argument.
    alike = [each for each in overloads(operator) if set(results) == {"Tensor"} and _inputs(each) == wanted]
    outs = [each for each in alike if [str(own.type) for own in each._schema.arguments if own.is_out] == results]
    return [*in_place[:1], *outs[:1]]


@cache
def functional_of(variant: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Returns the functional overload of an in-place or out variant; None for any other overload."""
    operator = variant._schema.name.partition("::")[2]
    if _is_in_place(variant):
        operator = operator.removesuffix("_")
    elif not out_names(variant):
        return None
    return next((each for each in overloads(operator) if variant in variants_of(each)), None)


def derive(variant: torch._ops.OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the kernel of an in-place or out variant that calls a kernel of the functional overload.

    A kernel with set-up (`Prepared`) has it in the variant, too.
    """
    outs = out_names(variant)

    def derived(*arguments: Any, **keywords: Any) -> Any:
        targets = [keywords.pop(name) for name in outs] or [arguments[0]]

        def write(results: Any) -> Any:
            for target, result in zip(targets, flat_tensors(results), strict=True):
                target.copy_(result)
            return targets[0] if len(targets) == 1 else tuple(targets)

        returned = kernel(*arguments, **keywords)
        if isinstance(returned, Prepared):
            return replace(returned, call=lambda: write(computed_by(returned)), results=None)
        return write(returned)

    return derived


def computed_by(prepared: Prepared) -> Any:
    """Makes the call of a kernel with set-up, and returns its results."""
    returned = prepared.call()
    return prepared.results(returned) if prepared.results is not None else returned


def overloads(operator: str) -> list[torch._ops.OpOverload]:
    packet = getattr(torch.ops.aten, operator, None)
    return [getattr(packet, name) for name in packet.overloads()] if packet is not None else []


def _inputs(overload: torch._ops.OpOverload) -> list[tuple[str, str]]:
    arguments = overload._schema.arguments
    return [(each.name, str(each.type)) for each in arguments if not each.is_out]


def out_names(overload: torch._ops.OpOverload) -> list[str]:
    return [each.name for each in overload._schema.arguments if each.is_out]


def _is_in_place(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    first = schema.arguments[0] if schema.arguments else None
    is_self = first is not None and first.alias_info is not None and first.alias_info.is_write and not first.is_out
    return is_self and len(schema.returns) == 1 and schema.name.endswith("_")


def remade(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Returns a tensor of the same strides in a changed copy of the memory, also where elements share memory."""
    if tensor.is_contiguous():
        return change(tensor.detach())
    memory = torch.as_strided(tensor.detach(), (text_of_tensor(tensor).extent,), (1,))
    return torch.as_strided(change(memory), tensor.shape, tensor.stride())


def text_of_tensor(tensor: torch.Tensor) -> TensorText:
    """Returns the text of a tensor. Raises NoText for a sparse or quantized tensor, or a subclass."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise NoText(f"{type(tensor).__name__} of layout {tensor.layout}")
    if dtype not in ABBREVIATIONS:
        raise NoText(f"dtype {dtype}")
    stride = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorText(tuple(tensor.shape), dtype, stride)


def slots_of(tensors: Iterable[torch.Tensor]) -> list[SlotText]:
    """Returns shapes and dtypes of tensors."""
    return [(tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in tensors]


def text_of(call: Call) -> ArgumentsText:
    """Returns the text of the arguments of a call. Raises NoText."""
    changed = call.mapped(_text_of_value)
    return ArgumentsText(changed.positional, dict(changed.keywords))


def _text_of_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return text_of_tensor(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return TorchConstant(str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NoText(f"an argument of type {type(value).__name__}")


def with_device(call: Call, device: torch.device) -> Call:
    """Returns the call with its tensors on a device, in copies with the same strides, and its results there."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device != device:
            return remade(value, lambda memory: memory.to(device))
        return device if isinstance(value, torch.device) else value

    changed = call.mapped(moved)
    return makes_on(changed, device)


def makes_on(call: Call, device: torch.device) -> Call:
    """Returns the call with this device in place of another one, and where it makes tensors from numbers alone.

    A CPU pins memory for other devices, so that goes.
    """
    keywords = {name: value for name, value in call.keywords.items() if name != "pin_memory"}
    takes_device = any(argument.name == "device" for argument in call.overload._schema.arguments)
    if keywords.get("device") is not None or (takes_device and not call.tensors()):
        keywords["device"] = device
    return Call(call.overload, call.positional, keywords)
