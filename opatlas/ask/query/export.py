"""The stored rows of a database for other tools: one long typed table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from opatlas.ask.query.database import OpenDatabase
from opatlas.data.csv_files import write_atomically
from opatlas.data.origin import are_one_device
from opatlas.progress import track
from opatlas.row.columns import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
)
from opatlas.row.communication import (
    is_communication,
)
from opatlas.row.slots import dtype_name, known_dtype

#: The columns of the long table, with their pandas dtypes; columns of tensors have the text of the CSVs.
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("kernel_type", "implementation", "id"), "string"),
    **dict.fromkeys(("input_shapes", "input_dtypes", "input_formats"), "string"),
    **dict.fromkeys(("output_shapes", "output_dtypes", "output_formats"), "string"),
    **dict.fromkeys(("dtype", "format"), "string"),
    **dict.fromkeys(("batch", "m", "n", "k"), "Int64"),
    **dict.fromkeys(("sequences", "queries", "keys", "pairs", "heads", "kv_heads", "head_size", "pages"), "Int64"),
    **dict.fromkeys(("message_bytes", "num_devices", "topology_tier", "bytes"), "Int64"),
    **dict.fromkeys(("duration_us", "median_us", "std_us", "tflops", "gbps"), "Float64"),
    **dict.fromkeys(("samples", "machines"), "Int64"),
    "machine_spread": "Float64",
    "composed": "boolean",
    **dict.fromkeys(("quality", "device", "source", "cache", "instrument", "run_id"), "string"),
}
_CELLS = {
    "input_shapes": INPUT_SHAPES,
    "input_dtypes": INPUT_DTYPES,
    "input_formats": INPUT_FORMATS,
    "output_shapes": OUTPUT_SHAPES,
    "output_dtypes": OUTPUT_DTYPES,
    "output_formats": OUTPUT_FORMATS,
}


def long_table(database: OpenDatabase) -> pd.DataFrame:
    """Returns the rows of all kernel types and implementations as one table with the columns COLUMNS.

    Collectives are those of the newest communication database of the device. Cells that a row lacks are missing.

    Raises:
        OpAtlasError: a table cannot be read.
    """
    tables = [_rows_of(each, kernel_type) for each, kernel_type in _sources(database)]
    table: pd.DataFrame = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    table = table.reindex(columns=list(COLUMNS)).astype(dict(COLUMNS))
    words = [name for name, dtype in COLUMNS.items() if dtype == "string"]
    table = table.assign(**{name: table[name].replace("", pd.NA) for name in words})
    return table


def of_other_devices(database: OpenDatabase) -> Counter[str]:
    """Returns the number of durations of other devices than the one that answers, which no table has, by device."""
    answers, counts = database.answers, Counter[str]()
    for kernel_type in database.kernel_types():
        for name in database.implementations:
            rows = answers.stored_rows(kernel_type, name)
            found = [*rows.left_out.values(), *(each for others in rows.others for each in others)]
            counts.update(each.device for each in found if not are_one_device(each.device, answers.device))
    return counts


def _sources(database: OpenDatabase) -> Iterator[tuple[OpenDatabase, str]]:
    """Yields the kernel types, each with its database; messages may be in a database of their own."""
    for kernel_type in track(database.kernel_types(), "export, kernel types"):
        yield database, kernel_type
    messages = database.messages
    if messages is not None and messages is not database:
        yield from ((messages, kernel_type) for kernel_type in messages.kernel_types())


def _rows_of(database: OpenDatabase, kernel_type: str) -> pd.DataFrame:
    parts = []
    for name in database.implementations:
        rows = database.answers.stored_rows(kernel_type, name)
        cells = {} if is_communication(kernel_type) else {own: rows.cells(column) for own, column in _CELLS.items()}
        if len(rows):
            parts.append(rows.typed().assign(**cells))
    table: pd.DataFrame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    if "dtype" in table:
        table["dtype"] = table["dtype"].map(_dtype)
    table["kernel_type"] = kernel_type
    return table


def _dtype(word: object) -> str:
    known = known_dtype(str(word))
    return dtype_name(str(word)) if known is None else known.name


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Writes a table as Parquet. Raises OpAtlasError."""
    content = pa.Table.from_pandas(table, preserve_index=False)

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            pyarrow.parquet.write_table(content, file)

    write_atomically(path, write)
