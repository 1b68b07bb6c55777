"""The note that pytest's report of a row carries, from the process that runs the row to the main process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import pytest

from opatlas.data.cells import helpers_cell, stored_us
from opatlas.row.record import Record
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.text import cut_middle

from .pytest_internals import captured_sections

#: Properties of a measured row's report, which JUnit shows too.
STORED_US, DURATION_US, STD_US = "stored_us", "duration_us", "duration_std_us"
#: Keys of `RowNote.waited`: for rows of other sessions, and for other workers of the same session.
FOR_OTHERS, FOR_OWN = "others", "own"

_ATTRIBUTE = "opatlas"
#: The most characters that are kept of a row's output. Its start has the first error, its end the crash.
_MOST_PRINTED = 40_000


class RowNote(TypedDict, total=False):
    """A note on a row. The values are plain, because xdist sends the reports of workers as plain values.

    Attributes:
        record: the result of `Record.to_json`; absent in setup and teardown, and for rows that were not run.
        figures: the result of `RowSummary.to_json`; absent for rows that were not measured.
        not_saved: why the record is in no journal; "" if a journal has the record.
        device: name and facts of the device; absent if the previous row ran on the same device.
        waited: seconds that the row waited for its device, by FOR_OTHERS and FOR_OWN.
        given_up: present if the row fails without being run (--strict).
    """

    record: Mapping[str, Any]
    figures: Mapping[str, Any]
    not_saved: str
    device: Mapping[str, Any]
    waited: dict[str, float]
    given_up: bool


def attach_note(report: pytest.TestReport, note: RowNote) -> None:
    """Attaches the note to the report of a row, and takes the wait for the device out of the row's times."""
    setattr(report, _ATTRIBUTE, note)
    if waited_s := sum(note.get("waited", {}).values()):
        report.duration = max(report.duration - waited_s, 0.0)
        report.start = report.stop - report.duration


def note_of(report: pytest.TestReport) -> RowNote | None:
    """Returns the note of a row's report; None for the reports of other tests."""
    note: RowNote | None = getattr(report, _ATTRIBUTE, None)
    return note


def outcome_of_report(report: pytest.TestReport) -> str:
    """Returns pytest's word for a report: "passed", "failed", "error", "skipped", "xfailed" or "xpassed"."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome


def waited_by(waits: DeviceWaits) -> dict[str, float]:
    """Returns the seconds that the rows of this process have waited so far, by FOR_OTHERS and FOR_OWN."""
    return {FOR_OTHERS: waits.others_s, FOR_OWN: waits.own_s}


def set_properties(item: pytest.Item, properties: list[tuple[str, object]]) -> None:
    """Sets the user properties of a row; replaces the properties of an earlier run of the row."""
    names = {name for name, _ in properties}
    item.user_properties[:] = [each for each in item.user_properties if each[0] not in names]
    item.user_properties += properties


def properties_of(record: Record, captured_us: float | None) -> list[tuple[str, object]]:
    """Returns what JUnit shows of a row; `captured_us` is the duration that a capture has of the row."""
    properties: list[tuple[str, object]] = [("status", record.status.value), ("run_id", record.run_id)]
    if record.host:
        properties.append(("host", record.host))
    properties += [(name.lower().replace(" ", "_"), cell) for name, cell in record.judged.items() if cell]
    if record.measurement is None:
        return [*properties, ("reason", record.reason)]
    summary = record.measurement.summary
    # Rounded as in the CSV.
    stored, mean = round(stored_us(record), 4), round(summary.mean_us, 4)
    properties.append((DURATION_US, stored))
    if mean != stored:
        properties.append(("duration_mean_us", mean))
    properties += [
        ("duration_median_us", round(summary.median_us, 4)),
        ("duration_min_us", round(summary.min_us, 4)),
        (STD_US, round(summary.std_us, 4)),
        ("samples", summary.count),
        ("instrument", record.measurement.instrument),
        ("cache_state", record.measurement.cache_state),
        ("quality", record.measurement.verdict.quality.value),
    ]
    if record.measurement.assumptions:
        properties.append(("assumptions", "; ".join(record.measurement.assumptions)))
    if record.measurement.helper_kernels:
        properties.append(("helper_kernels", helpers_cell(record.measurement.helper_kernels)))
    if captured_us is not None:
        ratio = summary.median_us / captured_us
        properties += [("captured_us", captured_us), ("ratio_to_captured", round(ratio, 4))]
    return properties


def cut_printed(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Shortens the captured output of a row, which pytest keeps until the session ends.

    Removes the output of a row that passed, unless an option shows such output.
    """
    is_kept = call.when != "call" or call.excinfo is not None or _shows_passed(item.config)
    sections = captured_sections(item)
    sections[:] = [(when, name, cut_middle(text, _MOST_PRINTED)) for when, name, text in sections] if is_kept else []


def _shows_passed(config: pytest.Config) -> bool:
    """Returns whether an option shows the output of rows that passed."""
    return bool({"P", "A"}.intersection(getattr(config.option, "reportchars", ""))) or (
        bool(getattr(config.option, "xmlpath", None)) and config.getini("junit_logging") != "no"
    )
