"""`opatlas combine`, as a user runs it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from abs_rows import MIDDLE, NEW, OLD, cells, failed, manifest, measured, read, write
from combining import RunCombine

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.row.columns import AVERAGE

_TIME = re.compile(r"\d{8}_\d{6}")


def test_the_counts_and_the_conflicts(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(target, [measured(1, 5.0, OLD), measured(2, 5.0, NEW), {**measured(3, "", ""), "Status": ""}])
    rows = [measured(1, 20.0, MIDDLE), measured(2, 4.0, MIDDLE), measured(3, 6.0, MIDDLE), failed(4, MIDDLE)]
    write(source, [{**row, "Note": "theirs"} for row in rows])
    write(source, [cells(1)], "Neg")
    manifest(source, MIDDLE, 1.77e9)
    status, out, err = run_combine(target.path, source.path)
    assert (status, err) == (0, "")
    (report,) = target.reports_dir.iterdir()
    assert (out["databases"], out["kernel_types"], out["new"], out["taken"], out["kept"]) == (
        *(1, ["Abs", "Neg"], ["Neg"]),
        *(3, 0),
    )
    assert out["added"] == {"rows": 2, "replayed": 0, "captured": 0}
    assert out["target_rows"] == {"rows": 5, "replayed": 3, "captured": 0}
    assert (out["statuses"], out["filled"], out["manifests"]) == ({"measured": 1}, 3, 1)
    assert _TIME.search(report.name)
    with open(report, newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "Kernel Type": "Abs",
        "Signature": "1,4|FLOAT|ND|1,4|FLOAT",
        "Input Shapes": "1,4",
        "What": AVERAGE,
        "Kept": "20.0",
        "Kept Run": MIDDLE,
        "Dropped": "5.0",
        "Dropped Run": OLD,
        "Ratio": "4.0000",
        "Source": str(source.path),
    }
    assert (second["Kept"], second["Dropped Run"]) == ("4.0", NEW)


def test_with_no_conflict_there_is_no_report(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(target, [cells(1)])
    write(source, [measured(1, 5.0, OLD)])
    status, out, _ = run_combine(target.path, source.path)
    assert (status, out["conflicts"]) == (0, [])
    assert not target.reports_dir.exists()


def test_reports_of_the_same_second_are_numbered(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(target, [measured(1, 5.0, NEW)])
    write(source, [measured(1, 6.0, OLD)])
    for _ in range(3):
        run_combine(target.path, source.path)
    assert len(list(target.reports_dir.iterdir())) == 3


def test_the_worst_conflicts_are_shown(
    target: Database, source: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for n in range(15):
        write(target, [measured(10**30, 1e5, OLD)], f"Type{n}")
        write(source, [measured(10**30, 1e5 * (n + 2), NEW)], f"Type{n}")
    assert main(["combine", str(target.path), str(source.path)]) == 0
    out = capsys.readouterr().out
    shown = [line.split() for line in out.splitlines() if line.startswith("Type")]
    assert [cells[0] for cells in shown] == [f"Type{n}" for n in range(14, 4, -1)]
    assert shown[0][-3:] == ["1,600,000", "100,000", "16.00x"]
    assert "and 5 more" in out


def test_several_sources_at_once(target: Database, tmp_path: Path, run_combine: RunCombine) -> None:
    shards = [Database(tmp_path / name) for name in ("one", "two")]
    for n, shard in enumerate(shards, start=1):
        write(shard, [measured(n, n, OLD), cells(3 - n)])
    status, out, _ = run_combine(target.path, *(shard.path for shard in shards))
    assert status == 0
    assert (out["databases"], out["kernel_types"], out["new"]) == (2, ["Abs"], ["Abs"])
    assert {row["Input Shapes"]: row[AVERAGE] for row in read(target)} == {"1,4": "1", "2,4": "2"}


def test_a_row_whose_dtype_is_unknown_is_combined_and_told(
    target: Database, source: Database, run_combine: RunCombine
) -> None:
    write(source, [cells(1), {**cells(2), "Input Data Types": "DT_FLOAT99"}])
    status, out, _ = run_combine(target.path, source.path)
    assert (status, out["unknown_dtypes"]) == (0, {"DT_FLOAT99": 1})
    assert len(read(target)) == 2
    assert not run_combine(target.path, source.path)[1]["unknown_dtypes"], "the target has the row already"


def test_manifests_of_the_target_count(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(1, 6.0, NEW)])
    manifest(target, OLD, 1.78e9)
    assert run_combine(target.path, source.path)[0] == 0
    assert read(target)[0][AVERAGE] == "5.0", "the clock of its machine was wrong, says its manifest"
