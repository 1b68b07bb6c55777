"""What it takes to update every row of a large CSV from the journal of a session.

    python -m tests.benchmarks.bench_merge [--rows N] [--rounds N]

A child process reads a journal of that many records and then updates the CSV with them, which is
what a session does at its end; the two are timed apart, and its peak memory covers both. The
baseline is pandas reading and writing the same file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from opatlas.data.database import Database
from opatlas.data.journal import Journal, JournalHeader
from opatlas.row.columns import BASE, Status
from opatlas.row.record import Measurement, Record
from opatlas.row.signature import signatures
from tests.benchmarks.children import measure
from tests.benchmarks.databases import write_adds

TARGET_S, TARGET_MB = 2.5, 500
_MERGE = """
import sys, time
from pathlib import Path
from opatlas.data import journal
from opatlas.data.update_mode import UpdateMode
from opatlas.data.write_back import write_back
from opatlas.data.database import Database
database = Database(sys.argv[1])
(path,) = database.journal_dir.glob("*.jsonl")
start = time.perf_counter()
contents = journal.read(path)
read = time.perf_counter()
result = write_back(database, contents.records, UpdateMode.ALL, prune=False)
end = time.perf_counter()
assert result.updated.total() == len(contents.records), result
Path(sys.argv[2]).write_text(f"{read - start} {end - read}")
"""
_PANDAS = """
import sys
import pandas as pd
pd.read_csv(sys.argv[1], dtype=str, keep_default_na=False).to_csv(sys.argv[1] + ".copy", index=False)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the CSV (default: 100000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peaks_mb, copies, reads_s, updates_s = [], [], [], []
        times = Path(folder, "times")
        for i in range(arguments.rounds):
            path = write_adds(Path(folder, f"database{i}"), arguments.rows, counters=True)
            journal_all(Database(path.parent))
            copies.append(measure([sys.executable, "-c", _PANDAS, str(path)]).seconds)
            peaks_mb.append(measure([sys.executable, "-c", _MERGE, str(path.parent), str(times)]).peak_mb)
            read_s, update_s = map(float, times.read_text().split())
            reads_s.append(read_s)
            updates_s.append(update_s)
            print(f"  pandas, process and all, {copies[-1]:.2f} s; journal {read_s:.2f} s, update {update_s:.2f} s")
    update_s, peak_mb = min(updates_s), max(peaks_mb)
    print(
        f"updating {arguments.rows:,} rows: {update_s:.2f} s, {peak_mb:.0f} MB (target: {TARGET_S} s, {TARGET_MB} MB)"
    )
    print(f"{update_s / min(copies):.2f} times pandas reading and writing; the journal takes {min(reads_s):.2f} s more")
    return 0 if update_s < TARGET_S and peak_mb < TARGET_MB else 1


def journal_all(database: Database) -> None:
    """A journal with a record of three samples for every row, as a killed session leaves it."""
    frame = database.read("Add").frame
    journal = Journal(database, JournalHeader("run", "all", prune=False))
    rows = zip(signatures("Add", frame), frame[list(BASE)].to_dict("records"), strict=True)
    for number, (signature, cells) in enumerate(rows):
        measurement = Measurement((3.0 + number * 1e-6, 3.5, 4.0), "wall-clock", "cold")
        record = Record("Add", signature, cells, Status.MEASURED, "", "run", 0.0, measurement)
        journal.append(record.to_json())
    journal.close()


if __name__ == "__main__":
    sys.exit(main())
