"""`opatlas query`: the duration of a call, measured or predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.database import open as open_database
from opatlas.ask.query.implementation_answers import ANSWER_COLUMNS, COMPOSITION_WORDS
from opatlas.ask.query.predictor import folder
from opatlas.ask.query.result import How, QueryResult
from opatlas.data.csv_files import read_frame, write_text
from opatlas.errors import OpAtlasError, UsageError
from opatlas.formats import microseconds
from opatlas.progress import note_after
from opatlas.row.communication import BY_NAME
from opatlas.show.parameters import Names
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.text import parse_whole

#: The rows that the text names.
_SHOWN = 3


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
        kernel_type: kernel type, as the CSVs are called, or a collective such as all_reduce.
        shapes: shapes of the inputs in their order, such as 48,18432; for a collective the bytes of the message, and
            the number of devices.
        dtypes: dtype of the first input, or of each input (default: those of the most rows).
        file: CSV with the identity columns of the database: a question in each line.
        implementation: implementations that answer, of which the fastest (default: all that were measured).
    """
    if (file is None) == (not shapes):
        raise UsageError("give either shapes, such as 48,18432 7168,18432, or --file FILE")
    if file is not None and dtypes:
        raise UsageError("the rows of --file have dtypes: leave out --dtypes")
    opened = open_database(database)
    with note_after(f"fitting models to the rows: some seconds, once ({folder()} keeps them)"):
        if file is not None:
            return _answer_file(opened, kernel_type, file, implementation)
        ask = _message if kernel_type in BY_NAME else _call
        answer = ask(opened, kernel_type, shapes, dtypes, implementation)
    return Result(list(_parts(answer)), json=_plain(answer))


def _call(
    database: OpenDatabase,
    kernel_type: str,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    implementation: tuple[str, ...],
) -> QueryResult:
    return database.query(kernel_type, shapes, dtypes=list(dtypes), implementation=implementation)


def _message(
    database: OpenDatabase,
    name: str,
    words: tuple[str, ...],
    dtypes: tuple[str, ...],
    implementation: tuple[str, ...],
) -> QueryResult:
    if implementation:
        raise UsageError("--implementation does not choose a library of collectives: leave it out")
    numbers = [parse_whole(word) or 0 for word in words]
    if len(numbers) != 2 or min(numbers) < 1:
        raise UsageError(
            f"{name} {' '.join(words)}: give two whole numbers above 0, the bytes of the message and the devices, such "
            "as 1048576 2"
        )
    size, devices = numbers
    if dtypes:
        return database.collective(name, bytes=size, devices=devices, dtype=dtypes[0])
    return database.collective(name, bytes=size, devices=devices)


def _plain(answer: QueryResult) -> dict[str, object]:
    return {**asdict(answer), "run_ids": answer.run_ids, "rivals": [_plain(rival) for rival in answer.rivals]}


def _parts(answer: QueryResult) -> Iterator[Part]:
    low, high = answer.interval_us
    yield Fields(
        {
            "duration(us)": (microseconds(answer.duration_us), f"90 %: {microseconds(low)} to {microseconds(high)}"),
            "how": str(answer.how),
            "implementation": answer.implementation,
            "device": answer.device or None,
            "source": answer.source,
            "cache": answer.cache or None,
            "instrument": answer.instrument or None,
            "quality": answer.quality or None,
            "machines": answer.machines or None,
            "note": answer.note or None,
        },
        title=answer.kernel_type,
    )
    us = Column("duration(us)", microseconds)
    yield Table(
        ("row", us, "run"),
        [(row.case_id, row.duration_us, row.run_id) for row in answer.rows[:_SHOWN]],
        title="row" if answer.how is How.MEASURED else "nearest rows",
        left_out=len(answer.rows[_SHOWN:]),
    )
    if answer.rivals:
        yield Table(
            ("implementation", us, "how", "device", "source"),
            [
                (each.implementation, each.duration_us, str(each.how), each.device, each.source)
                for each in answer.rivals
            ],
            title="other implementations and devices",
        )


def _answer_file(database: OpenDatabase, kernel_type: str, file: Path, implementation: tuple[str, ...]) -> Result:
    import pandas as pd

    questions = read_frame(file, kernel_type)
    answers = database.query_many(kernel_type, questions, implementation=implementation)
    table = pd.concat([questions.drop(columns=list(ANSWER_COLUMNS), errors="ignore"), answers], axis=1)
    shown = ("Input Shapes", *ANSWER_COLUMNS[:5])
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


def export(database: Annotated[str, Parameter(name="DB")], /, *, output: Path) -> Result:
    """Write the stored rows as one typed table for other tools, durations in us.

    Rows that cannot answer a question are left out, as in opatlas query.

    Exit status: 0 written; 1 no row fits, or a file could not be read or written; 2 wrong usage.

    Args:
        database: folder of {KernelType}.csv files, or name of a device.
        output: FILE.parquet or FILE.csv.
    """
    # pandas takes as long to import as a query to answer.
    from opatlas.ask.query.export import long_table, of_other_devices, write_parquet

    if output.suffix not in (".parquet", ".csv"):
        raise UsageError(f"--output {output}: end the name with .parquet or .csv")
    opened = open_database(database)
    rows = long_table(opened)
    if rows.empty:
        raise OpAtlasError(f"{opened.path}: no row has a duration: nothing was written")
    if output.suffix == ".parquet":
        write_parquet(rows, output)
    else:
        write_text(output, rows.to_csv(index=False, lineterminator="\n"))
    written = Table(("file", "rows", "kernel types"), [(str(output), len(rows), rows["kernel_type"].nunique())])
    left_out = of_other_devices(opened)
    return Result([written, Fields(left_out, title="left out, of other devices")] if left_out else [written])
