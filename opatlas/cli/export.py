"""Writes the stored rows of a database for other tools: as a typed table (Parquet, CSV), or as those of aiconfigurator.

DB is a folder or the name of a device. Rows that cannot answer a question are left out, as in `opatlas query`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from opatlas.errors import OpAtlasError, UsageError
from opatlas.query.database import open as open_database
from opatlas.query.export import long_table, of_other_devices, perf_tables, write_parquet, write_perf_tables
from opatlas.store.csv_files import write_text
from opatlas.text import pluralize, show

_AICONFIGURATOR = "aiconfigurator"
_FORMATS = ("parquet", "csv", _AICONFIGURATOR)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 written; 1 no row fits, or a file could not be read or written; 2 wrong usage"
    parser.add_argument("database", metavar="DB", help="folder of {KernelType}.csv files, or name of a device")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="PATH",
        help="the file; for aiconfigurator the folder of a system, below which each table gets its place",
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="parquet or csv: one table, durations in us; aiconfigurator: its perf tables, latencies in ms (default: "
        "by the end of PATH)",
    )
    parser.add_argument(
        "--compositions",
        action="store_true",
        help="with durations of compositions of torch operators (default: without)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes, and returns the exit status that the help explains. Raises OpAtlasError."""
    path: Path = arguments.output
    written = arguments.format or path.suffix.removeprefix(".")
    if written not in _FORMATS:
        raise UsageError(f"--output {path}: the name does not tell the format: add --format {', '.join(_FORMATS)}")
    database = open_database(arguments.database, compositions=arguments.compositions)
    for device, count in of_other_devices(database).items():
        show(f"left out: {pluralize(count, 'duration')} of {device}, and not of {database.answers.device}")
    if written == _AICONFIGURATOR:
        tables = perf_tables(database)
        if not tables:
            raise OpAtlasError(f"{database.path}: no row belongs to a table of aiconfigurator")
        write_perf_tables(tables, path)
        for table in tables:
            untold = int(table.rows["kernel_source"].str.contains("composition").sum())
            doubt = f", {untold} of them perhaps of compositions (kernel_source says so)" if untold else ""
            show(f"{path / table.path}: {pluralize(len(table.rows), 'row')}{doubt}")
        return 0
    rows = long_table(database)
    if rows.empty:
        raise OpAtlasError(f"{database.path}: no row has a duration: nothing was written")
    if written == "parquet":
        write_parquet(rows, path)
    else:
        write_text(path, rows.to_csv(index=False, lineterminator="\n"))
    show(f"{path}: {pluralize(len(rows), 'row')} of {pluralize(rows['kernel_type'].nunique(), 'kernel type')}")
    return 0
