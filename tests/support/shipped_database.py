"""Writes the shipped part of a measured database: rows with a duration of the kernel itself, and their runs' manifests.

    python -m tests.support.shipped_database SOURCE TARGET "an NVIDIA H200, torch 2.11.0 with CUDA 13.0, cold cache"

Left out are rows that were not measured, compositions of torch operators, journals, reports and histories. SOURCE may
be a database that `opatlas combine --pool` made of those of several machines; it stays as it is.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.row.columns import AVERAGE, QUALITY, STAND_IN, STATUS
from opatlas.row.location import SHIPPED
from opatlas.row.quality import is_composition, valid_duration
from opatlas.row.status import Status
from opatlas.row.table import RowTable


def ship(source: Database, target: Path, note: str) -> dict[str, tuple[int, int]]:
    """Writes a database that ships, into a new folder.

    Args:
        note: one line about the device and the versions.

    Returns:
        The number of rows that ship and of those that were left out, by kernel type.

    Raises:
        OpAtlasError: the source has no measured row, a file cannot be read or written, or the folder exists.
    """
    if target.exists():
        raise OpAtlasError(f"{target} exists: name a new folder, so that no row of another database stays in it")
    counts, tables = {}, []
    for kernel_type in source.kernel_types():
        frame = source.read(kernel_type).frame
        columns = (
            frame[name].tolist() if name in frame.columns else [""] * len(frame)
            for name in (AVERAGE, STATUS, QUALITY, STAND_IN)
        )
        kept = [
            valid_duration(average) is not None
            and status.strip() in ("", Status.MEASURED.value)
            and not is_composition(quality, stand_in)
            for average, status, quality, stand_in in zip(*columns, strict=True)
        ]
        counts[kernel_type] = (sum(kept), len(kept) - sum(kept))
        if any(kept):
            tables.append(RowTable(kernel_type, Database(target).csv_path(kernel_type), frame[kept]))
    if not tables:
        raise OpAtlasError(f"{source.path} has no measured row")
    target.mkdir(parents=True)
    for table in tables:
        Database(target).write(table)
    manifests = Database(target).runs_dir
    manifests.mkdir()
    for path in sorted(source.runs_dir.glob("*.json")):
        shutil.copy(path, manifests)
    (target / SHIPPED).write_text(f"{note}\n", encoding="utf-8")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("note", help="one line for SHIPPED.txt: the device, the versions, the state of the cache")
    arguments = parser.parse_args()
    try:
        counts = ship(Database(arguments.source), arguments.target, arguments.note)
    except OpAtlasError as error:
        raise SystemExit(f"error: {error}") from None
    for kernel_type, (kept, left_out) in counts.items():
        print(f"{kernel_type}: {kept:,} rows, {left_out:,} left out")
    size = sum(path.stat().st_size for path in arguments.target.rglob("*") if path.is_file())
    print(f"{arguments.target}: {sum(kept for kept, _ in counts.values()):,} rows, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
