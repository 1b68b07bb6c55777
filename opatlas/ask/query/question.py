"""A question: the known cells of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opatlas.errors import CellError, OpAtlasError
from opatlas.row.columns import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    RUNTIME,
    RUNTIME_PREFIX,
)
from opatlas.row.slots import dtype_name, known_dtype, parse_slots, split_cell

#: A tensor's shape: "48,18432" or (48, 18432).
Shape = str | Sequence[int]
#: The shapes of several tensors: a cell of the CSV ("48,18432;7168,18432"), or a shape for each tensor.
Shapes = str | Sequence[Shape]
#: The dtypes or formats of several tensors: a cell of the CSV, or a word for each tensor.
Words = str | Sequence[str]


@dataclass(frozen=True)
class Question:
    """The known cells of a row.

    Attributes:
        kernel_type: the kernel type.
        cells: the known cells by column, normalized; `Input Shapes` is among them.
        dtype: the dtype of the first input, where only that is known; "" if unknown, or if the cells have all dtypes.
    """

    kernel_type: str
    cells: Mapping[str, str]
    dtype: str = ""


def ask(
    kernel_type: str,
    input_shapes: Shapes,
    *,
    dtypes: Words = "",
    formats: Words = "",
    output_shapes: Shapes = "",
    output_dtypes: Words = "",
    output_formats: Words = "",
    runtime: Mapping[str, object] | None = None,
) -> Question:
    """Returns a question.

    Args:
        dtypes: a word for each input, or one word: the dtype of the first input.
        runtime: values of Runtime columns, with or without the prefix ("num_heads" or "Runtime num_heads").

    Raises:
        OpAtlasError: a shape has no dimensions, a dtype is unknown, or a Runtime column is unknown.
    """
    shapes = _shapes_cell(input_shapes)
    names = _words(dtypes)
    for name in names:
        if name and known_dtype(name) is None:
            raise OpAtlasError(f"{kernel_type}: {name!r} is not a dtype: write BF16, FLOAT16, FLOAT8_E4M3FN, INT8, ...")
    single = len(names) == 1 and ";" in shapes
    cells = {
        INPUT_SHAPES: shapes,
        INPUT_DTYPES: "" if single else ";".join(names),
        INPUT_FORMATS: ";".join(_words(formats)),
        OUTPUT_SHAPES: _shapes_cell(output_shapes),
        OUTPUT_DTYPES: ";".join(_words(output_dtypes)),
        OUTPUT_FORMATS: ";".join(_words(output_formats)),
        **dict(_runtime_cells(kernel_type, runtime or {})),
    }
    _expect_numbers(kernel_type, cells)
    return Question(kernel_type, {column: cell for column, cell in cells.items() if cell}, names[0] if single else "")


def _shapes_cell(shapes: Shapes) -> str:
    if isinstance(shapes, str):
        return shapes.strip()
    if shapes and all(isinstance(size, int) for size in shapes):
        # One tensor, as a tuple of its sizes.
        return ",".join(map(str, shapes))
    return ";".join(shape.strip() if isinstance(shape, str) else ",".join(map(str, _sizes(shape))) for shape in shapes)


def _sizes(shape: object) -> Iterable[object]:
    if not isinstance(shape, Iterable):
        raise OpAtlasError(f"{shape!r} is not the shape of a tensor: write (48, 7168) or '48,7168'")
    return shape


def _words(words: Words) -> list[str]:
    cell = words if isinstance(words, str) else ";".join(words)
    return [] if not cell.strip() else [_name(word) for word in split_cell(cell)]


def _name(word: str) -> str:
    known = known_dtype(word)
    return dtype_name(word) if known is None else known.name


def _runtime_cells(kernel_type: str, runtime: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    for name, value in runtime.items():
        column = name if name.startswith(RUNTIME_PREFIX) else RUNTIME_PREFIX + name
        if column not in RUNTIME:
            known = ", ".join(each.removeprefix(RUNTIME_PREFIX) for each in RUNTIME)
            raise OpAtlasError(f"{kernel_type}: there is no column {column!r}: give one of {known}")
        words = map(str, value) if isinstance(value, Iterable) and not isinstance(value, str) else [str(value)]
        yield column, ",".join(words)


def _expect_numbers(kernel_type: str, cells: Mapping[str, str]) -> None:
    for column in (INPUT_SHAPES, OUTPUT_SHAPES):
        words = ";".join("BF16" if shape else "" for shape in split_cell(cells[column]))
        try:
            parse_slots(cells[column], words, "", (column, column, column))
        except CellError as error:
            raise OpAtlasError(f"{kernel_type}: {error}: write the shape of each tensor as 48,18432") from None
    if not any(split_cell(cells[INPUT_SHAPES])):
        raise OpAtlasError(f"{kernel_type}: no shape of an input: write each tensor as 48,18432")
