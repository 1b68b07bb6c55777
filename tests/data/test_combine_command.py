"""`opatlas combine`, as a user runs it."""

from __future__ import annotations

import re

from abs_rows import MIDDLE, NEW, OLD, cells, failed, manifest, measured, record, write, write_journal
from combining import RunCombine

from opatlas.data.database import Database

_TIME = re.compile(r"\d{8}_\d{6}")


def test_the_counts(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(target, [measured(1, 5.0, OLD), measured(2, 5.0, NEW), {**measured(3, "", ""), "Status": ""}])
    rows = [measured(1, 20.0, MIDDLE), measured(2, 4.0, MIDDLE), measured(3, 6.0, MIDDLE), failed(4, MIDDLE)]
    write(source, [{**row, "Note": "theirs"} for row in rows])
    write(source, [cells(1)], "Neg")
    manifest(source, MIDDLE, 1.77e9)
    status, out, err = run_combine(target.path, source.path)
    assert (status, err) == (0, "")
    assert (out["databases"], out["kernel_types"], out["new"]) == (1, ["Abs", "Neg"], ["Neg"])
    assert [out[name] for name in ("taken", "changed", "added", "target_rows", "manifests")] == [3, 0, 2, 5, 1]
    assert not target.reports_dir.exists()


def test_a_table_that_cannot_be_read_is_told_once(target: Database, source: Database, run_combine: RunCombine) -> None:
    """Tables, journals, the count of rows and --pool all read it, and each had told it."""
    write(target, [cells(1)])
    write(target, [cells(1)], "Neg")
    write(source, [measured(1, 5.0, OLD)])
    write_journal(source.journal_dir / f"{NEW}.jsonl", record(1, 6.0, run=NEW))
    for name in ("Abs", "Neg"):
        target.csv_path(name).write_bytes(b"\xff")
    status, out, err = run_combine(target.path, source.path, "--pool")
    assert (status, len(out["problems"])) == (1, 2)
    assert [err.count(str(target.csv_path(name))) for name in ("Abs", "Neg")] == [1, 1]
