"""Values of options, and cells of shapes: numbers that are given as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opatlas.plugins.options import OPTIONS as OF_REPLAYS
from opatlas.plugins.options import THEORY_ROWS as OF_THEORY

from opatlas.errors import CellError
from opatlas.options import Option
from opatlas.row.slots import parse_slots

from .target import Target, expect

#: Parsers of values by name.
_READERS: dict[str, Callable[[str], Any]] = {
    option.name: option.argparse_arguments["type"]
    for option in (*OF_REPLAYS, *OF_THEORY)
    if isinstance(option, Option) and option.argparse_arguments.get("type") not in (None, Path)
}
_END = b"\x1e"
_VALUES = (b"1", b"2/8", b"2,4,8", b"0.5", b"4KB", b"MatMulV3,Add", b"fp16", b"2x4", b"1:100:5", b"3")


def _seeds() -> Iterator[bytes]:
    for name in _READERS:
        for value in _VALUES:
            yield name.encode() + _END + value


def _check(data: bytes, folder: Path) -> None:
    del folder
    name, _, value = data.partition(_END)
    # An unknown name reads as any: only the value counts.
    reader = _READERS.get(name.decode(errors="replace")) or _READERS[sorted(_READERS)[len(data) % len(_READERS)]]
    text = value.decode(errors="surrogateescape")
    try:
        read = reader(text)
    except (argparse.ArgumentTypeError, ValueError):
        # argparse reports either, with the name of the option.
        return
    expect(repr(read) == repr(reader(text)), "a second reading is another one")
    if any(isinstance(number, (int, float)) for number in (read if isinstance(read, (tuple, list)) else [read])):
        digits = [letter for letter in text if letter.isnumeric()]
        expect(all(letter.isascii() for letter in digits), f"{text!r} is taken as {read!r}")


def _seeds_of_shapes() -> Iterator[bytes]:
    for cells in (
        ("16,32;64,32", "DT_BF16;DT_BF16", "ND;ND"),
        ("", "FLOAT", "ND"),
        ('"3;;4"', "INT8;;INT8", "ND;NULL;NZ"),
    ):
        yield _END.join(cell.encode() for cell in cells)


def _shapes(data: bytes, folder: Path) -> None:
    del folder
    cells = [cell.decode(errors="replace") for cell in (data + _END * 2).split(_END)[:3]]
    try:
        slots = parse_slots(cells[0], cells[1], cells[2], ("shapes", "dtypes", "formats"))
    except CellError:
        return
    expect(slots == parse_slots(cells[0], cells[1], cells[2], ("s", "d", "f")), "a second reading is another one")
    expect(all(size >= 0 for slot in slots for size in slot.shape), "a dimension below 0")


OPTION_VALUES = Target(
    "options",
    "the value of an option is read, in ASCII digits, or refused as argparse wants it",
    _seeds,
    _check,
    (_END, b"KB", b"/", b"x"),
)
SHAPES = Target(
    "shapes", "the tensors of a row are read, or the cell refused", _seeds_of_shapes, _shapes, (_END, b";;", b"DT_")
)
