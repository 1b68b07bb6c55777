"""A device error poisons its process; the next row gets a fresh one, on a device that has been tried."""

from __future__ import annotations

import re

import pytest
from moods import Mood
from sessions import Sessions, row


def test_a_poisoned_context_costs_its_row(sessions: Sessions) -> None:
    """The first, a middle and the last row."""
    poisons = (Mood.POISON, Mood.POISON_AGAIN, Mood.POISON_LAST)
    sessions.write("Moody", [row(mood) for mood in (Mood.POISON, 1, 2, Mood.POISON_AGAIN, 3, 4, Mood.POISON_LAST)])
    done = sessions.run(SIMULATED_DEVICES="1")
    assert (done.code, done.ledger()) == (1, {"measured": 4, "device-error": 3})
    expected = {**dict.fromkeys((1, 2, 3, 4), "measured"), **dict.fromkeys(poisons, "device-error")}
    assert sessions.statuses("Moody") == expected
    for cells in sessions.read("Moody"):
        if cells["Status"] == "device-error":
            assert cells["Status Reason"].startswith("CUDA error 700")


@pytest.mark.parametrize(("at", "not_run"), [(2, 2), (4, 0)])
def test_a_device_that_stays_broken_is_left_out_and_its_rows_are_reported(
    sessions: Sessions, at: int, not_run: int
) -> None:
    moods = [1, 2, 3, 4]
    moods.insert(at, Mood.BREAK_OWN_DEVICE)
    sessions.write("Moody", [row(mood) for mood in moods])
    done = sessions.run(SIMULATED_DEVICES="1")
    assert done.code == 1
    ledger = {"measured": 4 - not_run, "device-error": 1, "not run": not_run}
    assert done.ledger() == {name: count for name, count in ledger.items() if count}
    if not_run:
        assert done.has_line("simulated 0", "3 times")
        (report,) = (sessions.database / "reports").glob("*.md")
        assert report.read_text().count("\n| Moody-") == not_run
    assert list(sessions.statuses("Moody").values()).count("") == not_run


def test_a_device_that_is_broken_from_the_start_costs_no_row(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(2)])
    (sessions.folder / "broken-0").touch()
    done = sessions.run(SIMULATED_DEVICES="1")
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert done.ledger() == {"not run": 2}
    assert done.has_line("simulated 0", "3 times")
    assert set(sessions.statuses("Moody").values()) == {""}


def test_in_process_the_session_stops_without_a_fresh_process(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(Mood.POISON), row(2)])
    done = sessions.run_in_process(SIMULATED_DEVICES="1")
    assert (done.code, done.ledger()) == (1, {"measured": 1, "device-error": 1, "not run": 1})
    assert re.search(r"^stopped: .*--in-process", done.output, re.MULTILINE)
