"""The rows of a kernel type as columns: those with a duration as `opatlas.query` types them, and the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from opatlas.model.communication import BY_KERNEL_TYPE
from opatlas.model.quality import Quality, is_composition
from opatlas.model.schema import (
    CACHE_STATE,
    INPUT_SHAPES,
    INSTRUMENT,
    OUTPUT_SHAPES,
    QUALITY,
    STAND_IN,
    STATUS,
    STATUS_REASON,
)
from opatlas.model.signature import make_case_id, signatures
from opatlas.model.slots import dtype_name, known_dtype
from opatlas.query.database import OpenDatabase
from opatlas.query.typed_rows import typed_rows
from opatlas.site.columns import number_column, word_column
from opatlas.store.database import Database

#: Columns of words, in the order of the table.
_WORDS: tuple[str, ...] = (
    *("id", "input_shapes", "output_shapes", "dtype", "format", "implementation"),
    *("status", "reason", "quality", "cache", "instrument", "run_id"),
)
_CELLS = {
    "input_shapes": INPUT_SHAPES,
    "output_shapes": OUTPUT_SHAPES,
    "status": STATUS,
    "reason": STATUS_REASON,
    "quality": QUALITY,
    "cache": CACHE_STATE,
    "instrument": INSTRUMENT,
    "stand_in": STAND_IN,
}
#: What a row without status or quality has instead.
NEVER_RUN, NOT_JUDGED = "never run", "not judged"


def row_table(database: OpenDatabase, kernel_type: str) -> pd.DataFrame:
    """Returns all rows of a kernel type, of each implementation: of equal rows the first.

    The columns: those of `typed_rows`, noise in percent, bus_gbps of a message, and the cells of _CELLS.

    Raises:
        TableError: a CSV cannot be read.
    """
    tables = [_rows_of(database, kernel_type, name) for name in database.implementations]
    table: pd.DataFrame = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    return table


def _rows_of(database: OpenDatabase, kernel_type: str, implementation: str) -> pd.DataFrame:
    frame = Database(database.implementations[implementation].path).read_or_empty(kernel_type).frame
    ids = [make_case_id(kernel_type, each) for each in signatures(kernel_type, frame)]
    empty = [""] * len(frame)
    cells = {own: frame[name].tolist() if name in frame.columns else empty for own, name in _CELLS.items()}
    table = pd.DataFrame({"id": ids, **cells}, dtype=object).drop_duplicates("id")
    stored = database.stored_rows(kernel_type, implementation)
    typed = typed_rows(stored)
    if len(typed):
        table = table.merge(typed.drop(columns="quality").drop_duplicates("id"), on="id", how="left", sort=False)
    else:
        table = table.assign(duration_us=np.nan)
    timed = table["duration_us"].notna()
    judged = table["quality"].where(table["quality"] != "", NOT_JUDGED).where(timed, "")
    composed = [is_composition(*pair) for pair in zip(table["quality"], table["stand_in"], strict=True)]
    table["quality"] = judged.mask(pd.Series(composed, index=table.index) & timed, Quality.COMPOSITION.value)
    table["status"] = table["status"].where(table["status"] != "", NEVER_RUN)
    table["implementation"] = stored.label
    if "dtype" in table:
        table["dtype"] = table["dtype"].map(_dtype, na_action="ignore")
    if "std_us" in table:
        table["noise"] = table["std_us"] / table["duration_us"] * 100
    collective = BY_KERNEL_TYPE.get(kernel_type)
    if collective is not None and "message_bytes" in table:
        table["bus_gbps"] = [
            collective.bus_bandwidth_gbps(int(size), int(devices), us) if us == us else np.nan
            for size, devices, us in zip(
                table["message_bytes"], table["num_devices"], table["duration_us"], strict=True
            )
        ]
    shown: pd.DataFrame = table.drop(columns="stand_in")
    return shown


def _dtype(word: object) -> str:
    known = known_dtype(str(word))
    return dtype_name(str(word)) if known is None else known.name


def columns_of(table: pd.DataFrame) -> dict[str, Any]:
    """Returns the columns of a table for JavaScript; those without any value are left out."""
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
