"""Compares launches of a profile with rows: whether they are the same case, or differ only in transposition.

Equal signatures are the same case. Profilers write one case in several ways, and a row may come from another version of
CANN than the profile. These differences do not count:

- prefixes (`DT_`, `FORMAT_`) and synonyms of dtypes;
- two plain formats (ND, NCL, NCHW, ...): all have the same layout;
- a slot with one element and at most one dimension, and a slot without dimensions: both are scalars;
- FRACTAL_NZ as a matrix, and as blocks;
- INT64 and UINT64: a call passes packed scales as INT64, and the kernel reads them as UINT64;
- a dtype or format that only one side states;
- axes of size 1 of a tensor that is sliced or transposed: a contiguous copy of a view omits them.

These differences are accepted and reported as assumptions: tensors that the profile does not record; slots of the
launch after the last slot of the row; additional leading axes of size 1 (1,8 for 8); absent slots between others that
one side omits; another dtype of an input without dimensions (a scalar, or a missing optional tensor); INT32 and INT64
in a list that describes the call (axes, sizes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from opatlas.row.columns import BASE, INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.communication import is_communication
from opatlas.row.signature import reads_first_input, signature
from opatlas.row.slots import known_dtype, optional_inputs, optional_outputs, slot_words
from opatlas.text import parse_whole

_Words = tuple[str, str, str]
_ABSENT: _Words = ("", "", "")
_NZ = "FRACTAL_NZ"
_PLAIN = frozenset({"ND", "NCL", "NCHW", "NCDHW"})
_PACKED = frozenset({"INT64", "UINT64"})
#: Dtypes of axes, sizes or offsets, and the largest number of axes of a tensor in CANN.
_LIST_DTYPES = frozenset({"INT32", "INT64"})
_LONGEST_LIST = 8


@dataclass(frozen=True)
class LaunchComparison:
    """The result of comparing a launch with a row.

    Attributes:
        difference: the first slot that differs, in the row and in the launch; "" for the same case.
        assumptions: the accepted differences.
    """

    difference: str = ""
    assumptions: tuple[str, ...] = ()


def compare_launch(kernel_type: str, row: Mapping[str, str], launch: Mapping[str, str]) -> LaunchComparison:
    """Compares a launch with a row.

    Args:
        kernel_type: the kernel type of the row; the launch has the same type, or a sibling type.
        row: the cells of the row by column; Runtime columns do not count, no profile has them.
        launch: the base columns of the launch.
    """
    if is_communication(kernel_type):
        # Profilers do not record messages.
        return LaunchComparison()
    return _compare_cells(kernel_type, _base(row), _base(launch))


def _base(cells: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(cells.get(column, "") for column in BASE)


@lru_cache(maxsize=4096)
def _compare_cells(kernel_type: str, row: tuple[str, ...], launch: tuple[str, ...]) -> LaunchComparison:
    row_cells, launch_cells = (dict(zip(BASE, cells, strict=True)) for cells in (row, launch))
    if signature(kernel_type, row_cells) == signature(kernel_type, launch_cells):
        return LaunchComparison()
    assumptions: list[str] = []
    for name, columns, optional in (
        ("input", INPUT_SLOTS, optional_inputs(kernel_type)),
        ("output", OUTPUT_SLOTS, optional_outputs(kernel_type)),
    ):
        row_slots, launch_slots = (
            slot_words(*(cells[column] for column in columns), optional) for cells in (row_cells, launch_cells)
        )
        if reads_first_input(kernel_type):
            row_slots, launch_slots = (tuple(map(_without_ones, slots[:1])) for slots in (row_slots, launch_slots))
        if not launch_slots:
            if row_slots:
                assumptions.append(f"the profile does not record the {name}s of the launch")
            continue
        compared = _compare_slots(name, row_slots, launch_slots)
        if compared.difference:
            # Some rows of QuantBatchMatmulV3 omit absent slots: `8,16;16,4;4;8` for `8,16;16,4;4;;;8`.
            both = (row_slots, launch_slots)
            without_absent = _compare_slots(name, *([slots[number] for number in _present(slots)] for slots in both))
            if without_absent.difference or len(row_slots) == len(launch_slots):
                return compared
            row_numbers, launch_numbers = (",".join(map(str, _present(slots))) for slots in both)
            if row_numbers != launch_numbers:
                assumptions.append(f"{name} slots {launch_numbers} of the launch are slots {row_numbers} of the row")
            compared = without_absent
        assumptions += compared.assumptions
    return LaunchComparison(assumptions=tuple(assumptions))


def _present(slots: Sequence[_Words]) -> list[int]:
    """Returns the numbers of the slots with dimensions."""
    return [number for number, slot in enumerate(slots) if slot[0]]


def _compare_slots(name: str, row_slots: Sequence[_Words], launch_slots: Sequence[_Words]) -> LaunchComparison:
    """Compares all inputs, or all outputs."""
    assumptions: list[str] = []
    has_dimensions = any(shape for shape, _, _ in row_slots)
    for number, (row, launch) in enumerate(zip_longest(row_slots, launch_slots, fillvalue=_ABSENT)):
        slot = f"{name} slot {number}"
        if number >= len(row_slots):
            assumptions.append(f"the launch has {_text(launch)} in {slot}, which the row does not have")
            continue
        if not (_same_shape(row, launch) and _same_format(row, launch)):
            # A leading axis of size 1 changes neither layout nor broadcasting.
            accepted = (
                _same_format(row, launch)
                and _same_dtype(row, launch)
                and _without_leading_ones(row[0]) == _without_leading_ones(launch[0]) != ""
            )
        elif not _same_dtype(row, launch):
            no_dimensions = not (row[0] or launch[0]) and (name == "input" or has_dimensions)
            accepted = no_dimensions or (name == "input" and _are_lists(row, launch))
        else:
            continue
        difference = f"{slot} is {_text(row)} in the row, and {_text(launch)} ran"
        if not accepted:
            return LaunchComparison(difference)
        assumptions.append(difference)
    return LaunchComparison(assumptions=tuple(assumptions))


def _text(words: _Words) -> str:
    shape, dtype, form = words
    return f"({shape}) {dtype} {form}".strip() if shape or dtype else "absent"


def _are_lists(*slots: _Words) -> bool:
    """Returns whether slots are lists that describe a call: few whole numbers, such as axes or sizes."""
    return all(
        dtype in _LIST_DTYPES and "," not in shape and (parse_whole(shape or "1") or 0) <= _LONGEST_LIST
        for shape, dtype, _ in slots
    )


def _same_dtype(row: _Words, launch: _Words) -> bool:
    one, other = known_dtype(row[1]), known_dtype(launch[1])
    return one is None or other is None or one == other or {one.name, other.name} <= _PACKED


def _same_format(row: _Words, launch: _Words) -> bool:
    # `NC1HWC0:1` includes a number of groups.
    one, other = (form.partition(":")[0] for _, _, form in (row, launch))
    return not one or not other or one == other or {one, other} <= _PLAIN


def _same_shape(row: _Words, launch: _Words) -> bool:
    if row[0] == launch[0] or {row[0], launch[0]} == {"", "1"}:
        return True
    one, other = _sizes(row[0]), _sizes(launch[0])
    if one is None or other is None or _NZ not in (row[2], launch[2]):
        return False
    blocks, matrix = sorted((one, other), key=len, reverse=True)
    return len(blocks) == len(matrix) + 2 >= 4 and _is_blocked(blocks, matrix)


def _without_ones(slot: _Words) -> _Words:
    """Returns a slot without its axes of size 1."""
    shape, dtype, form = slot
    if form == _NZ:
        return slot
    return ",".join(size for size in shape.split(",") if size != "1"), dtype, form


def _without_leading_ones(shape: str) -> str:
    """Returns a shape without leading axes of size 1."""
    while shape.startswith("1,"):
        shape = shape[2:]
    return shape


def _is_blocked(blocks: Sequence[int], matrix: Sequence[int]) -> bool:
    """Returns whether (..., a, b, c, d) are the blocks of a matrix (..., m, n): b blocks of c rows, a of d columns."""
    *outer, a, b, c, d = blocks
    *rest, m, n = matrix
    return outer == rest and 0 not in (c, d) and (math.ceil(n / d), math.ceil(m / c)) == (a, b)


def _sizes(shape: str) -> list[int] | None:
    sizes = [parse_whole(word) for word in shape.split(",")] if shape else []
    return None if None in sizes else [size for size in sizes if size is not None]


def canonical_form(row: Mapping[str, str]) -> str | None:
    """Returns a text that is equal for matrix products (M,K; N,K -> M,N) which differ only in transposition.

    A transposed operand is another case with another duration; the text finds a row if none matches exactly. Dtypes,
    formats and further inputs (a bias) count.

    Args:
        row: the cells by column name.

    Returns:
        None if the row is not a product of two matrices, or K is ambiguous.
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
    """Returns rows and columns of a matrix; FRACTAL_NZ with shape (a, b, c, d) has b*c and a*d."""
    sizes = [size for word in shape.split(",") if (size := parse_whole(word)) is not None]
    if len(sizes) != shape.count(",") + 1:
        return None
    if form == _NZ and len(sizes) == 4:
        return sizes[1] * sizes[2], sizes[0] * sizes[3]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None
