"""`opatlas check`: the file of known findings, and every check on tables with any cells."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

import captures

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import KNOWN_FINDINGS, WHOLE_DATABASE, CheckedDatabase, read_known, split_findings
from opatlas.row.columns import (
    AVERAGE,
    CACHE_STATE,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    PROFILING_AVERAGE,
    PROFILING_STD,
    QUALITY,
    STATUS,
)

from .target import Target, expect, refusing

_KNOWN = b"""
- checks: [monotone, spikes]
  kernel_type: MatMul*
  row: "353,*"
  most: 3
  date: 2026-11-22
  reason: a slow kernel
- {checks: [noisy], date: 2026-11-22, reason: a small one}
"""
_MEASURED = {
    AVERAGE: "9.5",
    MICROBENCH_MEDIAN: "9.4",
    MICROBENCH_MIN: "9.1",
    MICROBENCH_STD: "0.3",
    MICROBENCH_SAMPLES: "20",
    PROFILING_AVERAGE: "8.5",
    PROFILING_STD: "1",
    CACHE_STATE: "cold",
    STATUS: "measured",
    QUALITY: "",
}


def _seeds_of_known() -> Iterator[bytes]:
    yield _KNOWN


def _known(data: bytes, folder: Path) -> None:
    path = folder / KNOWN_FINDINGS
    path.write_bytes(data)
    with refusing(path):
        for entry in read_known(folder, CHECKS):
            expect(entry.reason and set(entry.checks) <= {check.name for check in CHECKS}, f"a strange entry: {entry}")


def _seeds_of_table() -> Iterator[bytes]:
    for shapes in (("16,32;64,32", "16,64"), ("1,32;64,32", "1,64")):
        cells = captures.cells(*shapes)
        text = io.StringIO()
        rows = [{**cells, **_MEASURED}, {**cells, **_MEASURED, MICROBENCH_MEDIAN: "99", QUALITY: "noisy"}]
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        yield text.getvalue().encode()


def _table(data: bytes, folder: Path) -> None:
    # As a database of an H200 lies, whose peaks are known.
    path = folder / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0" / "MatMulV2.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    database = CheckedDatabase(path.parent)
    for check in CHECKS:
        for kernel_type in [WHOLE_DATABASE] if check.of_database is not None else database.tables:
            found = split_findings(check, check.find(database, kernel_type), ()).new
            expect(
                all(not math.isnan(finding.weight) for finding in found), f"{check.name}: a weight that orders nothing"
            )


KNOWN = Target(
    "known-findings",
    "known findings are read, or refused with their place",
    _seeds_of_known,
    _known,
    (b"- ", b": ", b"*x", b"&x", b"<<", b"~", b"!!python/object:os.system", b"2026-13-41", b"most", b"row"),
)
CHECKED = Target(
    "checks",
    "every check looks at a table with any cells",
    _seeds_of_table,
    _table,
    (b"1e308", b"nan", b"-inf", b"999999999999999999", b";", b"0", b"cold", b"failed", b"bimodal"),
)
