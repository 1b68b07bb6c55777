"""Asks a database for the duration of a call: measured where the row is stored, else predicted, with a 90 % interval.

DB is a folder or the name of a device. SHAPE is the shape of an input, such as 48,18432; inputs follow in their order.
For a collective, TYPE is its name (all_reduce), and two numbers follow: the bytes of the message, and the devices.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.errors import OpAtlasError, UsageError
from opatlas.model.communication import BY_NAME
from opatlas.model.quality import Quality
from opatlas.options import names
from opatlas.progress import hint_after
from opatlas.query.answers import ANSWER_COLUMNS, COMPOSITION_WORDS
from opatlas.query.compositions import NOT_TOLD
from opatlas.query.database import OpenDatabase
from opatlas.query.database import open as open_database
from opatlas.query.result import How, NoAnswer, QueryResult
from opatlas.query.stored_rows import CAPTURED
from opatlas.store.csv_files import read_frame, write_rows
from opatlas.text import four_digits, parse_whole, pluralize, show, table_lines

#: The rows that the text names.
_SHOWN = 3
#: What a first question waits for.
_FITTING = "fitting models to the rows: some seconds, once (opatlas fit does it ahead)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 answered; 1 a question has no answer, or a file could not be read; 2 wrong usage"
    parser.add_argument("database", metavar="DB", help="folder of {KernelType}.csv files, or name of a device")
    parser.add_argument("kernel_type", metavar="TYPE", help="kernel type, as the CSVs are called, or a collective")
    parser.add_argument(
        "shapes",
        nargs="*",
        metavar="SHAPE",
        help="shapes of the inputs, or bytes and devices (required without --file)",
    )
    parser.add_argument(
        "--dtypes",
        type=names,
        default=(),
        metavar="NAME[,NAME...]",
        help="dtype of the first input, or of each input (default: those of the most rows)",
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="CSV with the identity columns of the database: a question in each line (default: the shapes)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="CSV of --file with the answers in further columns (default: the terminal)",
    )
    add_json(parser, "the answer with the rows that it comes from")
    parser.add_argument(
        "--implementation",
        type=names,
        default=(),
        metavar="NAME[,NAME...]",
        help="implementations that answer, of which the fastest (default: all that were measured)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Answers, and returns the exit status that the help explains. Raises OpAtlasError."""
    if (arguments.file is None) == (not arguments.shapes):
        raise UsageError("give either shapes, such as 48,18432 7168,18432, or --file FILE")
    if arguments.file is not None and (arguments.dtypes or arguments.json is not None):
        raise UsageError("the rows of --file have dtypes, and their answers are a CSV: leave out --dtypes and --json")
    if arguments.file is None and arguments.output is not None:
        raise UsageError("--output writes the answers to --file: leave it out, or write --json FILE")
    database = open_database(arguments.database)
    if arguments.file is not None:
        return _answer_file(database, arguments)
    with hint_after(_FITTING):
        answer = _message(database, arguments) if arguments.kernel_type in BY_NAME else _call(database, arguments)
    if not write_or_print_json(arguments.json, _plain(answer)):
        show("\n".join(_lines(answer)))
    return 0


def _call(database: OpenDatabase, arguments: argparse.Namespace) -> QueryResult:
    dtypes, implementation = list(arguments.dtypes), arguments.implementation
    try:
        return database.query(arguments.kernel_type, arguments.shapes, dtypes=dtypes, implementation=implementation)
    except NoAnswer as error:
        if not error.give or "dtypes" in error.give:
            raise
        raise OpAtlasError(f"{error}; a row of --file FILE has columns for it") from None


def _message(database: OpenDatabase, arguments: argparse.Namespace) -> QueryResult:
    numbers = [parse_whole(word) or 0 for word in arguments.shapes]
    if arguments.implementation:
        raise UsageError("--implementation does not choose a library of collectives: leave it out")
    if len(numbers) != 2 or min(numbers) < 1:
        raise UsageError(
            f"{arguments.kernel_type} {' '.join(arguments.shapes)}: give two whole numbers above 0, the bytes of the "
            "message and the devices, such as 1048576 2"
        )
    size, devices = numbers
    named = {"dtype": arguments.dtypes[0]} if arguments.dtypes else {}
    return database.collective(arguments.kernel_type, bytes=size, devices=devices, **named)


def _plain(answer: QueryResult) -> dict[str, object]:
    return {**asdict(answer), "run_ids": answer.run_ids, "rivals": [_plain(rival) for rival in answer.rivals]}


def _lines(answer: QueryResult) -> Iterator[str]:
    low, high = answer.interval_us
    interval = f"90 %: {four_digits(low)} to {four_digits(high)} us"
    yield f"{answer.kernel_type}  {four_digits(answer.duration_us)} us   {interval}   {answer.how}"
    yield f"  {'; '.join(_origin(answer))}"
    yield from (f"  {sentence}" for sentence in answer.note.split("; ") if sentence)
    measured = answer.how is How.MEASURED
    yield "  " + ("row" if measured else f"from {pluralize(len(answer.rows), 'row')}, the nearest:")
    rows = [(f"    {row.case_id}", f"{four_digits(row.duration_us)} us", row.run_id) for row in answer.rows[:_SHOWN]]
    yield from table_lines(rows)
    for rival in answer.rivals:
        own = f"{four_digits(rival.duration_us)} us, {rival.how}"
        yield f"  {', '.join(_ran(rival, answer))}: {own}"


def _ran(rival: QueryResult, answer: QueryResult) -> Iterator[str]:
    """Yields what ran for a rival, and where that differs from the answer, its device and its source."""
    yield rival.implementation + (f" on {rival.device}" if rival.device != answer.device else "")
    if rival.source != answer.source:
        yield rival.source


def _origin(answer: QueryResult) -> Iterator[str]:
    """Yields what ran, where and how it was measured, and how good the samples are."""
    yield answer.implementation + (f" on {answer.device}" if answer.device else "")
    yield answer.source
    if answer.cache:
        yield f"{answer.cache} cache"
    quality = f"{answer.quality} quality" if answer.quality == Quality.UNKNOWN.value else answer.quality
    yield from filter(None, ("" if answer.instrument == CAPTURED else answer.instrument, quality))
    if answer.machines:
        yield pluralize(answer.machines, "machine")


def _answer_file(database: OpenDatabase, arguments: argparse.Namespace) -> int:
    questions = read_frame(arguments.file, arguments.kernel_type)
    with hint_after(_FITTING):
        answers = database.query_many(arguments.kernel_type, questions, implementation=arguments.implementation)
    table = pd.concat([questions.drop(columns=list(ANSWER_COLUMNS), errors="ignore"), _text(answers)], axis=1)
    header: Sequence[str] = [str(name) for name in table.columns]
    rows = table.to_numpy().tolist()
    if arguments.output is not None:
        write_rows(arguments.output, header, rows)
    missing = int((answers["How"] == "").sum())
    if arguments.output is None:
        shown = [name for name in ("Input Shapes", *ANSWER_COLUMNS[:5]) if name in header]
        show("\n".join(table_lines([shown, *table[shown].to_numpy().tolist()])))
    counts = answers["How"].replace("", "no answer").value_counts()
    told = ", ".join(f"{count} {how}" for how, count in counts.items())
    show(f"{pluralize(len(answers), 'row')} of {arguments.file}: {told or 'nothing to answer'}")
    if untold := int((answers["Composition"] == COMPOSITION_WORDS[None]).sum()):
        show(f"of {pluralize(untold, 'answer')} {NOT_TOLD}")
    return 1 if missing else 0


def _text(answers: pd.DataFrame) -> pd.DataFrame:
    """Returns the answers as text cells, empty where there is none."""
    numbers = {name: answers[name].map(lambda us: "" if us != us else f"{us:.4f}") for name in ANSWER_COLUMNS[:3]}
    table: pd.DataFrame = answers.assign(**numbers)
    return table
