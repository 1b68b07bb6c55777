"""Brings profiler captures into a database: one CSV for each kernel type.

A capture does not hold the sequence lengths of attention calls. --attention-records fills the Runtime columns of
attention rows from records of the serving process: JSON objects, one a line (docs/captures.md).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict
from pathlib import Path

from opatlas.capture.attention import FillResult, fill_rows, row_keys
from opatlas.capture.attention_records import JoinKey, Records
from opatlas.capture.capture_discovery import find_captures, skipped_files, unparsed_beside
from opatlas.capture.ingest import IngestRequest, IngestResult, ingest_captures
from opatlas.capture.manifest import CaptureVersions
from opatlas.capture.summary import (
    captures_as_json,
    fill_summary,
    ingest_summary,
    records_as_json,
    unmatched_entries,
    write_unmatched,
)
from opatlas.cli.arguments import add_json, teller, write_or_print_json
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.errors import OpAtlasError, UsageError, usage_errors
from opatlas.files import expect_folder, size_mb
from opatlas.model.location import DEFAULT_NPU_DEVICE, default_path, expect_npu
from opatlas.model.versions import Versions, detect
from opatlas.options import add_database_path, at_least, versions
from opatlas.progress import Progress
from opatlas.store.database import Database, SessionLock
from opatlas.store.write_back import recover
from opatlas.text import print_problems, printable

#: The largest number of rows that a captured row becomes: each row costs time in a replay.
_MAX_ROWS = 100
_MAKES = "`opatlas ingest --profiling-path` makes a database"
#: The options that are not in the manifest of an ingest.
_RECORD_OPTIONS = frozenset({"attention_records", "max_rows", "json"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 all captures are in the database; 1 something was left out because of an error, "
        "nothing could be ingested, or the database cannot be written; 2 wrong usage"
    )
    parser.add_argument(
        "--profiling-path",
        type=Path,
        metavar="PATH",
        help="a kernel_details or op_summary file, or a folder that is searched for *kernel_details*.csv, "
        "or for *op_summary*.csv if it has none of these (default: no capture; then --attention-records is required)",
    )
    parser.add_argument(
        "--attention-records",
        type=Path,
        nargs="+",
        action="extend",
        metavar="FILE",
        help="files of records that fill the lengths of attention rows, .jsonl or .jsonl.gz (default: the lengths stay "
        "unknown)",
    )
    parser.add_argument(
        "--max-rows",
        type=at_least(0),
        default=_MAX_ROWS,
        metavar="N",
        help="with --attention-records: the largest number of rows that a captured row may become, one for each "
        "distinct record; of more records N are drawn, always the same ones; 0: no limit (default: %(default)s)",
    )
    add_database_path(parser)
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="NPU that the capture was taken on, by the name of its database folder "
        f"(default: {DEFAULT_NPU_DEVICE}; with --database-path: not known)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace the samples of earlier captures, for the signatures of this capture (default: the samples are "
        "added)",
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="ingest captures of another device, or of other versions, than earlier captures of this database "
        "(default: refused, where both are known)",
    )
    parser.add_argument(
        "--versions",
        type=versions,
        default=Versions(),
        metavar="vllm=V,torch=V,cann=V",
        help="versions of vllm-ascend, torch and CANN that the capture was taken with, or some of them "
        "(default: the installed ones)",
    )
    add_json(parser, "the counts, and the durations that changed,")


def run(arguments: argparse.Namespace) -> int:
    """Ingests, and returns the exit status that the help explains. Raises OpAtlasError."""
    if arguments.profiling_path is None and not arguments.attention_records:
        raise UsageError("nothing to ingest: name a capture with --profiling-path, or --attention-records")
    device, given = arguments.device, _given_versions(arguments)
    with usage_errors():
        if arguments.database_path is not None:
            path: Path = arguments.database_path
            expect_folder(path, _MAKES, option="--database-path", may_be_made=arguments.profiling_path is not None)
        else:
            device = arguments.device or DEFAULT_NPU_DEVICE
            # Captures come from NPUs, and `npu` does not say which one.
            expect_npu(device)
            found = detect(arguments.versions)
            given = CaptureVersions(found.vllm, found.torch, found.cann)
            path = default_path(device, found)
        records_mb = sum(map(size_mb, arguments.attention_records or ()))
    database = Database(path)
    tell, status = teller(arguments.json), 0
    content: dict[str, object] = {"database": path}
    if arguments.profiling_path is not None:
        done = _ingest(database, arguments, device, given, tell)
        content["captures"] = captures_as_json(done)
        status = 1 if done.problems else 0
    if arguments.attention_records:
        files = list(dict.fromkeys(arguments.attention_records))
        records, outcome = _fill(database, files, records_mb, arguments.max_rows, tell)
        content["attention_records"] = records_as_json(records, outcome)
        status = 1 if records.malformed or outcome.problems else status
    write_or_print_json(arguments.json, content)
    print_problems(database.misspelt_columns(), word="warning")
    return status


def _ingest(
    database: Database,
    arguments: argparse.Namespace,
    device: str | None,
    given: CaptureVersions,
    tell: Callable[[str], None],
) -> IngestResult:
    root: Path = arguments.profiling_path
    with usage_errors():
        captures = find_captures(root)
        not_read, not_parsed = skipped_files(root, captures), unparsed_beside(root, captures)
    options = {name: value for name, value in vars(arguments).items() if name not in _RECORD_OPTIONS}
    done = ingest_captures(
        database, captures, IngestRequest(root, arguments.replace, arguments.mixed, device, given, _as_text(options))
    )
    if text := ingest_summary(database, done, not_read, replays_of_bench()):
        tell(text)
    done.problems[:0] = not_parsed
    if done.manifest is None and not done.already:
        done.problems.append(_nothing(done))
    print_problems(done.problems)
    return done


def _fill(
    database: Database, files: Sequence[Path], total_mb: float, limit: int, tell: Callable[[str], None]
) -> tuple[Records, FillResult]:
    with usage_errors():
        expect_folder(database.path, _MAKES)
    # A session writes rows back by their signatures, which change here.
    lock = SessionLock(database, run_id="ingest", command="opatlas ingest --attention-records")
    lock.acquire()
    try:
        recovered = recover(database, own_run="") if database.journal_dir.is_dir() else []
        records = _read(files, total_mb, row_keys(database), limit)
        outcome = fill_rows(database, records.matched, limit)
        unmatched = unmatched_entries(records, outcome)
        problems = [*(problem for found in recovered for problem in found.problems), *outcome.problems]
        report = None
        try:
            report = write_unmatched(database, unmatched, time.time())
        except OpAtlasError as error:
            problems.append(str(error))
    finally:
        lock.release()
    for found in recovered:
        if found:
            tell(str(found))
    tell(fill_summary(database.path, len(files), records, outcome, unmatched, limit))
    if report is not None:
        tell(f"unmatched records and rows:\n  {report}")
    outcome.problems = [*records.problems, *problems]
    print_problems(records.malformed, total=records.malformed_count, what="malformed lines")
    print_problems(outcome.problems)
    return records, outcome


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


def _given_versions(arguments: argparse.Namespace) -> CaptureVersions:
    given: Versions = arguments.versions
    return CaptureVersions(given.vllm, given.torch, given.cann)


def _as_text(options: dict[str, object]) -> dict[str, object]:
    texts = {name: str(value) for name, value in options.items() if isinstance(value, str | Path)}
    given = {name: asdict(value) for name, value in options.items() if isinstance(value, Versions)}
    return {**options, **given, **{name: printable(text) for name, text in texts.items()}}


def _nothing(done: IngestResult) -> str:
    if not done.files:
        return "nothing was ingested: none of the captures can be read"
    rows = "the only row was" if done.account.rows == 1 else f"all {done.account.rows:,} rows were"
    return f"nothing was ingested: {rows} left out, for the reasons above"
