"""The report of a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opatlas.data.write_back import WriteBackResult
from opatlas.show.session_report import Gap, SessionFacts, replay_report

FACTS = SessionFacts(
    run_id="run",
    database=Path("database"),
    device="NPU",
    mode="all",
    outcomes={},
    ledger="2 rows collected = 2 measured",
    not_run=(),
    unresolved={},
    statuses={},
    errors=(),
    assumptions=[],
    left_out={},
    duplicates={},
    not_replayable={},
    merged=WriteBackResult(),
    seconds=1.0,
    figures=(),
    quality={},
    manifest=None,
    not_comparable="",
)
GAPS = [
    Gap("Add", "signature", shapes, "BF16", shapes, us, 10.0, ("",) * 10) for shapes, us in (("16", 30.0), ("32", 11.0))
]


def test_gaps_of_one_device_are_ranked_with_their_ratio() -> None:
    """The gap of the second row is too small for a line."""
    report = replay_report(FACTS, GAPS)
    (line,) = (line for line in report.splitlines() if line.startswith("| 3.00x |"))
    assert line == "| 3.00x | Add | 16 | 30 | 10 |"
    assert "| 1.10x |" not in report


def test_gaps_of_two_devices_are_not_ranked() -> None:
    devices = "captured on A, replayed on B"
    report = replay_report(replace(FACTS, not_comparable=devices), GAPS)
    assert devices in report
    assert "3.00x" not in report
