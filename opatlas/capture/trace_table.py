"""A row for each complete event of a trace, in columns that are known when all events were seen."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import IO, Any

OP_NAME, KERNEL_TYPE, DURATION_US, SHAPES = "op_name", "kernel_type", "dur_us", "shapes"
#: Then follow the args, each in a column of its name, in the order in which they appear.
COLUMNS = (OP_NAME, KERNEL_TYPE, DURATION_US, SHAPES, "ts_us", "pid", "tid", "category")
#: Args that come after so many others share the last column, as JSON.
_MOST_COLUMNS = 500
MORE_ARGS = "more_args"
_TYPE_ARGS = ("kernel_type", "Kernel Type", "OP Type", "Op Type", "op_type", "Type")
_SHAPE_ARGS = ("Input Shapes", "Input Dims", "input_shapes", "Input shapes", "shapes")
_COMPLETE = "X"
_MALFORMED_NAMED = 20
_CONTROL = re.compile("[\r\0]")
_ON_ONE_LINE = str.maketrans({"\r": "\\r", "\n": "\\n", "\0": "\\0"})
#: JSON can hold half of a surrogate pair, and UTF-8 cannot.
_ERRORS = "backslashreplace"


@dataclass
class Account:
    """What became of the events.

    Attributes:
        rows: complete events, each a row.
        other: events of other phases, by phase: they have no duration of their own.
        malformed: the first events that should be rows and are not, each as `event 7: why`.
        malformed_count: all of them.
        columns: of the table.
    """

    rows: int = 0
    other: Counter[str] = field(default_factory=Counter)
    malformed: list[str] = field(default_factory=list)
    malformed_count: int = 0
    columns: list[str] = field(default_factory=lambda: list(COLUMNS))


class TableWriter:
    """Writes rows as they come, and the header, with all columns, in the end.

    Rows go to a scratch file. One that was written before a column appeared lacks its last cells, and
    gets them when the rows are copied below the header.
    """

    def __init__(self, scratch: IO[bytes]) -> None:
        """`scratch`: an empty file to write and read."""
        self.account = Account()
        self._scratch = scratch
        self._text = io.TextIOWrapper(scratch, encoding="utf-8", errors=_ERRORS, newline="")
        self._writer = csv.writer(self._text, lineterminator="\n")
        #: The column of each arg, by the arg's name.
        self._places: dict[str, int] = {}
        self._more: int | None = None
        #: Where in the file rows of so many columns begin.
        self._widths = [(0, len(COLUMNS))]

    def add(self, events: Iterable[Any]) -> None:
        """Adds the complete ones among the events."""
        for number, event in enumerate(events, start=1):
            if not isinstance(event, dict):
                self._reject(number, "not a JSON object")
                continue
            phase = event.get("ph")
            if phase != _COMPLETE:
                self.account.other[str(phase)] += 1
                continue
            duration = _text(event.get("dur"))
            if not duration:
                self._reject(number, "a complete event without dur")
            elif not _is_duration(duration):
                self._reject(number, f"dur is {duration!r}, not a number of microseconds, 0 or more")
            else:
                try:
                    cells = self._cells(event, duration)
                except RecursionError:
                    self._reject(number, "its values are nested too deep")
                    continue
                self._writer.writerow(cells)
                self.account.rows += 1

    def _cells(self, event: Mapping[str, Any], duration: str) -> list[str]:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name = _text(event.get("name"))
        cells = [name, _kernel_type(name, args), duration, _shapes(args)]
        cells += [_text(event.get(key)) for key in ("ts", "pid", "tid", "cat")]
        cells += [""] * (len(self.account.columns) - len(COLUMNS))
        more = {}
        for key, value in args.items():
            place = self._places.get(key)
            if place is None and len(self.account.columns) >= _MOST_COLUMNS:
                more[key] = value
                continue
            text = _text(value)
            if place is None:
                place = self._places[key] = self._new_column(_column(key))
                cells.append("")
            cells[place] = text
        if more:
            if self._more is None:
                self._more = self._new_column(MORE_ARGS)
                cells.append("")
            cells[self._more] = _text(more)
        return cells

    def _new_column(self, name: str) -> int:
        self._text.flush()
        place = len(self.account.columns)
        # Two args may differ in letters that a header cannot have.
        while name in self.account.columns:
            name += "_"
        self.account.columns.append(name)
        start = self._scratch.tell()
        if self._widths[-1][0] == start:
            self._widths.pop()
        self._widths.append((start, place + 1))
        return place

    def _reject(self, number: int, problem: str) -> None:
        self.account.malformed_count += 1
        if len(self.account.malformed) < _MALFORMED_NAMED:
            self.account.malformed.append(f"event {number}: {problem}")

    def finish(self, target: IO[bytes]) -> None:
        """Writes header and rows."""
        self._text.flush()
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(self.account.columns)
        target.write(header.getvalue().encode(errors=_ERRORS))
        self._scratch.seek(0)
        for (_, width), (end, _) in pairwise([*self._widths, (-1, 0)]):
            lacking = b"," * (len(self.account.columns) - width)
            if lacking:
                self._copy_until(end, lacking, target)
            else:
                shutil.copyfileobj(self._scratch, target)

    def _copy_until(self, end: int, lacking: bytes, target: IO[bytes]) -> None:
        """Copies rows up to a place in the scratch file, with more empty cells."""
        quotes = 0
        while self._scratch.tell() < end:
            line = self._scratch.readline()
            quotes += line.count(b'"')
            # A line end between quotes is part of a cell.
            target.write(line if quotes % 2 else line[:-1] + lacking + b"\n")


def _is_duration(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


def _column(name: str) -> str:
    """The column of an arg, on one line; those that are called as one of the event's own get a prefix."""
    name = name.encode(errors=_ERRORS).decode().translate(_ON_ONE_LINE)
    return f"args.{name}" if name in COLUMNS or name == MORE_ARGS else name


def _kernel_type(name: str, args: Mapping[str, Any]) -> str:
    for key in _TYPE_ARGS:
        if key in args:
            return _text(args[key])
    # Kernels of an NPU are called aclnnMatmul_MatMulV3Common_MatMulV3: API, variant, type.
    return name.rpartition("_")[2] if name.startswith("aclnn") and name.count("_") >= 2 else ""


def _shapes(args: Mapping[str, Any]) -> str:
    """As in the database: `136,7168;7168,3584`."""
    for key in _SHAPE_ARGS:
        if key in args:
            value = args[key]
            return ";".join(_slots(value)) if isinstance(value, list) else _text(value).strip('"')
    return ""


def _slots(shapes: Sequence[Any]) -> list[str]:
    """Each tensor's dimensions; those of a list of tensors one after the other."""
    slots = []
    for shape in shapes:
        if isinstance(shape, list) and any(isinstance(part, list) for part in shape):
            slots += _slots(shape)
        else:
            slots.append(",".join(map(_text, shape)) if isinstance(shape, list) else _text(shape))
    return slots


def _text(value: Any) -> str:
    if isinstance(value, str):
        # Not every version of csv quotes a lone carriage return, or reads a NUL.
        return value.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\\0") if _CONTROL.search(value) else value
    if value is None:
        return ""
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=float)
