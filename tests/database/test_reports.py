"""The report of a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opatlas.report.session_files import Gap, SessionFacts, replay_report
from opatlas.store.write_back import WriteBackResult

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
    quality=(),
    manifest=None,
    not_comparable="",
)
GAPS = [Gap("Add", "signature", shapes, "BF16", shapes, us, 10.0, ()) for shapes, us in (("16", 30.0), ("32", 11.0))]


def test_gaps_of_one_device_are_ranked_with_their_ratio() -> None:
    report = replay_report(FACTS, GAPS)
    assert "1 of 2 rows with both durations are outside of 0.8 ... 1.2 x" in report
    assert "| Add | 16 | 30.00 | 10.00 | 3.00 x |" in report
    assert "| Add | 32 |" not in report


def test_gaps_of_two_devices_are_not_ranked() -> None:
    report = replay_report(replace(FACTS, not_comparable="captured on A, replayed on B"), GAPS)
    assert "captured on A, replayed on B" in report
    assert "3.00 x" not in report


def test_without_both_durations_there_is_no_word_of_gaps() -> None:
    assert "both durations" not in replay_report(FACTS, [])
