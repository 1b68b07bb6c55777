"""The rows of a kernel type, with and without durations, as columns in few characters for JavaScript."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.implementation_answers import COMPOSITION_WORDS
from opatlas.errors import OpAtlasError
from opatlas.row import columns as col
from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.row.quality import Quality, Source
from opatlas.row.roofline import row_work
from opatlas.row.slots import dtype_name, known_dtype
from opatlas.row.table import Row

#: Digits of a number.
_DIGITS = 6


def number_column(values: Iterable[Any]) -> dict[str, Any] | None:
    """Returns a column of numbers of 6 digits, null for a row without a number; None if no row has a number."""
    numbers = [_number(value) for value in values]
    return {"numbers": numbers} if any(number is not None for number in numbers) else None


def _number(value: Any) -> float | int | None:
    if value is None or value is pd.NA or isinstance(value, str):
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    if number.is_integer() and abs(number) < 2**53:
        return int(number)
    return float(f"{number:.{_DIGITS}g}")


def word_column(values: Sequence[str]) -> dict[str, Any] | None:
    """Returns a column of words, as codes where they repeat; None if all are empty."""
    codes = {word: code for code, word in enumerate(dict.fromkeys(values))}
    if not any(codes):
        return None
    if len(codes) * 2 > len(values):
        return {"words": list(values)}
    return {"codes": [codes[word] for word in values], "of": list(codes)}


def columns_of(
    columns: Mapping[str, Sequence[Any]] | pd.DataFrame, words: Collection[str] | None = None
) -> dict[str, Any]:
    """Returns columns of equal length for JavaScript, without empty ones.

    Args:
        words: the columns of words; None: those in which a cell is a text.
    """
    found: dict[str, Any] = {}
    size = 0
    for name, values in columns.items():
        cells = values.tolist() if isinstance(values, pd.Series) else list(values)
        size = len(cells)
        is_words = any(isinstance(cell, str) for cell in cells) if words is None else name in words
        column = word_column([_word(cell) for cell in cells]) if is_words else number_column(cells)
        if column is not None:
            found[str(name)] = column
    return {"rows": size, "columns": found}


def _word(cell: Any) -> str:
    return "" if cell is None or cell is pd.NA or cell != cell else str(cell)


#: Columns of words, in the order of the table.
WORDS: tuple[str, ...] = (
    *("id", "input_shapes", "output_shapes", "dtype", "format", "implementation"),
    *("status", "reason", "quality", "composed", "cache", "instrument", "run_id", "verdict", "origin", "device"),
)
_CELLS = {
    "input_shapes": col.INPUT_SHAPES,
    "output_shapes": col.OUTPUT_SHAPES,
    "status": col.STATUS,
    "reason": col.STATUS_REASON,
    "quality": col.QUALITY,
    "cache": col.CACHE_STATE,
    "instrument": col.INSTRUMENT,
}
#: What a row without status or quality has instead.
NEVER_RUN, NOT_JUDGED = "never run", "not judged"

#: Further cells of the rows that answer, by kernel type (`ReportPage.row_cells`).
MoreCells = Mapping[str, Sequence[Mapping[str, Any]]]


def _origin(captured: bool) -> str:
    return Source.CAPTURED.value if captured else Source.REPLAYED.value


def durations_of(database: OpenDatabase, implementation: str) -> list[tuple[str, str, str, int]]:
    """Returns how many durations were captured or replayed, on which device, by what; the most frequent first."""
    durations = Counter[tuple[str, str, str]]()
    for kernel_type in database.kernel_types():
        try:
            stored = database.answers.stored_rows(kernel_type, implementation)
        except OpAtlasError:
            # Told where the kernel type is shown.
            continue
        for captured, device, by in zip(stored.captured, stored.devices, stored.cells(col.IMPLEMENTATION), strict=True):
            durations[_origin(captured), device, "" if captured else by] += 1
        durations.update((_origin(each.is_captured), each.device, "") for each in stored.left_out.values())
    return [(*names, rows) for names, rows in durations.most_common()]


def row_table(database: OpenDatabase, kernel_type: str, more: Mapping[str, Iterable[MoreCells]]) -> pd.DataFrame:
    """Returns the rows of a kernel type in each implementation; of equal rows the first.

    The columns are WORDS and those of `AnsweringRows.typed`; noise, machine_spread and interval (half of its width) in
    percent, bus_gbps of a message.

    Args:
        more: further cells, by implementation.

    Raises:
        TableError: a CSV cannot be read.
    """
    tables = []
    for name in database.implementations:
        stored = database.answers.stored_rows(kernel_type, name)
        tables.append(_rows_of(stored, [each[kernel_type] for each in more[name] if kernel_type in each]))
    table: pd.DataFrame = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    return table


def _rows_of(stored: AnsweringRows, more: Sequence[Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    answering: dict[str, dict[str, Any]] = {}
    half_widths = (stored.half_widths(stored.found, same_machine=False) * 100).tolist()
    for place, typed in reversed([*enumerate(stored.typed().to_dict("records"))]):
        line = {str(name): value for name, value in typed.items()}
        captured = bool(stored.captured[place])
        line |= {"origin": _origin(captured), "device": stored.devices[place], "interval": half_widths[place]}
        for cells in more:
            line |= cells[place]
        # A captured duration is of no implementation.
        answering[line["id"]] = line | ({"implementation": _origin(captured)} if captured else {})
    lines: list[dict[str, Any]] = []
    for position in sorted(stored.table.by_signature.values()):
        row = stored.table.row(position)
        line = dict(answering.get(row.case_id, {}))
        if not line:
            line = {name: size for name, size in row.sizes.items() if name != "operations"}
        if (other := stored.left_out.get(row.signature)) is not None:
            line |= {"origin": other.duration.source.value, "device": other.device}
        line |= {"id": row.case_id, **{name: row.cell(column) for name, column in _CELLS.items()}}
        line.setdefault("implementation", stored.label)
        line.setdefault("duration_us", None)
        lines.append({**line, **_shown(row, line)})
    table: pd.DataFrame = pd.DataFrame(lines, columns=None if lines else ["id", "duration_us", *WORDS[1:]])
    return table


def _shown(row: Row, line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the words and rates of a row that the pages show."""
    us: float | None = line["duration_us"]
    shown: dict[str, Any] = {"status": line["status"] or NEVER_RUN, "quality": "", "composed": ""}
    if isinstance(word := line.get("dtype"), str):
        known = known_dtype(word)
        shown["dtype"] = dtype_name(word) if known is None else known.name
    if us is None:
        return shown
    is_composition = row.table.replayed.composed[row.position]
    told = composed if isinstance(composed := line["composed"], bool) else None
    shown |= {
        "quality": Quality.COMPOSITION.value if is_composition else line["quality"] or NOT_JUDGED,
        "composed": COMPOSITION_WORDS[told],
        "noise": line["std_us"] / us * 100,
    }
    if (spread := line.get("machine_spread")) is not None:
        shown["machine_spread"] = spread * 100
    collective = BY_KERNEL_TYPE.get(row.kernel_type)
    sizes = line.get("message_bytes"), line.get("num_devices")
    if collective is not None and isinstance(sizes[0], int) and isinstance(sizes[1], int):
        shown["bus_gbps"] = collective.bus_bandwidth_gbps(sizes[0], sizes[1], us)
    return shown


def moves_each_byte_once(database: OpenDatabase, kernel_type: str) -> bool:
    """Returns whether a kernel reads or writes each byte of its tensors once, as a roofline supposes."""
    for name in database.implementations:
        for row in database.answers.stored_rows(kernel_type, name):
            return row_work(kernel_type, row.cells) is not None
    return False
