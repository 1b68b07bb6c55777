"""What pytest's items and reports tell of the rows that they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from bench.registry import replay_spec
from plugins.table_plan import CaseRow

#: Attribute of the reports of a row: holds its record where there is one, why that is in no journal,
#: and the device where it is another than before. Plain values, because reports of xdist's workers
#: travel as such.
REPORT_ATTRIBUTE = "opatlas"


def row_of(item: pytest.Item) -> CaseRow | None:
    """The row that an item replays; None for other tests."""
    callspec = getattr(item, "callspec", None)
    row = callspec.params.get("row") if callspec is not None else None
    return row if isinstance(row, CaseRow) else None


def needs_group(item: pytest.Item) -> bool:
    """Whether an item is a row that needs several devices at once."""
    spec = replay_spec(getattr(item, "function", None))
    return spec is not None and spec.group is not None


def about_row(report: pytest.TestReport) -> dict[str, Any] | None:
    """What the supervisor put on a report of a replay; None for other reports."""
    about: dict[str, Any] | None = getattr(report, REPORT_ATTRIBUTE, None)
    return about


def outcome_of_report(report: pytest.TestReport) -> str:
    """The word that pytest counts a report under: "passed", "failed", "error", "skipped", "xfailed", "xpassed"."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome
