"""A device error poisons its process; the next row gets a fresh one, on a device that has been tried."""

from __future__ import annotations

import re

from moods import Mood
from sessions import Sessions, row


def test_a_device_that_stays_broken_is_left_out_and_its_rows_are_reported(sessions: Sessions) -> None:
    sessions.write("Moody", [row(mood) for mood in (1, 2, Mood.BREAK_OWN_DEVICE, 3, 4)])
    done = sessions.run(SIMULATED_DEVICES="1")
    assert (done.code, done.ledger()) == (1, {"measured": 2, "device-error": 1, "not run": 2})
    assert done.has_line("simulated 0", "3 times")
    (report,) = (sessions.database / "reports").glob("*.md")
    assert report.read_text().count("\n| Moody-") == 2
    assert list(sessions.statuses("Moody").values()).count("") == 2


def test_in_process_the_session_stops_without_a_fresh_process(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(Mood.POISON), row(2)])
    done = sessions.run_in_process(SIMULATED_DEVICES="1")
    assert (done.code, done.ledger()) == (1, {"measured": 1, "device-error": 1, "not run": 1})
    assert re.search(r"^stopped: .*--in-process", done.output, re.MULTILINE)
