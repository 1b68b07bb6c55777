"""The toy rows that sessions are killed over, and the facts of each, from its CSV and from journals."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moods import Mood
from sessions import Running, Sessions, row

from opatlas.data import journal
from opatlas.row import columns as col
from opatlas.row.record import Record

#: Rows that take a while, so that most kills find one running.
SLOW_REPLAY = """
import time
from pathlib import Path

from opatlas.bench import formulas

from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays


@replays("Slow", npu=None)
def test_slow(row, replay):
    Path(__file__).with_name(f"body-{row.shape(0)[0]}").touch()
    time.sleep(0.12)
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""
SIZES = {"Toy": (1, 2), "OtherToy": (3,), "Slow": tuple(range(101, 111)), "Moody": (1, Mood.RAISE, 2, Mood.EXIT, 3)}
#: Those whose replays leave a file when they begin.
TELLING = ("Slow", "Moody")
#: Moody rows that are never measured, with their status.
FAILING = {Mood.EXIT: "crashed", Mood.RAISE: "failed"}
#: The columns that differ from one measurement to the next.
VOLATILE = {col.AVERAGE, col.MICROBENCH_MEDIAN, col.MICROBENCH_MIN, col.RUN_ID, col.STATUS_RUN_ID, col.CRASHES_IN_A_ROW}
MEASURE = ("--repeat-count=1", "--cache=warm")
ROW_S = 0.12

Key = tuple[str, int]


@dataclass(frozen=True)
class Found:
    """The facts of a row, be it from its CSV or from a journal."""

    status: str = ""
    duration: str = ""
    run_id: str = ""
    status_run_id: str = ""
    crashes: int = 0


def keys_of(sizes: Mapping[str, Sequence[int]]) -> list[Key]:
    return sorted(((kernel_type, size) for kernel_type in sizes for size in sizes[kernel_type]), key=lambda key: key[0])


def fails(key: Key) -> bool:
    return key[0] == "Moody" and key[1] in FAILING


def toys(folder: Path, keys: Sequence[Key]) -> Sessions:
    folder.mkdir(parents=True)
    sessions = Sessions(folder)
    (folder / "test_slow.py").write_text(SLOW_REPLAY)
    for kernel_type in SIZES:
        sessions.write(kernel_type, [row(size) for name, size in keys if name == kernel_type])
    return sessions


def start(sessions: Sessions, devices: int, *options: str) -> Running:
    # Of one kind, whatever their number: durations of another kind are not taken.
    return sessions.start("-v", *options, measure=MEASURE, SIMULATED_DEVICES=str(devices))


def read_table(sessions: Sessions) -> dict[Key, dict[str, str]]:
    """All rows. A duplicate row is an error."""
    cells = [
        ((kernel_type, int(each["Input Shapes"].partition(";")[0])), each)
        for kernel_type in sorted(SIZES)
        for each in sessions.read(kernel_type)
    ]
    assert len(dict(cells)) == len(cells), [key for key, _ in cells]
    return dict(cells)


def unvarying(table: Mapping[Key, Mapping[str, str]]) -> dict[Key, dict[str, str]]:
    """The cells on which two sessions agree. A column may be missing from a file without failing rows."""
    return {key: {n: cell for n, cell in cells.items() if cell and n not in VOLATILE} for key, cells in table.items()}


def records(sessions: Sessions) -> list[Record]:
    """Those in journals, oldest first."""
    found: list[Record] = []
    for path in sorted((sessions.database / "journal").glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):
            # It may just have been merged.
            found += journal.read(path).records
    return found


def known_rows(sessions: Sessions) -> dict[Key, Found]:
    """Every row: its cells in the CSV, or those that a journal will give it."""
    known = {
        key: Found(
            cells.get(col.STATUS, ""),
            cells.get(col.AVERAGE, ""),
            cells.get(col.RUN_ID, ""),
            cells.get(col.STATUS_RUN_ID, ""),
            int(cells.get(col.CRASHES_IN_A_ROW) or 0),
        )
        for key, cells in read_table(sessions).items()
    }
    for record in records(sessions):
        key = key_of(record)
        before = known[key]
        if record.run_id >= before.status_run_id:
            duration, run_id = before.duration, before.run_id
            if record.measurement is not None:
                duration, run_id = f"{record.measurement.summary.mean_us:.4f}", record.run_id
            crashes = before.crashes + 1 if record.status.crash else 0
            known[key] = Found(record.status.value, duration, run_id, record.run_id, crashes)
    return known


def key_of(record: Record) -> Key:
    return record.kernel_type, int(record.cells["Input Shapes"].partition(";")[0])
