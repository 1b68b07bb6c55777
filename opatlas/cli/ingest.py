"""Brings raw profiler captures into the database: one CSV per kernel type."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from opatlas.capture.captures import find_captures, skipped_files, unparsed_beside
from opatlas.capture.ingest import IngestRequest, IngestResult, ingest_captures
from opatlas.capture.manifest import CaptureVersions
from opatlas.capture.summary import ingest_summary
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.errors import looking_at_usage
from opatlas.files import expect_folder
from opatlas.model import location
from opatlas.model.versions import CANN, TORCH, VLLM, Versions, detect, versions_option
from opatlas.options import moved, versions
from opatlas.store.database import Database
from opatlas.text import print_problems, printable, show

#: What the namespace has besides the options.
_NO_OPTIONS = frozenset({"run"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 everything is in, or was already; 1 something was left out because of an error, "
        "nothing could be ingested, or the database cannot be written; 2 wrong usage"
    )
    parser.add_argument(
        "--profiling-path",
        type=Path,
        required=True,
        metavar="PATH",
        help="a kernel_details or op_summary file, or a folder that is searched for *kernel_details*.csv, "
        "or for *op_summary*.csv if it has none of these",
    )
    parser.add_argument(
        "--database-path",
        type=Path,
        metavar="DIR",
        help="folder of the {KernelType}.csv files (default: that of the device and versions, under database/data)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="NPU that the capture was taken on, by the name of its database folder "
        f"(default: {location.DEFAULT_NPU_DEVICE}; with --database-path: not known)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="put the samples in the place of those of earlier captures, for the signatures that this capture has "
        "(default: they join them)",
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="ingest captures of another device, or of other versions, than earlier ones in this database "
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
    for component in (VLLM, TORCH, CANN):
        former = moved(f"--{component.field}-version", versions_option([component]))
        parser.add_argument(former.name, **former.argparse_arguments)


def run(arguments: argparse.Namespace) -> int:
    """Ingests; gives the exit status that the epilog of the help explains. Raises OpAtlasError."""
    root: Path = arguments.profiling_path
    device, versions_of_capture = arguments.device, _given_versions(arguments)
    with looking_at_usage():
        captures = find_captures(root)
        not_read, not_parsed = skipped_files(root, captures), unparsed_beside(root, captures)
        path: Path | None = arguments.database_path
        if path is not None:
            expect_folder(path, "", option="--database-path", may_be_made=True)
        else:
            device = arguments.device or location.DEFAULT_NPU_DEVICE
            # Captures are of NPUs alone, and `npu` may be any of them.
            location.expect_npu(device)
            found = detect(arguments.versions)
            versions_of_capture = CaptureVersions(found.vllm, found.torch, found.cann)
            path = location.default_path(device, found)
    options = {name: value for name, value in vars(arguments).items() if name not in _NO_OPTIONS}
    asked = IngestRequest(root, arguments.replace, arguments.mixed, device, versions_of_capture, _as_text(options))
    database = Database(path)
    done = ingest_captures(database, captures, asked)
    # Only who knows of replays tells which rows have one.
    if text := ingest_summary(database, done, not_read, replays_of_bench()):
        show(text)
    done.problems[:0] = not_parsed
    print_problems(done.problems)
    print_problems(database.misspelt_columns(), word="warning")
    if done.manifest is None and not done.already:
        print_problems([_nothing(done)])
        return 1
    return 1 if done.problems else 0


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
