"""The rows of a kernel type as columns: rows with a duration, as `opatlas.ask.query` types them, and rows without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.implementation_answers import COMPOSITION_WORDS
from opatlas.row.columns import CACHE_STATE, INPUT_SHAPES, INSTRUMENT, OUTPUT_SHAPES, QUALITY, STATUS, STATUS_REASON
from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.row.quality import Quality
from opatlas.row.roofline import row_work
from opatlas.row.slots import dtype_name, known_dtype
from opatlas.row.table import Row
from opatlas.show.site.columns import number_column, word_column
from opatlas.show.site.diagnosis import RowJudge

#: Columns of words, in the order of the table.
_WORDS: tuple[str, ...] = (
    *("id", "input_shapes", "output_shapes", "dtype", "format", "implementation"),
    *("status", "reason", "quality", "composed", "cache", "instrument", "run_id", "verdict", "origin", "device"),
)
_CELLS = {
    "input_shapes": INPUT_SHAPES,
    "output_shapes": OUTPUT_SHAPES,
    "status": STATUS,
    "reason": STATUS_REASON,
    "quality": QUALITY,
    "cache": CACHE_STATE,
    "instrument": INSTRUMENT,
}
#: What a row without status or quality has instead.
NEVER_RUN, NOT_JUDGED = "never run", "not judged"


def row_table(database: OpenDatabase, kernel_type: str, judges: Mapping[str, RowJudge]) -> pd.DataFrame:
    """Returns the rows of a kernel type in each implementation; of equal rows the first.

    The columns are those of `AnsweringRows.typed` and `RowJudge.judge`, noise and machine_spread in percent, bus_gbps
    of a message, and the cells of _CELLS.

    Args:
        judges: by implementation.

    Raises:
        TableError: a CSV cannot be read.
    """
    tables = [_rows_of(database, kernel_type, name, judges[name]) for name in database.implementations]
    table: pd.DataFrame = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    return table


def _rows_of(database: OpenDatabase, kernel_type: str, implementation: str, judge: RowJudge) -> pd.DataFrame:
    stored = database.answers.stored_rows(kernel_type, implementation)
    judged = zip(stored.typed().to_dict("records"), judge.judge(stored), strict=True)
    typed = {line["id"]: {**line, **verdict} for line, verdict in reversed(list(judged))}
    lines: list[dict[str, Any]] = []
    for position in sorted(stored.table.by_signature.values()):
        row = stored.table.row(position)
        line: dict[str, Any] = {str(name): value for name, value in typed.get(row.case_id, {}).items()}
        if not line:
            line = {name: size for name, size in row.sizes.items() if name != "operations"}
        if (other := stored.left_out.get(row.signature)) is not None:
            line |= {"origin": other.durations.source.value, "device": other.device}
        line |= {"id": row.case_id, **{name: row.cell(column) for name, column in _CELLS.items()}}
        line.setdefault("implementation", stored.label)
        line.setdefault("duration_us", None)
        lines.append({**line, **_shown(row, line)})
    table: pd.DataFrame = pd.DataFrame(lines, columns=None if lines else ["id", "duration_us", *_WORDS[1:]])
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


def columns_of(table: pd.DataFrame) -> dict[str, Any]:
    """Returns the columns of a table for JavaScript, without empty columns."""
    found: dict[str, Any] = {}
    for name in (*_WORDS, *(each for each in table.columns if each not in _WORDS)):
        if name not in table:
            continue
        if name in _WORDS:
            column = word_column(table[name].fillna("").astype(str).tolist())
        else:
            column = number_column(table[name].tolist())
        if column is not None:
            found[str(name)] = column
    return {"rows": len(table), "columns": found}
