"""`opatlas export`: the rows of a database for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.database import open as open_database
from opatlas.ask.query.export import long_table, of_other_devices, perf_tables, write_parquet, write_perf_tables
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError, UsageError
from opatlas.show.result import Fields, Result, Table


def export(database: Annotated[str, Parameter(name="DB")], /, *, output: Path, compositions: bool = False) -> Result:
    """Write the stored rows for other tools: as one typed table, or as the tables of aiconfigurator.

    Rows that cannot answer a question are left out, as in opatlas query.

    Exit status: 0 written; 1 no row fits, or a file could not be read or written; 2 wrong usage.

    Args:
        database: folder of {KernelType}.csv files, or name of a device.
        output: FILE.parquet or FILE.csv: one table, durations in us; a path without a suffix: the folder of a system
            of aiconfigurator, below which each table gets its place, latencies in ms.
        compositions: with durations of compositions of torch operators.
    """
    if output.suffix not in (".parquet", ".csv", ""):
        raise UsageError(
            f"--output {output}: end the name with .parquet or .csv, or give a folder without suffix for aiconfigurator"
        )
    opened = open_database(database, compositions=compositions)
    written = _write_table(opened, output) if output.suffix else _write_perf_tables(opened, output)
    left_out = of_other_devices(opened)
    return Result([written, Fields(left_out, title="left out, of other devices")] if left_out else [written])


def _write_table(database: OpenDatabase, path: Path) -> Table:
    rows = long_table(database)
    if rows.empty:
        raise OpAtlasError(f"{database.path}: no row has a duration: nothing was written")
    if path.suffix == ".parquet":
        write_parquet(rows, path)
    else:
        write_text(path, rows.to_csv(index=False, lineterminator="\n"))
    return Table(("file", "rows", "kernel types"), [(str(path), len(rows), rows["kernel_type"].nunique())])


def _write_perf_tables(database: OpenDatabase, folder: Path) -> Table:
    tables = perf_tables(database)
    if not tables:
        raise OpAtlasError(f"{database.path}: no row belongs to a table of aiconfigurator")
    write_perf_tables(tables, folder)
    lines = [
        (str(folder / each.path), len(each.rows), int(each.rows["kernel_source"].str.contains("composition").sum()))
        for each in tables
    ]
    return Table(("file", "rows", "may be compositions"), lines)
