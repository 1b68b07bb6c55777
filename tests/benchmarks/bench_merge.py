"""What it takes to update rows of a large CSV from the journal of a session.

    python -m tests.benchmarks.bench_merge [--rows N] [--records N] [--rounds N]

A child process reads a journal and then updates the CSV with its records, which is what a session does at its end; the
two are timed apart, and the peak memory covers both. The rows have no durations, or those of an earlier run with 30
samples of each row, whose log is there. The baseline is pandas reading and writing the same file.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.children import apart, load, measure, run_benchmark
from tests.benchmarks.databases import write_adds, write_journal, write_run

TARGET_S, TARGET_MB = 2.5, 500
_EARLIER, _RUN = "20261101T000000-aaaaaa", "20261102T000000-bbbbbb"
_MERGE = """
import sys, time
from pathlib import Path
from opatlas.data import journal
from opatlas.row.status import UpdateMode
from opatlas.data.write_back import write_back
from opatlas.data.database import Database
database = Database(sys.argv[1])
(path,) = database.journal_dir.glob("*.jsonl")
start = time.process_time()
contents = journal.read(path)
read = time.process_time()
result = write_back(database, contents.records, UpdateMode.ALL, prune=False)
end = time.process_time()
assert result.updated.total() == len(contents.records), result
Path(sys.argv[2]).write_text(f"{read - start} {end - read}")
"""
_PANDAS = """
import sys
import pandas as pd
pd.read_csv(sys.argv[1], dtype=str, keep_default_na=False).to_csv(sys.argv[1] + ".copy", index=False)
"""


def main(*, rows: int = 100_000, records: int = 10_000, rounds: int = 3) -> int:
    """Returns 1 if a target is missed.

    Args:
        rows: rows of the CSV.
        records: records of the journal.
        rounds: rounds, of which the best counts.
    """
    met = True
    with tempfile.TemporaryDirectory() as folder:
        database = write_adds(Path(folder, "database"), rows, counters=True).parent
        every = max(1, rows // records)
        met &= _merge(database, "rows without durations", every, rounds)
        apart(write_run, database, _EARLIER, samples=30)
        met &= _merge(database, "rows of an earlier run with a log", every, rounds)
    return 0 if met else 1


def _merge(database: Path, title: str, every: int, rounds: int) -> bool:
    """Prints what an update takes; returns whether the target is met."""
    peaks_mb, copies, reads_s, updates_s = [], [], [], []
    csv, copy, times = database / "Add.csv", database.with_name("copy"), database.with_name("times")
    for _ in range(rounds):
        shutil.copytree(database, copy)
        apart(write_journal, copy, _RUN, samples=3, every=every)
        copies.append(measure([sys.executable, "-c", _PANDAS, str(csv)]).cpu_s)
        csv.with_name("Add.csv.copy").unlink()
        peaks_mb.append(measure([sys.executable, "-c", _MERGE, str(copy), str(times)]).peak_mb)
        read_s, update_s = map(float, times.read_text().split())
        reads_s.append(read_s)
        updates_s.append(update_s)
        print(f"  CPU: pandas, process and all, {copies[-1]:.2f} s; journal {read_s:.2f} s, update {update_s:.2f} s")
        shutil.rmtree(copy)
    update_s, peak_mb = min(updates_s), max(peaks_mb)
    print(
        f"{title}: every {every}th row updated in {update_s:.2f} s CPU, {peak_mb:.0f} MB "
        f"(target: {TARGET_S} s, {TARGET_MB} MB; {load()})"
    )
    print(f"{update_s / min(copies):.2f} times pandas reading and writing; the journal takes {min(reads_s):.2f} s more")
    return update_s < TARGET_S and peak_mb < TARGET_MB


if __name__ == "__main__":
    run_benchmark(main)
