"""The case of a suite on a device: makes the call of a row, and checks the results of a kernel.

The reference is torch's operator in float64. Where torch's own result in the row's dtypes is no better than that of
the kernel, as at the steps of a division that is rounded, torch's result is the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opatlas.outer.judging.results import comparison_of
from opatlas.outer.suites import operators as aten, texts
from opatlas.outer.suites.opinfo import recorded, variant_call
from opatlas.row.columns import ARGUMENTS, FUNCTIONAL, SAMPLE, SAMPLE_TORCH
from opatlas.row.errors import InvalidRow, Unsupported, WrongResult
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.result_check import Arguments, Comparison, Keywords, Picks, Results, errors_of

#: Operators whose second result, or only one, is an index along an axis: where numbers are equal any index is right.
_WITH_INDICES = frozenset(
    ("argmax", "argmin", "cummax", "cummin", "kthvalue", "max", "median", "min", "mode", "nanmedian", "sort", "topk")
)
_WITH_DIFFERENT_INDICES = frozenset(("sort", "topk"))


class SuiteRow(ReplayRow):
    """The row of a suite on a device.

    Attributes:
        overload: torch's operator.
        call: the operator with its arguments on the device, after `make_call`.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str], device: torch.device) -> None:
        """Raises InvalidRow for a row that is no sample of this torch, and Unsupported without such an operator."""
        super().__init__(kernel_type, cells, device)
        name = texts.overload_of(kernel_type)
        found = aten.find_overload(name)
        if found is None:
            raise Unsupported(f"torch {torch.__version__} has no operator {name}")
        if reason := aten.is_no_operator(found):
            raise Unsupported(f"{name} cannot be checked ({reason})")
        self.overload = found
        self.call: aten.Call

    def make_call(self) -> None:
        """Makes the call. Raises InvalidRow if this torch has another sample by the name, or none."""
        cells, sample = self.cells, self.cells.get(SAMPLE, "")
        if not sample.startswith(f"{texts.OPINFO}/"):
            self.call = make_call(self.overload, texts.read_arguments(cells[ARGUMENTS]), self.device, self.seed)
            return
        try:
            _, opinfo, dtype, number, digest = sample.split("/")
            call = recorded(opinfo, dtype, int(number))
        except (ValueError, LookupError, RuntimeError) as error:
            raise self._other_sample(f"{type(error).__name__}: {error}") from None
        if call is None:
            raise self._other_sample("its function calls several operators")
        if cells.get(FUNCTIONAL):
            call = variant_call(self.overload, call, call.cloned().results())
        if call.overload is not self.overload or texts.text_digest(str(aten.text_of(call))) != digest:
            raise self._other_sample(f"the arguments are {aten.text_of(call)}")
        self.call = aten.with_device(call, self.device)

    def _other_sample(self, why: str) -> InvalidRow:
        listed = self.cells.get(SAMPLE_TORCH, "")
        return InvalidRow(
            f"'{SAMPLE}' = {self.cells.get(SAMPLE, '')!r}: torch {torch.__version__} has no such sample ({why}); torch "
            f"{listed} listed the row: name another --database-path, or remove the row's file"
        )


@dataclass(frozen=True)
class CaseFormula:
    """Torch's operator as a formula: in float64, or in the row's dtypes, where its own results are no better.

    Attributes:
        overload: the operator.
        assume: takes the phrase that tells the latter.
        dtypes: the only dtypes of the results; None: any.
    """

    overload: torch._ops.OpOverload
    assume: Callable[[str], object]
    dtypes: Sequence[torch.dtype] | None = None

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"of torch's {self.overload}"

    def compare(self, arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
        """Returns all elements of the results with the expected ones. Raises WrongResult for another form."""
        found = tuple(each for each in results if each is not None)
        call = aten.with_device(aten.Call(self.overload, tuple(arguments), keywords), found[0].device)
        if self.dtypes is not None and (dtypes := [each.dtype for each in found]) != list(self.dtypes):
            raise WrongResult(f"the results are {dtypes}, and torch's are {list(self.dtypes)}")
        # torch may have no such operator in float64.
        with suppress(RuntimeError, TypeError, ValueError):
            expected = call.cloned().mapped(_precise).results()
            if self._is_right(call, found, expected) or self._is_right(call, call.cloned().results(), expected):
                return self._comparisons(call, found, expected)
        self.assume("checked with torch's result in the row's dtypes")
        return self._comparisons(call, found, call.cloned().results())

    def _is_right(self, call: aten.Call, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
        try:
            compared = self._comparisons(call, results, expected)
            return not any(errors_of(each, "the result", self.name).wrong for each in compared)
        except WrongResult:
            return False

    def _comparisons(
        self, call: aten.Call, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
    ) -> list[Comparison]:
        shapes, wanted = ([tuple(each.shape) for each in of] for of in (results, expected))
        if shapes != wanted:
            raise WrongResult(f"the results have the shapes {shapes}, and torch's have {wanted}")
        compared = list(map(comparison_of, results, expected))
        if compared:
            compared[-1] = self._index_comparison(call, results[-1], expected[-1]) or compared[-1]
        return compared

    def _index_comparison(self, call: aten.Call, result: torch.Tensor, wanted: torch.Tensor) -> Comparison | None:
        """Returns the comparison of the last result if it has indices along an axis; else None."""
        operator, bound = call.overload._schema.name.partition("::")[2], call.bound()
        source = bound.get("self")
        if operator not in _WITH_INDICES or result.dtype is not torch.int64 or not isinstance(source, torch.Tensor):
            return None
        has_index = len(call.overload._schema.returns) == 2 or operator in ("argmax", "argmin")
        if not has_index or bound.get("stable") or not source.numel():
            return None
        axis = bound.get("dim", None if operator in ("argmax", "argmin") else -1)
        if axis is None or not source.dim():
            rows, found, right = source.reshape(1, -1), result.reshape(1, -1), wanted.reshape(1, -1)
        else:
            keeps = result.dim() == source.dim()
            found, right = (each if keeps else each.unsqueeze(axis) for each in (result, wanted))
            rows, found, right = (each.movedim(axis, -1) for each in (source, found, right))
            rows, found, right = (each.reshape(-1, each.shape[-1]) for each in (rows, found, right))
        picks = Picks(rows, rows.gather(-1, right), distinct=operator in _WITH_DIFFERENT_INDICES)
        return Comparison(found, picks, exact=True, nan_is_right=True)


def _precise(value: Any) -> Any:
    """Returns real numbers in float64 and complex numbers in complex128; dtypes likewise; other arguments unchanged."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else torch.complex128 if value.is_complex else value
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    dtype = torch.complex128 if value.is_complex() else torch.float64
    return aten.remade(value, lambda memory: memory.to(dtype, copy=True))


#: Arguments that are a variance or its root, by their names in the schemas.
_POSITIVE = ("running_var", "save_invstd", "invstd", "rstd", "var", "weight_var")
#: Operators of real numbers above 0.
_OF_POSITIVE = ("log", "log2", "log10", "rsqrt", "sqrt", "pow", "reciprocal")
_INTEGERS = (-8, 9)
#: Operators that write elements at indices.
_WRITES_AT_INDICES = ("index_put", "index_put_impl", "scatter", "index_copy")


def make_call(overload: torch._ops.OpOverload, text: texts.ArgumentsText, device: torch.device, seed: int) -> aten.Call:
    """Returns a call with tensors on a device, from a seed.

    Real numbers are uniform in -1 ... 1; variances and arguments of logarithms are in 0.1 ... 1. Integers are indices
    where the operator takes indices, and else in -8 ... 8. Indices of what is written differ, since which of two writes
    of an element counts is not defined.
    """
    generator = None if device.type == "meta" else torch.Generator(device=device).manual_seed(seed)
    operator = overload._schema.name.partition("::")[2].strip("_")
    names = [argument.name for argument in overload._schema.arguments]
    arguments = dict(zip(names, text.positional, strict=False)) | dict(text.keywords)
    bounds = _index_bounds(operator, arguments)
    writes = operator in _WRITES_AT_INDICES and not arguments.get("accumulate")

    def made(name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(made(f"{name}[{place}]", item) for place, item in enumerate(value))
        if isinstance(value, texts.TensorText):
            most = bounds.get(name)
            is_positive = name in _POSITIVE or operator in _OF_POSITIVE
            found = None
            if writes and most is not None and value.dtype in ("int32", "int64"):
                found = _different_indices(value, device, generator, arguments.get("dim"), most)
            return _tensor(value, device, generator, is_positive=is_positive, most=most) if found is None else found
        if isinstance(value, texts.TorchConstant):
            return getattr(torch, value.name)
        return value

    positional = tuple(made(name, value) for name, value in zip(names, text.positional, strict=False))
    keywords = {name: made(name, value) for name, value in text.keywords.items()}
    return aten.makes_on(aten.Call(overload, positional, keywords), device)


def _tensor(
    text: texts.TensorText,
    device: torch.device,
    generator: torch.Generator | None,
    *,
    is_positive: bool,
    most: int | None,
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


def _different_indices(
    text: texts.TensorText, device: torch.device, generator: torch.Generator | None, dim: Any, most: int
) -> torch.Tensor | None:
    """Returns indices below a number that differ along a dimension (None: all do); None if there are too many."""
    shape = text.shape if isinstance(dim, int) else (math.prod(text.shape),)
    axis = dim if isinstance(dim, int) else 0
    if text.stride is not None or not shape or shape[axis] > most:
        return None
    lines = [most if place == axis % len(shape) else size for place, size in enumerate(shape)]
    order = torch.rand(lines, device=device, generator=generator).argsort(axis).narrow(axis, 0, shape[axis])
    return order.reshape(text.shape).to(getattr(torch, text.dtype))


def _index_bounds(operator: str, arguments: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number that the integers of an argument stay below, by its name ("indices[1]" of a list)."""
    shapes = {name: value.shape for name, value in arguments.items() if isinstance(value, texts.TensorText)}
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
        case "gather" | "scatter" | "scatter_add" | "index_select" | "index_add" | "scatter_reduce" | "index_copy":
            return {"index": size(source, arguments.get("dim"))}
        case "nll_loss_forward" | "nll_loss_backward" | "nll_loss2d_forward" | "nll_loss2d_backward":
            return {"target": size(source, 1 if len(source) > 1 else 0)}
        case "max_pool2d_with_indices_backward":
            return {"indices": size(source, -1) * size(source, -2)}
    return {}


def trace_cases(path: Path) -> Iterator[texts.CaseRow]:
    """Yields the cases of the calls in a file or folder of traces. Raises OpAtlasError."""
    for call in texts.read_traces(path):
        overload = aten.find_overload(call.overload)
        if overload is not None and aten.is_no_operator(overload):
            continue
        functional = aten.functional_of(overload) if overload is not None else None
        outputs: list[texts.SlotText] = []
        # An operator without an implementation for "meta" raises an error of any type.
        with suppress(Exception):
            if overload is not None:
                outputs = aten.slots_of(make_call(overload, call.arguments, torch.device("meta"), 0).results())
        yield texts.case_row(
            call.overload,
            aten.name_of(functional) if functional is not None else "",
            texts.TRACE,
            str(call.arguments),
            [(each.shape, each.dtype) for each in call.arguments.tensors()],
            outputs,
            call.count,
        )
