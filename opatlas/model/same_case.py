"""Whether a launch of a profile is the case that a row describes, slot by slot.

Equal signatures are the same case. Profilers write one case in several ways, though, and a row may come from another
version of CANN than the profile. What is no difference:

- prefixes (`DT_`, `FORMAT_`) and synonyms of dtypes;
- a plain format beside another one (ND, NCL, NCHW, ...): a tensor is written with the format that its storage was
  made with, whatever its rank, and all of these have the same layout;
- a slot with one element and at most one dimension beside a slot without dimensions: a scalar;
- FRACTAL_NZ as matrix or as blocks;
- INT64 beside UINT64: packed scales, which a call passes as INT64 and a kernel reads as UINT64;
- dtype or format of one side only: the other side does not tell it;
- axes of size 1 of what is sliced or transposed: a contiguous copy of a view launches its kernel without them.

What is taken, and told: tensors that the profile does not record, slots of the launch behind the last one of the row,
leading axes of size 1 that one side has more (1,8 for 8), absent slots between others that one side leaves out, another
dtype of an input without dimensions (a scalar, or an optional tensor that is not there), and INT32 beside INT64 in a
list that describes the call (axes, sizes).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from opatlas.model.communication import is_communication
from opatlas.model.schema import BASE, INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.model.signature import reads_first_input, signature
from opatlas.model.slots import known_dtype, slot_words
from opatlas.text import whole

_Words = tuple[str, str, str]
_NOTHING: _Words = ("", "", "")
_NZ = "FRACTAL_NZ"
_PLAIN = frozenset({"ND", "NCL", "NCHW", "NCDHW"})
_PACKED = frozenset({"INT64", "UINT64"})
#: Of an axis, sizes or offsets, for at most as many axes as a tensor of CANN has.
_OF_LISTS = frozenset({"INT32", "INT64"})
_LONGEST_LIST = 8


@dataclass(frozen=True)
class LaunchComparison:
    """How a launch compares with a row.

    Attributes:
        difference: the first slot that differs, as the row has it and as it ran; "" for the same case.
        assumptions: what had to be taken for granted.
    """

    difference: str = ""
    assumptions: tuple[str, ...] = ()


def compare_launch(kernel_type: str, row: Mapping[str, str], launch: Mapping[str, str]) -> LaunchComparison:
    """Compares a launch with a row.

    Args:
        kernel_type: of the row; the launch is of the same type, or of a sibling.
        row: the cells of the row by column; those that no profile holds (run-time values) do not count.
        launch: the base columns of the launch.
    """
    if is_communication(kernel_type):
        # A profiler records no message.
        return LaunchComparison()
    return _compared(kernel_type, _base(row), _base(launch))


def _base(cells: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(cells.get(column, "") for column in BASE)


@lru_cache(maxsize=4096)
def _compared(kernel_type: str, row: tuple[str, ...], launch: tuple[str, ...]) -> LaunchComparison:
    wanted, ran = (dict(zip(BASE, cells, strict=True)) for cells in (row, launch))
    if signature(kernel_type, wanted) == signature(kernel_type, ran):
        return LaunchComparison()
    assumptions: list[str] = []
    for name, columns in (("input", INPUT_SLOTS), ("output", OUTPUT_SLOTS)):
        asked, seen = (slot_words(*(cells[column] for column in columns)) for cells in (wanted, ran))
        if reads_first_input(kernel_type):
            asked, seen = (tuple(map(_without_ones, slots[:1])) for slots in (asked, seen))
        if not seen:
            if asked:
                assumptions.append(f"the profile does not tell the {name}s of the launch")
            continue
        found = _side(name, asked, seen)
        if found.difference:
            # As some rows of QuantBatchMatmulV3 have it: `8,16;16,4;4;8` for `8,16;16,4;4;;;8`.
            shorter = _side(name, *([slots[place] for place in _present(slots)] for slots in (asked, seen)))
            if shorter.difference or len(asked) == len(seen):
                return found
            wanted_at, ran_at = (",".join(map(str, _present(slots))) for slots in (asked, seen))
            if wanted_at != ran_at:
                assumptions.append(f"{name} slots {ran_at} of the launch are slots {wanted_at} of the row")
            found = shorter
        assumptions += found.assumptions
    return LaunchComparison(assumptions=tuple(assumptions))


def _present(slots: Sequence[_Words]) -> list[int]:
    """The numbers of the slots that have dimensions."""
    return [place for place, slot in enumerate(slots) if slot[0]]


def _side(name: str, asked: Sequence[_Words], seen: Sequence[_Words]) -> LaunchComparison:
    """All inputs, or all outputs, of both."""
    assumptions: list[str] = []
    for found in _slots(name, asked, seen):
        if found.difference:
            return found
        assumptions += found.assumptions
    return LaunchComparison(assumptions=tuple(assumptions))


def _slots(name: str, asked: Sequence[_Words], seen: Sequence[_Words]) -> Iterator[LaunchComparison]:
    has_dimensions = any(shape for shape, _, _ in asked)
    for number, (wanted, ran) in enumerate(zip_longest(asked, seen, fillvalue=_NOTHING)):
        slot = f"{name} slot {number}"
        if number >= len(asked):
            yield LaunchComparison(assumptions=(f"the launch has {_text(ran)} in {slot}, which the row does not have",))
        elif not (_same_shape(wanted, ran) and _same_format(wanted, ran)):
            both = f"{slot} is {_text(wanted)} in the row, and {_text(ran)} ran"
            # Nothing is broadcast otherwise, or lies otherwise, for a leading axis of size 1.
            alike = _same_format(wanted, ran) and _same_dtype(wanted, ran) and _core(wanted[0]) == _core(ran[0]) != ""
            yield LaunchComparison(assumptions=(both,)) if alike else LaunchComparison(both)
        elif not _same_dtype(wanted, ran):
            both = f"{slot} is {_text(wanted)} in the row, and {_text(ran)} ran"
            empty = not (wanted[0] or ran[0]) and (name == "input" or has_dimensions)
            taken = empty or (name == "input" and _are_lists(wanted, ran))
            yield LaunchComparison(assumptions=(both,)) if taken else LaunchComparison(both)


def _text(words: _Words) -> str:
    shape, dtype, form = words
    return f"({shape}) {dtype} {form}".strip() if shape or dtype else "absent"


def _are_lists(*slots: _Words) -> bool:
    """Whether slots are lists that describe a call: some whole numbers, such as axes or sizes."""
    return all(
        dtype in _OF_LISTS and "," not in shape and (whole(shape or "1") or 0) <= _LONGEST_LIST
        for shape, dtype, _ in slots
    )


def _same_dtype(wanted: _Words, ran: _Words) -> bool:
    one, other = known_dtype(wanted[1]), known_dtype(ran[1])
    return one is None or other is None or one == other or {one.name, other.name} <= _PACKED


def _same_format(wanted: _Words, ran: _Words) -> bool:
    # `NC1HWC0:1` tells a number of groups.
    one, other = (form.partition(":")[0] for _, _, form in (wanted, ran))
    return not one or not other or one == other or {one, other} <= _PLAIN


def _same_shape(wanted: _Words, ran: _Words) -> bool:
    if wanted[0] == ran[0] or {wanted[0], ran[0]} == {"", "1"}:
        return True
    one, other = _sizes(wanted[0]), _sizes(ran[0])
    if one is None or other is None or _NZ not in (wanted[2], ran[2]):
        return False
    blocks, matrix = sorted((one, other), key=len, reverse=True)
    return len(blocks) == len(matrix) + 2 >= 4 and _is_blocked(blocks, matrix)


def _without_ones(slot: _Words) -> _Words:
    """A tensor without its axes of size 1."""
    shape, dtype, form = slot
    if form == _NZ:
        return slot
    return ",".join(size for size in shape.split(",") if size != "1"), dtype, form


def _core(shape: str) -> str:
    """A shape without leading axes of size 1."""
    while shape.startswith("1,"):
        shape = shape[2:]
    return shape


def _is_blocked(blocks: Sequence[int], matrix: Sequence[int]) -> bool:
    """Whether (..., a, b, c, d) are the blocks of a matrix (..., m, n): b of c rows, and a of d columns."""
    *outer, a, b, c, d = blocks
    *rest, m, n = matrix
    return outer == rest and 0 not in (c, d) and (math.ceil(n / d), math.ceil(m / c)) == (a, b)


def _sizes(shape: str) -> list[int] | None:
    sizes = [whole(word) for word in shape.split(",")] if shape else []
    return None if None in sizes else [size for size in sizes if size is not None]


FAMILY = ("MatMulV2", "MatMulV3", "MatMulCommon")

_NZ = "FRACTAL_NZ"


def canonical_form(row: Mapping[str, str]) -> str | None:
    """Text that is equal for products (M,K; N,K -> M,N) which differ only in what is transposed.

    A transposed operand is another case with another duration: this finds a row where nothing
    matches exactly. Dtypes, formats and inputs beyond the two operands (a bias) still count.

    Args:
        row: cells by column name.

    Returns:
        None for a row that is no product of two matrices, or that does not say which dimension is K.
    """
    inputs = slot_words(*(row.get(column, "") for column in INPUT_SLOTS))
    outputs = slot_words(*(row.get(column, "") for column in OUTPUT_SLOTS))
    if len(inputs) < 2 or len(outputs) != 1:
        return None
    left, right, product = (_matrix(shape, form) for shape, _, form in (*inputs[:2], *outputs))
    if left is None or right is None or product is None:
        return None
    m, n = product
    k = left[1] if left[0] == m else left[0] if left[1] == m else None
    if k is None or sorted(right) != sorted((n, k)):
        return None
    dtypes_and_formats = ";".join(f"{dtype},{form}" for _, dtype, form in (*inputs, *outputs))
    return f"{m},{k},{n}|{dtypes_and_formats}|" + ";".join(shape for shape, _, _ in inputs[2:])


def _matrix(shape: str, form: str) -> tuple[int, int] | None:
    """Rows and columns; those of (a, b, c, d) in FRACTAL_NZ are b*c and a*d."""
    sizes = [size for word in shape.split(",") if (size := whole(word)) is not None]
    if len(sizes) != shape.count(",") + 1:
        return None
    if form == _NZ and len(sizes) == 4:
        return sizes[1] * sizes[2], sizes[0] * sizes[3]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


#: One API of torch_npu each, behind which the library chooses one of these.
_FAMILIES = (
    (*FAMILY, "MatMul"),
    ("BatchMatMulV2", "BatchMatMulV3", "BatchMatMul"),
    ("DispatchFFNCombine", "DispatchFFNCombineBF16"),
    ("GatherV2", "GatherV3"),
    # The forms with fixed axes are those of older toolkits.
    ("ReduceMean", "ReduceMeanD"),
    ("ReduceSum", "ReduceSumD"),
    ("ScaledMaskedSoftmax", "ScaledMaskedSoftmaxV2"),
    ("StridedSlice", "StridedSliceD"),
)
#: Where a graph is captured (aclgraph), CANN before 8.5 named a kernel after the function of its library that launches
#: it, whose name mostly is the type with one of these endings. Names of launches tell: `aclnnAdd_AddAiCore_Add`.
_TWINS = ("AiCore", "Aicore")
#: The other functions, each with its type.
_FUNCTIONS = {
    "ArangeAiCore": "Range",
    "BatchMatMulNd": "BatchMatMulV2",
    "DropoutDoMaskAiCore": "DropOutDoMask",
    "LayerNormV3WithImplMode": "LayerNormV3",
    "LogSoftmaxAiCore": "LogSoftmaxV2",
    "MatMulV3Common": "MatMulV3",
    "NonzeroAiCore": "NonZero",
    "ReduceSumOpAiCore": "ReduceSum",
    "SoftmaxAiCore": "SoftmaxV2",
    "TransDataSpecial": "TransData",
}


def base_type(kernel_type: str) -> str:
    """Returns the type of a kernel that may be named after its function: `AddAiCore` is `Add`."""
    named = _FUNCTIONS.get(kernel_type)
    if named is not None:
        return named
    return next((kernel_type.removesuffix(twin) for twin in _TWINS if kernel_type.endswith(twin)), kernel_type)


def siblings(kernel_type: str) -> tuple[str, ...]:
    """Returns the types that a call may launch for a row of `kernel_type`: the same kernel's, then those of its family.

    A sample of a sibling belongs to the sibling's row, and fills the row that was asked for
    (opatlas.model.record.LaunchedCase).
    """
    plain = base_type(kernel_type)
    family = next((family for family in _FAMILIES if plain in family), (plain,))
    types = sorted(family, key=lambda name: name != plain)
    names = [name for plain_name in types for name in _names(plain_name)]
    return tuple(name for name in names if name != kernel_type)


def _names(plain: str) -> tuple[str, ...]:
    """A type, and what else its kernel is called."""
    functions = (function for function, kernel_type in _FUNCTIONS.items() if kernel_type == plain)
    return plain, *(plain + twin for twin in _TWINS), *functions
