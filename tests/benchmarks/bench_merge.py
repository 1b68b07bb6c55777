"""What it takes to update every row of a large CSV from the journal of a session.

    python -m tests.benchmarks.bench_merge [--rows N] [--rounds N]

A child process reads a journal of that many records and merges it, which is what a session does at
its end. The baseline is pandas reading and writing the same file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from database.journal import Header, Journal
from database.record import Measurement, Record
from database.schema import BASE, Status
from database.signature import signatures
from database.store import Database
from tests.benchmarks.children import Cost, measure
from tests.benchmarks.databases import write_adds

TARGET_S, TARGET_MB = 2.5, 500
_MERGE = """
import sys
from database.recover import recover
from database.store import Database
(found,) = recover(Database(sys.argv[1]), own_run="")
assert not found.problems, found.problems
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
        merges, copies = [], []
        for i in range(arguments.rounds):
            path = write_adds(Path(folder, f"database{i}"), arguments.rows, counters=True)
            journal_all(Database(path.parent))
            copies.append(measure([sys.executable, "-c", _PANDAS, str(path)]))
            merges.append(measure([sys.executable, "-c", _MERGE, str(path.parent)]))
            print(f"  pandas reads and writes {copies[-1]}   merge {merges[-1]}")
        start_s = measure([sys.executable, "-c", _MERGE.partition("(found")[0], folder]).seconds
    merge, copy = Cost.best(merges), Cost.best(copies)
    seconds = merge.seconds - start_s
    print(
        f"updating {arguments.rows:,} rows: {seconds:.2f} s, {merge.peak_mb:.0f} MB, imports ({start_s:.2f} s) left out"
    )
    print(f"(target: {TARGET_S} s, {TARGET_MB} MB); {merge.seconds / copy.seconds:.2f} times pandas' read and write")
    return 0 if seconds < TARGET_S and merge.peak_mb < TARGET_MB else 1


def journal_all(database: Database) -> None:
    """A journal with a record of three samples for every row, as a killed session leaves it."""
    frame = database.read("Add").frame
    journal = Journal(database, Header("run", "all", prune=False))
    rows = zip(signatures("Add", frame), frame[list(BASE)].to_dict("records"), strict=True)
    for number, (signature, cells) in enumerate(rows):
        measurement = Measurement((3.0 + number * 1e-6, 3.5, 4.0), "wall-clock", "cold")
        record = Record("Add", signature, cells, Status.MEASURED, "", "run", 0.0, measurement)
        journal.append(record.to_json())
    journal.close()
    journal.release()


if __name__ == "__main__":
    sys.exit(main())
