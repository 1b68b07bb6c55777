"""Databases with the histories of many runs, and planted steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from abs_rows import cells, record, write

from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.data.manifest import Manifest


def run_name(number: int) -> str:
    """Returns the id of a run: one a day."""
    return f"202511{number + 1:02}T120000-aaaaaa"


def write_runs(
    folder: Path, rows: Sequence[Sequence[float]], torch: Mapping[int, str], *, spread: float = 0.01
) -> Database:
    """Writes a database whose row `n` took `rows[n][r]` microseconds in run `r`; NaN for a run that failed.

    Args:
        torch: the version of torch from some run on.
        spread: the relative standard deviation of the two samples of a run.
    """
    database = Database(folder)
    write(database, [{**cells(size), "Average Duration(us)": ""} for size in range(1, len(rows) + 1)])
    version = ""
    for number in range(max(map(len, rows))):
        run, version = run_name(number), torch.get(number, version)
        records = [
            record(size, *([us * (1 - spread / 2**0.5), us * (1 + spread / 2**0.5)] * 2 if us == us else ()), run=run)
            for size, of_row in enumerate(rows, start=1)
            if number < len(of_row)
            for us in [of_row[number]]
        ]
        history.add(database, JournalHeader(run, "all", prune=False), records)
        device = {"name": "NVIDIA_H200", "facts": {"torch": version, "driver": "580"}, "kind": "cuda"}
        Manifest(run, 1_762_000_000.0 + 86_400 * number, {}, "c0de", device=device, host="h", system="s").write(
            database
        )
    return database
