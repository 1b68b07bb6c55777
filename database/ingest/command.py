"""Brings raw profiler captures into the database: one CSV per kernel type."""

from __future__ import annotations

import argparse
from pathlib import Path

from database import layout, versions
from database.commands import looking_at_usage
from database.errors import OpAtlasError
from database.ingest.aggregate import Aggregate
from database.ingest.apply import Outcome, apply_cases
from database.ingest.attention import bundles, runtime_cells
from database.ingest.capture import find_captures
from database.ingest.summary import summary
from database.store import Database
from database.terminal import print_problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 everything is in; 1 something was left out because of an error, "
        "or the database cannot be written; 2 wrong usage"
    )
    parser.add_argument(
        "--profiling-path",
        type=Path,
        required=True,
        metavar="PATH",
        help="a kernel_details or op_summary file, or a folder that is searched for *kernel_details*.csv",
    )
    parser.add_argument(
        "--database-path",
        type=Path,
        metavar="DIR",
        help="folder of the {KernelType}.csv files (default: that of the device and versions, under database/data)",
    )
    parser.add_argument(
        "--device",
        default=layout.DEFAULT_NPU_DEVICE,
        metavar="NAME",
        help="NPU that the capture was taken on, by the name of its database folder (default: %(default)s)",
    )
    parser.add_argument("--vllm-version", metavar="V", help="vllm-ascend, such as 0.18.0 (default: the installed one)")
    parser.add_argument("--torch-version", metavar="V", help="torch, such as 2.9.0 (default: the installed one)")
    parser.add_argument("--cann-version", metavar="V", help="CANN, such as 8.5 (default: the installed one)")


def run(arguments: argparse.Namespace) -> int:
    """Ingests; gives the exit status that the epilog of the help explains. Raises OpAtlasError."""
    root: Path = arguments.profiling_path
    with looking_at_usage():
        captures = find_captures(root)
        database = Database(arguments.database_path or _default_database(arguments))
    # Everything is read before anything is written.
    aggregate = Aggregate()
    errors = [*aggregate.add_files(captures), *aggregate.problems]
    cases = aggregate.cases()
    try:
        outcome = apply_cases(database, cases, lambda case: runtime_cells(case, root)) if cases else Outcome()
    except OpAtlasError as error:
        print_problems([*errors, str(error)])
        return 1
    errors += outcome.problems
    if aggregate.files:
        print(summary(database.path, len(aggregate.files), aggregate.account, outcome, bundles(cases)))
    print_problems(errors)
    print_problems(database.misspelt(), word="warning")
    return 1 if errors else 0


def _default_database(arguments: argparse.Namespace) -> Path:
    """Raises OpAtlasError."""
    # Captures are of NPUs alone, and `npu` may be any of them.
    layout.expect_npu(arguments.device)
    found = versions.detect(arguments.vllm_version, arguments.torch_version, arguments.cann_version)
    return layout.default_path(arguments.device, found)
