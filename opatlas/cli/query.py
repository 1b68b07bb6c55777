"""`opatlas query`: the duration of a call; `opatlas export`: the stored rows for other tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from opatlas.ask.query.database import OpenDatabase, open as open_database
from opatlas.ask.query.implementation_answers import ANSWER_COLUMNS, COMPOSITION_WORDS
from opatlas.ask.query.predictor import folder
from opatlas.ask.query.question import How, QueryResult
from opatlas.data.csv_files import read_table, write_atomically, write_text
from opatlas.errors import OpAtlasError, UsageError
from opatlas.formats import microseconds
from opatlas.installation import EXPORTS, extensions
from opatlas.progress import note_after, track
from opatlas.row.attention import read_sequences
from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.communication import BY_NAME, is_communication
from opatlas.row.location import database_folder
from opatlas.row.signature import kernel_types_meant
from opatlas.row.slots import dtype_name, known_dtype
from opatlas.show.parameters import Names
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.text import parse_whole

if TYPE_CHECKING:
    import pandas as pd

#: The word for attention by its sequences and heads.
_ATTENTION = "attention"
#: Between the sizes of a shape.
_BY = re.compile(r"(?<=\d)[xX](?=\d)")


def query(
    database: Annotated[str, Parameter(name="DB")],
    kernel_type: Annotated[str, Parameter(name="TYPE")],
    /,
    *shapes: Annotated[str, Parameter(name="SHAPE")],
    dtypes: Names = (),
    file: Path | None = None,
    implementation: Names = (),
) -> Result:
    """The duration of a call: measured where the row is stored, else predicted, with a 90 % interval.

    Exit status: 0 answered; 1 a question has no answer, or a file could not be read; 2 wrong usage.

    Args:
        database: folder of {KernelType}.csv files, or name of a device.
        kernel_type: kernel type, as the CSVs are called, in any case and without its version: rms_norm, matmul; a
            collective such as all_reduce; or attention.
        shapes: shapes of the inputs in their order, such as 48x18432; for a collective the bytes of the message, and
            the number of devices; for attention sequences and heads of queries and keys, 64x1@4096 64/8 or 64/8/128
            with the size of a head.
        dtypes: dtype of the first input, or of each input (default: those of the most rows).
        file: CSV with the identity columns of the database: a question in each line.
        implementation: implementations that answer, of which the fastest (default: all that were measured).
    """
    if (file is None) == (not shapes):
        raise UsageError("give either shapes, such as 48,18432 7168,18432, or --file FILE")
    if file is not None and dtypes:
        raise UsageError("the rows of --file have dtypes: leave out --dtypes")
    opened = open_database(database)
    kernel_type = kernel_types_meant(kernel_type, [*opened.kernel_types(), *BY_NAME, _ATTENTION])[0]
    shapes = tuple(_BY.sub(",", word) if "@" not in word else word for word in shapes)
    with note_after(f"fitting models to the rows: some seconds, once ({folder()} keeps them)"):
        if file is not None:
            return _answer_file(opened, kernel_type, file, implementation)
        answer = _answer(opened, kernel_type, shapes, dtypes, implementation)
    return Result(list(_parts(answer)), json=_plain(answer))


def _answer(
    database: OpenDatabase, name: str, words: tuple[str, ...], dtypes: tuple[str, ...], implementation: tuple[str, ...]
) -> QueryResult:
    if name == _ATTENTION:
        return _attention(database, words, dtypes, implementation)
    if name not in BY_NAME:
        return database.query(name, words, dtypes=list(dtypes), implementation=implementation)
    if implementation:
        raise UsageError("--implementation does not choose a library of collectives: leave it out")
    numbers = [parse_whole(word) or 0 for word in words]
    if len(numbers) != 2 or min(numbers) < 1:
        raise UsageError(f"{name} {' '.join(words)}: give the bytes of the message and the devices, such as 1048576 2")
    return database.collective(name, bytes=numbers[0], devices=numbers[1], dtype=(*dtypes, "BF16")[0])


def _attention(
    database: OpenDatabase, words: tuple[str, ...], dtypes: tuple[str, ...], implementation: tuple[str, ...]
) -> QueryResult:
    sizes = [parse_whole(word) or 0 for word in (*"".join(words[1:2]).split("/"), "128")]
    if len(words) != 2 or min(sizes) < 1 or not 3 <= len(sizes) <= 4 or len(groups := read_sequences(words[0])) > 1:
        raise UsageError(f"attention {' '.join(words)}: give sequences of one length and heads, such as 64x1@4096 64/8")
    ((count, queries, keys),) = groups
    asked = {"sequences": count, "queries": queries, "keys": keys}
    asked |= dict(zip(("heads", "kv_heads", "head_size"), sizes, strict=False))
    return database.attention(**asked, dtype=(*dtypes, "BF16")[0], implementation=list(implementation))


def _plain(answer: QueryResult) -> dict[str, object]:
    return {**asdict(answer), "run_ids": answer.run_ids, "rivals": [_plain(rival) for rival in answer.rivals]}


def _parts(answer: QueryResult) -> Iterator[Part]:
    low, high = answer.interval_us
    yield Fields(
        {
            "duration(us)": (microseconds(answer.duration_us), f"90 %: {microseconds(low)} to {microseconds(high)}"),
            "how": str(answer.how),
            "implementation": answer.implementation,
            "device": answer.device,
            "source": answer.source,
            "cache": answer.cache,
            "instrument": answer.instrument,
            "quality": answer.quality,
            "machines": answer.machines or None,
            "note": answer.note,
        },
        title=answer.kernel_type,
    )
    yield Table(
        ("row", "duration(us)", "run"),
        [(row.case_id, row.duration_us, row.run_id) for row in answer.rows],
        title="row" if answer.how is How.MEASURED else "nearest rows",
    )
    yield Table(
        ("implementation", "duration(us)", "how", "device", "source"),
        [(each.implementation, each.duration_us, str(each.how), each.device, each.source) for each in answer.rivals],
        title="other implementations and devices",
    )


def _answer_file(database: OpenDatabase, kernel_type: str, file: Path, implementation: tuple[str, ...]) -> Result:
    import pandas as pd

    questions = read_table(file, kernel_type).to_pandas()
    answers = database.query_many(kernel_type, questions, implementation=implementation)
    table = pd.concat([questions.drop(columns=list(ANSWER_COLUMNS), errors="ignore"), answers], axis=1)
    shown = ("Input Shapes", "Expert Load", *ANSWER_COLUMNS[:5], "Note")
    columns = [
        Column(name, microseconds if name in ANSWER_COLUMNS[:3] else str, wide=name not in shown)
        for name in map(str, table.columns)
    ]
    rows = [[None if value != value else value for value in row] for row in table.to_numpy().tolist()]
    counts = {str(how): count for how, count in answers["How"].replace("", "no answer").value_counts().items()}
    untold = int((answers["Composition"] == COMPOSITION_WORDS[None]).sum())
    if untold:
        counts["may be compositions"] = untold
    told = Fields(counts, title="answers")
    return Result([Table(columns, rows, title=kernel_type), told], status=1 if (answers["How"] == "").any() else 0)


#: The cells of tensors, with the names of their columns in the long table.
_SLOTS = [f"{side}_{what}" for side in ("input", "output") for what in ("shapes", "dtypes", "formats")]
_CELLS = dict(zip(_SLOTS, (*INPUT_SLOTS, *OUTPUT_SLOTS), strict=True))
#: The columns of the long table, with their pandas dtypes; columns of tensors have the text of the CSVs.
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("kernel_type", "implementation", "id"), "string"),
    **dict.fromkeys(_SLOTS, "string"),
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


#: In the metadata of a Parquet file: the version of the columns. A further column does not change it.
_SCHEMA, _VERSION = b"opatlas_schema", b"1"


def _write_parquet(rows: pd.DataFrame, path: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(rows, preserve_index=False)
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), _SCHEMA: _VERSION}), path)


def export(
    database: Annotated[str, Parameter(name="DB")],
    definitions: Annotated[Path | None, Parameter(name="DEFINITIONS")] = None,
    /,
    *,
    output: Path,
) -> Result:
    """Write the stored rows for other tools: one typed table, durations in us; definitions; traces of DEFINITIONS.

    The table leaves out rows that cannot answer a question, as opatlas query does.

    Exit status: 0 written; 1 no row fits, or a file could not be read or written; 2 wrong usage.

    Args:
        database: folder of {KernelType}.csv files, or name of a device.
        definitions: what DB measured with `opatlas bench --tasks DEFINITIONS`: a folder or file of definitions of
            flashinfer-bench or SOL-ExecBench.
        output: FILE.parquet or FILE.csv of the table; FILE.jsonl of the traces; a new folder of definitions with their
            workloads, for flashinfer-bench and SOL-ExecBench.
    """
    if (output.suffix == ".jsonl") is (definitions is None):
        raise UsageError(f"--output {output}: name the definitions after {database} for FILE.jsonl, and for no other")
    if (writer := extensions(EXPORTS).get(output.suffix[1:] or "folder")) is not None:
        return writer.load()(database_folder(database), definitions, output)
    if output.suffix not in (".parquet", ".csv"):
        raise UsageError(f"--output {output}: end the name with .parquet, .csv, .jsonl for traces, or name a folder")
    opened = open_database(database)
    rows = long_table(opened)
    if rows.empty:
        raise OpAtlasError(f"{opened.path}: no row has a duration that answers (compositions do not): measure rows")
    if output.suffix == ".parquet":
        write_atomically(output, lambda temporary: _write_parquet(rows, temporary))
    else:
        write_text(output, rows.to_csv(index=False, lineterminator="\n"))
    written = Table(("file", "rows", "kernel types"), [(str(output), len(rows), rows["kernel_type"].nunique())])
    return Result([written])


def long_table(database: OpenDatabase) -> pd.DataFrame:
    """Returns the rows of all kernel types and implementations as one table with the columns COLUMNS.

    Collectives are those of the newest communication database of the device. Cells that a row lacks are missing.

    Raises:
        OpAtlasError: a table cannot be read.
    """
    # pandas takes as long to import as a query to answer.
    import pandas as pd

    tables = [_rows_of(each, kernel_type) for each, kernel_type in _sources(database)]
    table: pd.DataFrame = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    table = table.reindex(columns=list(COLUMNS)).astype(dict(COLUMNS))
    words = [name for name, dtype in COLUMNS.items() if dtype == "string"]
    return table.assign(**{name: table[name].replace("", pd.NA) for name in words})


def _sources(database: OpenDatabase) -> Iterator[tuple[OpenDatabase, str]]:
    """Yields the kernel types, each with its database; messages may be in a database of their own."""
    for kernel_type in track(database.kernel_types(), "export, kernel types"):
        yield database, kernel_type
    messages = database.messages
    if messages is not None and messages is not database:
        yield from ((messages, kernel_type) for kernel_type in messages.kernel_types())


def _rows_of(database: OpenDatabase, kernel_type: str) -> pd.DataFrame:
    import pandas as pd

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
