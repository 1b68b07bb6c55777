"""Rows of kernel types from the arguments of an operator: its tensors, numbers and strides, in the slots of each type.

A trace has the inputs of an operator alone, so the outputs follow from the kernel type. What a row cannot say of its
call, such as gaps between the rows of an operand, is `CapturedRow.differs`: a replay makes contiguous tensors.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

from opatlas.capture.launches import SkipReason
from opatlas.row import columns as col
from opatlas.row.slots import dtype_of_torch, known_dtype

Shape = tuple[int, ...]
#: Names of types in traces, without `c10::`, that are not those of torch; and the dtypes by torch's numbers of them.
_C_TYPES = {"float": "float32", "double": "float64", "Half": "float16", "unsigned char": "uint8", "signed char": "int8"}
_C_TYPES |= {"short int": "int16", "int": "int32", "long int": "int64", "long": "int64", "bool": "bool"}
_NUMBERED = dict(enumerate(["UINT8", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "FLOAT", "DOUBLE"]))
_NUMBERED |= {11: "BOOL", 15: "BF16", 23: "FLOAT8_E5M2", 24: "FLOAT8_E4M3FN"}
GAPS = "operands that are not contiguous"


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
    """A row of a kernel type.

    Attributes:
        cells: its base columns, and the Runtime columns of attention.
        differs: what of the call the row does not say, so that a replay does other work; "" if it says all.
    """

    kernel_type: str
    cells: Mapping[str, str]
    differs: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a call has no row; `detail` says what of it, in a few words."""

    reason: SkipReason
    detail: str = ""


class NoRow(Exception):
    """A call has no row; its argument says what of the call no row has."""


class Tensor(NamedTuple):
    """A tensor; a number has no axes. Outputs have no strides, which means that they are contiguous."""

    shape: Shape
    dtype: str
    strides: Shape = ()

    @property
    def steps(self) -> list[tuple[int, int]]:
        """The strides and sizes of the axes with more than one element, in the order of the axes."""
        axes = zip(self.strides, self.shape, strict=True) if self.strides else ()
        return [(stride, size) for stride, size in axes if size > 1]

    @property
    def dense(self) -> bool:
        """Whether its elements fill their memory, in any order of the axes."""
        steps = sorted(self.steps)
        filled = accumulate((size for _, size in steps), int.__mul__, initial=1)
        return all(stride == size for (stride, _), size in zip(steps, filled, strict=False))

    @property
    def contiguous(self) -> bool:
        """Whether its elements fill their memory in the order of the axes."""
        return self.dense and self.steps == sorted(self.steps, reverse=True)

    def stored(self) -> Tensor:
        """Returns it with axes of size 1 in place of those that repeat an element (stride 0)."""
        axes = zip_longest(self.shape, self.strides, fillvalue=1)
        return self._replace(shape=tuple(size if stride else 1 for size, stride in axes))

    def like(self, *shape: int, dtype: str = "") -> Tensor:
        """Returns a contiguous tensor of a shape, in the same dtype by default."""
        return Tensor(shape, dtype or self.dtype)


class OperatorCall:
    """The arguments of a call while its row is made.

    Attributes:
        arguments: each tensor, or list of tensors (without a dtype); None for anything else.
        differs: what the row does not say.
    """

    def __init__(self, operator: Operator, kernels: Sequence[str]) -> None:
        self.name, self.kernels, self._values = operator.name, kernels, operator.values
        strides = operator.strides or [()] * len(operator.dims)
        self.arguments = [*map(_argument, operator.types, operator.dims, strides)]
        self.differs: dict[str, None] = {}
        self._dropped: frozenset[int] = frozenset()

    def has(self, at: int) -> bool:
        return at < len(self.arguments) and isinstance(self.arguments[at], Tensor)

    def tensor(self, at: int) -> Tensor:
        """Returns a tensor, which must be one."""
        found = self.arguments[at] if at < len(self.arguments) else None
        if not isinstance(found, Tensor):
            raise NoRow(f"argument {at}, which is no tensor")
        return found

    def tensors(self) -> list[Tensor]:
        return [each for each in self.arguments if isinstance(each, Tensor)]

    def told(self, at: int) -> Tensor:
        """Returns a tensor that a replay makes contiguous; tells it if it is not."""
        found = self.tensor(at)
        self.tell(GAPS, not found.contiguous)
        return found

    def value(self, at: int) -> Any:
        """Returns a number, a bool or a list of numbers; None for None, for a tensor, and for text."""
        try:
            return ast.literal_eval(self._values[at])
        except (IndexError, SyntaxError, ValueError):
            return None

    def dtype(self, at: int, x: Tensor) -> str:
        """Returns the dtype of which torch's number is an argument; without one that of a sum of x."""
        number = self.value(at)
        return _NUMBERED[number] if number is not None else x.dtype if _kind(x.dtype) == 2 else "INT64"

    def expect_last(self, at: int) -> None:
        """Expects an axis in an argument to be the last one of argument 0: rows do not record it."""
        self.expect(self.axes(at, len(self.tensor(0).shape)) == [-1], "another axis than the last")

    def drop_ones(self, kept: int | None = None) -> None:
        """Drops axes of size 1, but for the last two axes, that all tensors with the most axes have; `kept` stays.

        So a batch of one, or a token of each sequence, has the row of its tokens: 1,256,1024 is 256,1024.
        """
        every = [each for found in self.arguments for each in (found if isinstance(found, list) else [found]) if each]
        rank = max((len(each.shape) for each in every), default=0)
        largest = [each for each in every if len(each.shape) == rank]
        ones = [at for at in range(rank - 1) if at != kept and all(each.shape[at] == 1 for each in largest)]
        self._dropped = dropped = frozenset(ones[: max(rank - 2, 0)])

        def without(axes: Shape) -> Shape:
            return tuple(size for at, size in enumerate(axes) if at not in dropped)

        def cut(found: Tensor) -> Tensor:
            return Tensor(without(found.shape), found.dtype, without(found.strides)) if found in largest else found

        for at, found in enumerate(self.arguments):
            self.arguments[at] = [*map(cut, found)] if isinstance(found, list) else cut(found) if found else None

    def axes(self, at: int, rank: int) -> list[int]:
        """Returns the axes in an argument (a number or a list; None: all), from the last: negative numbers."""
        value, whole = self.value(at), rank + len(self._dropped)
        given = value if isinstance(value, list) and value else range(-rank, 0) if value in (None, []) else [value]
        places = [axis % whole for axis in given] if value not in (None, []) else []
        left = [place for place in range(whole) if place not in self._dropped]
        self.expect(self._dropped.isdisjoint(places), "an axis of one element")
        return [left.index(place) - rank for place in places] if places else list(given)

    def expect(self, holds: object, otherwise: str) -> None:
        if not holds:
            raise NoRow(otherwise)

    def tell(self, what: str, if_so: bool = True) -> None:
        """Adds what the row does not say."""
        if if_so:
            self.differs[what] = None

    def row(
        self,
        kernel_type: str,
        inputs: Iterable[Tensor | None],
        outputs: Iterable[Tensor | None],
        more: Mapping[str, str] | None = None,
    ) -> CapturedRow:
        """Returns a row; `more` are cells beside those of its slots, which are None where they are absent."""
        cells = ["", "", *_cells([*inputs]), *_cells([*outputs])]
        return CapturedRow(
            kernel_type, {**dict(zip(col.BASE, cells, strict=True)), **(more or {})}, "; ".join(self.differs)
        )


RowMaker = Callable[[OperatorCall], CapturedRow]


def _argument(kind: str, dims: Any, strides: Any) -> Tensor | list[Tensor] | None:
    if kind == "TensorList":
        lists = zip_longest(dims, strides, fillvalue=())
        return [Tensor(tuple(shape), "", tuple(steps)) for shape, steps in lists]
    name = kind.removeprefix("c10::")
    known = known_dtype(dtype_of_torch(_C_TYPES.get(name, name.lower())))
    return Tensor(tuple(dims), known.name, tuple(strides)) if known and kind else None


def _cells(slots: Sequence[Tensor | None]) -> tuple[str, str, str]:
    dtypes = ["DT_UNDEFINED" if slot is None else {"BF16": "DT_BF16"}.get(slot.dtype, slot.dtype) for slot in slots]
    shapes = ["" if slot is None else ",".join(map(str, slot.shape)) for slot in slots]
    return ";".join(shapes), ";".join(dtypes), ";".join("NULL" if slot is None else "ND" for slot in slots)


def numbers(count: int, dtype: str = "INT64") -> Tensor:
    """A list of numbers, such as axes or sizes."""
    return Tensor((count,), dtype)


_WORD = re.compile(r"(\[\d+\]|=?\d*)(?:\.(rows|tokens|flat|rank|last(\d+)))?(?:@(\d+))?(?::(\w+))?")


def layout(kernel_type: str, slots: str, *, ones: bool = False, last: int | None = None) -> RowMaker:
    """Returns the maker of rows whose slots are arguments in another order.

    Args:
        slots: arguments by their number, as inputs `->` outputs. `2` is argument 2; `2.rows` an element for each of its
            rows, with an axis of size 1, and `2.tokens` without one; `2.flat` a list of its elements, `2.rank` of its
            axes; `2.last5` has the number in argument 5 as its last axis. `[2]` is a list of two numbers, `=2` a number
            in the dtype of argument 2. `@3` gives the dtype of argument 3, `:INT32` this one. Tensors that no slot
            names must have one element.
        ones: whether axes of one element are dropped; see `OperatorCall.drop_ones`.
        last: the argument, or the next one, that names an axis, which must be the last: rows do not record it.
    """
    sides = [[_WORD.fullmatch(word.strip()) for word in side.split(";")] for side in slots.split("->")]
    named = {int(word[1]) for side in sides for word in side if word and word[1].isdecimal()}

    def slot(call: OperatorCall, word: re.Match[str] | None) -> Tensor:
        assert word is not None, slots
        what, part, size, of, dtype = word.groups()
        if what.startswith("["):
            found = numbers(int(what[1:-1]))
        elif what.startswith("="):
            found = Tensor((), call.tensor(int(what[1:])).dtype if what[1:] else "INT64")
        else:
            found = call.told(int(what)) if not part else call.tensor(int(what))
        before = found.shape[:-1]
        match (part or "").rstrip("0123456789"):
            case "rows":
                found = Tensor((*before, 1), "FLOAT")
            case "tokens":
                found = Tensor((*before,), "FLOAT")
            case "flat":
                found = found.like(math.prod(found.shape))
            case "rank":
                found = numbers(len(found.shape))
            case "last":
                found = found.like(*before, call.value(int(size)))
        return found._replace(dtype=dtype or (call.tensor(int(of)).dtype if of else found.dtype))

    def make(call: OperatorCall) -> CapturedRow:
        if ones:
            call.drop_ones()
        others = [each for at, each in enumerate(call.arguments) if isinstance(each, Tensor) and at not in named]
        call.expect(all(math.prod(each.shape) == 1 for each in others), "an argument that no slot has")
        if last is not None:
            call.expect_last(last + isinstance(call.value(last), bool))
        inputs, outputs = ([slot(call, word) for word in side] for side in sides)
        return call.row(kernel_type, inputs, outputs)

    return make


def pointwise(
    kernel_type: str, count: int = 2, *, of: str = "", result: str = "", scale: int = 0, by_number: str = ""
) -> RowMaker:
    """Returns the maker of rows of an elementwise kernel.

    Args:
        count: the operands, the first arguments; those that are no tensors are numbers.
        of: the only dtype of operands that the kernel type has; default: any.
        result: the dtype of the result; default: that of the operands together.
        scale: the argument that multiplies the second operand, which must be 1; 0: none.
        by_number: the kernel type if the second operand is a number, which then has no slot.
    """

    def make(call: OperatorCall) -> CapturedRow:
        call.drop_ones()
        call.expect(not scale or call.value(scale) in (None, 1), "a factor of the second operand")
        given = [call.tensor(at) for at in range(count) if call.has(at)]
        together = promoted(given)
        call.expect(of in ("", together), f"operands in {together}")
        shaped = [each.stored() for each in given if each.shape]
        widest = max((len(each.steps) for each in shaped), default=0)
        # Operands of one layout are read in the order of their memory.
        orders = {each.strides for each in shaped if len(each.steps) == widest}
        alike = len(orders) == 1 and all(each.dense for each in shaped)
        call.tell(GAPS, not alike and not all(each.contiguous for each in shaped))
        if not by_number or len(shaped) == count:
            operands = [call.tensor(at).stored() if call.has(at) else Tensor((), together) for at in range(count)]
            operands = [each if each.shape else each.like(dtype=together) for each in operands]
            sizes = zip_longest(*(call.tensor(at).shape[::-1] for at in range(count) if call.has(at)), fillvalue=1)
            shape = tuple(next((size for size in axis if size != 1), 1) for axis in sizes)[::-1]
            in_place = call.name.endswith("_") and given[0].dtype
            return call.row(kernel_type, operands, [Tensor(shape, result or in_place or together)])
        return call.row(by_number, shaped, [shaped[0].like(*given[0].shape, dtype=together)])

    return make


def promoted(tensors: Sequence[Tensor]) -> str:
    """Returns the dtype of an elementwise result by torch's rule: a number counts only if its kind is higher."""
    kinds = [(_kind(each.dtype), bool(each.shape), each.dtype) for each in tensors]
    kind = max(kind for kind, _, _ in kinds)
    with_axes = any(shaped for _, shaped, _ in kinds)
    dtypes = {dtype for own, shaped, dtype in kinds if own == kind and shaped == with_axes}
    if not dtypes or {"BF16", "FLOAT16"} <= dtypes:
        return "FLOAT" if kind == 2 else "INT64"
    return max(dtypes, key=lambda name: getattr(known_dtype(name), "bytes", 0))


def _kind(dtype: str) -> int:
    known = known_dtype(dtype)
    return 2 if known and known.is_float else 0 if dtype == "BOOL" else 1


def power(call: OperatorCall) -> CapturedRow:
    """`pow`: a square is a kernel of its own."""
    return (pointwise("Square", 1) if call.value(1) == 2 else pointwise("Pows"))(call)


def gelu(call: OperatorCall) -> CapturedRow:
    """`gelu`: x, approximation, a text; where a trace lacks it, the first function of torch's file is that by tanh."""
    by_tanh = any("GeluType)::{lambda()#1}" in name for name in call.kernels)
    return pointwise("Gelu" if by_tanh else "GeluV2", 1)(call)


def reduction(kernel_type: str) -> RowMaker:
    """Returns the maker of rows of a sum or mean: x, axes, whether they stay, dtype; or x, dtype."""

    def make(call: OperatorCall) -> CapturedRow:
        call.drop_ones()
        x, some = call.told(0), len(call.arguments) > 2
        rank = len(x.shape)
        axes, stay = (call.axes(1, rank), call.value(2) is True) if some else ([*range(-rank, 0)], False)
        sizes = [1 if axis in axes else x.shape[axis] for axis in range(-rank, 0) if stay or axis not in axes]
        result = x.like(*sizes, dtype=call.dtype(3 if some else 1, x))
        return call.row(kernel_type, [x, numbers(len(axes))], [result])

    return make


def cumulative(call: OperatorCall) -> CapturedRow:
    """`cumsum`: x, axis, dtype."""
    call.drop_ones()
    call.expect_last(1)
    x = call.told(0)
    return call.row("Cumsum", [x, Tensor((), "INT64")], [x.like(*x.shape, dtype=call.dtype(2, x))])


def copy(call: OperatorCall) -> CapturedRow:
    """`copy_`: destination, source. A strided copy is what it permutes, repeats or cuts out."""
    call.drop_ones()
    to, source = call.tensor(0), call.tensor(1)
    sizes, result, listed = source.shape, to.like(*to.shape), numbers(len(to.shape))
    if to.dtype != source.dtype:
        call.tell(GAPS, not to.contiguous or not source.contiguous)
        return call.row("Cast", [source], [result])
    if to.steps == source.steps or (to.contiguous and source.contiguous):
        call.tell(GAPS, not source.dense)
        return call.row("TensorMove", [source], [result])
    call.expect(to.contiguous, "a copy into a part of a tensor")
    stored = source.stored()
    if stored.shape != to.shape:
        return call.row("BroadcastTo", [stored, listed], [result])
    order = sorted(range(len(sizes)), key=lambda axis: (source.strides[axis], sizes[axis]), reverse=True)
    if source.dense:
        return call.row("Transpose", [source.like(*(sizes[axis] for axis in order)), listed], [result])
    # The stride before an axis, in its own strides, is the whole size of which a part is copied.
    whole = [sizes[0], *(before // own for before, own in zip(source.strides, source.strides[1:], strict=False))]
    in_order = order == [*range(len(sizes))] and all(map(int.__le__, sizes, whole)) and source.strides[-1] == 1
    call.expect(in_order, "a copy of a part in another order of its axes, or with steps")
    return call.row("Slice", [source.like(*whole), listed, listed], [result])


_TEMPLATE = re.compile(r"CatArrayBatched\w*<(?:at::native::\(anonymous namespace\)::OpaqueType<(\d+)u?>|([\w: ]+?),)")
_BY_BYTES = {"1": "UINT8", "2": "BF16", "4": "FLOAT", "8": "INT64"}


def concatenation(call: OperatorCall) -> CapturedRow:
    """`cat`: tensors, axis. The dtype is that of the kernel's template, which mostly tells its bytes alone."""
    template = next(filter(None, map(_TEMPLATE.search, call.kernels)), None)
    typed = template and (
        Tensor((), _BY_BYTES.get(template[1] or "", "")) if template[1] else _argument(template[2], (), ())
    )
    if not isinstance(typed, Tensor) or not typed.dtype:
        raise NoRow("a list of tensors without a dtype")
    axis, parts = call.value(1), call.arguments[0]
    call.drop_ones(kept=axis % len(parts[0].shape) if isinstance(parts, list) else None)
    parts = [each for each in call.arguments[0] or [] if isinstance(each, Tensor) and each.shape != (0,)]
    call.tell("a dtype of as many bytes", bool(template and template[1]))
    call.tell(GAPS, not all(each.contiguous for each in parts))
    shape = list(parts[0].shape)
    (axis,) = call.axes(1, len(shape))
    shape[axis] = sum(each.shape[axis] for each in parts)
    return call.row("ConcatD", [each._replace(dtype=typed.dtype) for each in parts], [typed.like(*shape)])


def products_of_experts(operator: Operator, kernels: Sequence[str]) -> dict[int, CapturedRow]:
    """Returns the rows of the two products of a mixture of experts of vLLM or SGLang, by the places of their kernels.

    Its arguments: tokens (T, H), weights (E, 2 I, H) and (E, H, I), weights and numbers (T, top) of the chosen experts.
    Empty without two such kernels, for quantized weights, and where other devices have some of the experts.
    """
    call = OperatorCall(operator, kernels)
    x, first, second, numbered = (call.tensor(at) for at in (0, 1, 2, 4))
    places = [at for at, kernel in enumerate(kernels) if "fused_moe_kernel" in kernel]
    is_shared = any(isinstance(each, Tensor) and each.dtype == "INT32" for each in call.arguments[5:])
    if len(places) != 2 or is_shared or not x.dtype == first.dtype == second.dtype:
        return {}
    call.tell("the sizes of groups")
    call.tell("weights of experts in the other order")
    found, rows = {}, math.prod(numbered.shape)
    for at, (experts, n, k) in zip(places, (first.shape, second.shape), strict=True):
        slots = [x.like(rows, k), first.like(experts, k, n), *[None] * 5, numbers(experts), None]
        found[at] = call.row("GroupedMatmul", slots, [x.like(rows, n)])
    return found
