"""Fills the Runtime columns of attention rows from records of a serving process.

A capture does not tell how long the sequences of a call were, which an attention kernel's duration
depends on. Records do: one JSON object a line, as the recorder of docs/attention-runtime.md dumps them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Container, Sequence
from pathlib import Path

from opatlas.capture.attention import fill_rows, row_keys
from opatlas.capture.attention_records import JoinKey, Records
from opatlas.capture.summary import fill_summary, find_unmatched, write_unmatched
from opatlas.errors import OpAtlasError, looking_at_usage
from opatlas.files import expect_folder, size_mb
from opatlas.options import at_least
from opatlas.progress import Progress
from opatlas.store.database import Database, SessionLock
from opatlas.store.write_back import recover
from opatlas.text import print_problems, show

#: Lengths of a serving process differ from step to step, and each row takes as long to replay as another.
_MAX_ROWS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 every record was read (those without a row are reported); 1 lines were left out because "
        "of an error, or the database cannot be written; 2 nothing was done: wrong usage"
    )
    parser.add_argument(
        "--jsonl",
        type=Path,
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help="files of records, one a line; .jsonl, or .jsonl.gz",
    )
    parser.add_argument(
        "--database-path", type=Path, required=True, metavar="DIR", help="folder of the {KernelType}.csv files"
    )
    parser.add_argument(
        "--max-rows",
        type=at_least(0),
        default=_MAX_ROWS,
        metavar="N",
        help="distinct records that a captured row may become as many rows of; of more, N are drawn, the same "
        "ones again for the same records; 0: any number (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Fills; gives the exit status that the epilog of the help explains. Raises OpAtlasError."""
    database, limit, files = Database(arguments.database_path), arguments.max_rows, list(dict.fromkeys(arguments.jsonl))
    with looking_at_usage():
        expect_folder(database.path, "`opatlas ingest` makes a database")
        total_mb = sum(map(size_mb, files))
    # Sessions write rows back by their signatures, which change here.
    lock = SessionLock(database, run_id="fill-runtime", command="opatlas fill-runtime")
    lock.acquire(0, show)
    try:
        recovered = recover(database, own_run="") if database.journal_dir.is_dir() else []
        keys = list(row_keys(database))
        records = _read(files, total_mb, {key for key, _ in keys}, limit)
        outcome = fill_rows(database, records.matched, limit)
        alone = find_unmatched(records, outcome, keys)
        problems = [*(problem for found in recovered for problem in found.problems), *outcome.problems]
        report = None
        try:
            report = write_unmatched(database, alone, time.time())
        except OpAtlasError as error:
            problems.append(str(error))
    finally:
        lock.release()
    for found in recovered:
        if found:
            show(str(found))
    show(fill_summary(database.path, len(files), records, outcome, alone, limit))
    if report is not None:
        show(f"without a partner:\n  {report}")
    problems = [*records.problems, *problems]
    print_problems(records.malformed, total=records.malformed_count, what="malformed lines")
    print_problems(problems)
    print_problems(database.misspelt_columns(), word="warning")
    return 1 if records.malformed or problems else 0


def _read(files: Sequence[Path], total_mb: float, wanted: Container[JoinKey], limit: int) -> Records:
    records = Records()
    with Progress(total_mb, "MB", label="read") as progress:

        def on_step(read_mb: float) -> None:
            progress.advance(read_mb, f"{records.count:,} records")

        for path in files:
            try:
                records.add_file(path, wanted, limit, on_step)
            except OpAtlasError as error:
                records.problems.append(str(error))
    return records
