"""`opatlas combine`, as a user runs it."""

from __future__ import annotations

import csv
import re

from abs_rows import MIDDLE, NEW, OLD, cells, failed, manifest, measured, write
from combining import RunCombine

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
