"""Rows of Abs, records of their runs, and tables of them in a database."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

from captures import cells as slot_cells
from sessions import write_table

from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.row.columns import AVERAGE, RUN_ID, STATUS, STATUS_REASON
from opatlas.row.record import LaunchedCase, Measurement, Record
from opatlas.row.signature import signature
from opatlas.row.status import Status

V2, V3 = "MatMulV2", "MatMulV3"
#: Runs of these ids began in this order.
OLD, MIDDLE, NEW = (f"2025112{day}T120000-aaaaaa" for day in (1, 2, 3))


def cells(size: int) -> dict[str, str]:
    return slot_cells(f"{size},4", f"{size},4", "FLOAT")


def measured(size: int, duration: float | str, run: str, **more: str) -> dict[str, str]:
    """A row as a session leaves it, with everything about its duration telling the run."""
    about = {"Cache State": f"cache of {run}", "MicroBench Samples": f"samples of {run}"}
    return {**cells(size), AVERAGE: str(duration), **about, STATUS: "measured", STATUS_REASON: "", RUN_ID: run, **more}


def failed(size: int, run: str, **more: str) -> dict[str, str]:
    """A row without a duration that a session could not measure."""
    return {**cells(size), AVERAGE: "", STATUS: "crashed", STATUS_REASON: "signal 11", RUN_ID: run, **more}


def record(size: int, *samples_us: float, status: Status = Status.FAILED, run: str = "run-1", **more: object) -> Record:
    measurement = Measurement(samples_us, "wall-clock", "cold", device_kernels=2, **more) if samples_us else None
    status = Status.MEASURED if samples_us else status
    reason = "" if samples_us else f"because of {size}"
    return Record("Abs", signature("Abs", cells(size)), cells(size), status, reason, run, 0.0, measurement)


def product_record(
    asked: str = V2, ran_as: str = V3, us: float = 5.0, ran_cells: dict[str, str] | None = None, run: str = "run-1"
) -> Record:
    """Samples of a call that a row of `asked` was replayed with."""
    ran = None if ran_as == asked else LaunchedCase(ran_as, ran_cells or {})
    measurement = Measurement((us, us + 2), "msprof", "cold", counters={"aic_mac_ratio": 0.5}, ran_as=ran)
    cells = slot_cells()
    return Record(asked, signature(asked, cells), cells, Status.MEASURED, "", run, 0.0, measurement)


def write(database: Database, rows: list[dict[str, str]], kernel_type: str = "Abs") -> Path:
    database.path.mkdir(exist_ok=True)
    return write_table(database.path / f"{kernel_type}.csv", rows)


def read(database: Database, kernel_type: str = "Abs") -> list[dict[str, str]]:
    with open(database.path / f"{kernel_type}.csv", newline="") as file:
        return list(csv.DictReader(file))


def manifest(
    database: Database, run_id: str, started_at: float, device: str = "CPU", torch: str = "2.13.0+cpu"
) -> Path:
    database.runs_dir.mkdir(parents=True, exist_ok=True)
    path = database.runs_dir / f"{run_id}.json"
    values = {"started_at": started_at, "device": {"name": device}, "packages": {"torch": torch}}
    path.write_text(json.dumps(values))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a database, but its locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def write_journal(path: Path, *records: Record, run: str = NEW, mode: str = "all") -> Path:
    """A journal as a session leaves it that was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [asdict(JournalHeader(run, mode, prune=False)), *(record.to_json() for record in records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
