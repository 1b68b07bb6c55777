"""Small databases to check: tables of rows with durations, with the manifest of the run that measured them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from captures import cells as slot_cells
from frames import write_frame

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import Check, CheckedDatabase, Finding
from opatlas.row import columns as col

RUN = "20261122T000000-aaaaaa"
Row = Mapping[str, str]


def product(m: int, us: float, std: float = 0.1, k: int = 512, n: int = 1024, **cells: str) -> dict[str, str]:
    """A measured row of MatMulV2; `cells` are further ones, by column with _ for a blank."""
    more = {name.replace("_", " "): value for name, value in cells.items()}
    return {**slot_cells(f"{m},{k};{n},{k}", f"{m},{n}"), **timed(us, std), **more}


def timed(us: float, std: float) -> dict[str, str]:
    """The cells of a measured duration."""
    return {
        col.AVERAGE: str(us),
        col.MICROBENCH_MEDIAN: str(us),
        col.MICROBENCH_MIN: str(us - std),
        col.MICROBENCH_STD: str(std),
        col.MICROBENCH_SAMPLES: "20",
        col.CACHE_STATE: "cold",
        col.INSTRUMENT: "cupti",
        col.STATUS: "measured",
        col.RUN_ID: RUN,
    }


def write_database(folder: Path, tables: Mapping[str, list[dict[str, str]]], **facts: object) -> Path:
    """Writes tables and the manifest of RUN, which was on an H200."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel_type, rows in tables.items():
        write_frame(pd.DataFrame(rows).fillna(""), folder / f"{kernel_type}.csv")
    write_manifest(folder, RUN, **facts)
    return folder


def write_manifest(folder: Path, run_id: str, *, name: str = "NVIDIA_H200", code: str = "", **facts: object) -> None:
    """Writes the manifest of a run on a device with some facts."""
    (folder / "runs").mkdir(exist_ok=True)
    device = {"name": name, "kind": "cuda", "facts": {"torch": "2.11.0+cu130", "cuda": "13.0", **facts}}
    manifest = {"started_at": 1.0, "device": device, "packages": {"torch": "2.11.0"}, "code": code}
    (folder / "runs" / f"{run_id}.json").write_text(json.dumps(manifest))


def check_named(name: str) -> Check:
    """The check of a name."""
    return next(check for check in CHECKS if check.name == name)


def findings(name: str, database: CheckedDatabase) -> list[Finding]:
    """All findings of a check."""
    check = check_named(name)
    return [finding for case in check.cases(database) for finding in check.find(database, case)]


def message(size: int, us: float, std: float = 0.1) -> dict[str, str]:
    """A measured message between two devices."""
    cells = timed(us, std)
    del cells[col.AVERAGE], cells[col.MICROBENCH_MEDIAN]
    return {
        col.MESSAGE_BYTES: str(size),
        col.NUM_DEVICES: "2",
        col.DTYPE: "DT_BF16",
        col.TOPOLOGY_TIER: "1",
        col.DURATION: str(us),
        **cells,
    }
