"""Ctrl-C once: the running row ends, records are merged. Twice: now, and the journal stays."""

from __future__ import annotations

import signal

import pytest
from moods import Mood
from sessions import Sessions, row


@pytest.mark.parametrize("devices", ["1", "2"])
def test_once_stops_after_the_running_row_and_merges(sessions: Sessions, devices: str) -> None:
    sessions.write(
        "Moody", [row(1), row(Mood.WAIT_FOR_GO), row(Mood.WAIT_FOR_GO_TOO), *[row(n) for n in range(101, 141)]]
    )
    running = sessions.start(SIMULATED_DEVICES=devices)
    running.wait_for_records(1)
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.send(signal.SIGINT)
    running.wait_until(lambda: "Ctrl-C: stopping after the running row" in running.output.read_text())
    sessions.go()
    done = running.wait()
    assert done.code == pytest.ExitCode.INTERRUPTED
    ledger = done.ledger()
    assert set(ledger) == {"measured", "not run"}
    assert ledger["measured"] >= 2
    assert "stopped: Ctrl-C" not in done, "pytest says so"
    statuses = sessions.statuses("Moody")
    assert statuses[40] == "measured"
    assert list(statuses.values()).count("measured") == ledger["measured"]
    assert not list((sessions.database / "journal").glob("*.jsonl"))
    assert sessions.left_behind() == []


def test_twice_stops_now_and_leaves_the_journal_to_the_next_session(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(Mood.SLEEP), row(2)])
    running = sessions.start("--case-timeout=3000", SIMULATED_DEVICES="2")
    running.wait_for_records(1)
    running.wait_for_body(Mood.SLEEP)
    running.send(signal.SIGINT)
    # Two that come at once are one.
    running.wait_until(lambda: "Ctrl-C: stopping after the running row" in running.output.read_text())
    running.send(signal.SIGINT)
    # Long before the row is over.
    done = running.wait()
    assert done.code == pytest.ExitCode.INTERRUPTED
    # The other device may have measured its row by then.
    kept = "1 record stays" if sessions.records() == 1 else "2 records stay"
    assert done.has_line("stopped at once", kept, f"{sessions.database}/journal")
    assert "3 rows collected = " in done
    assert "--full-trace" not in done
    (banner,) = [line for line in done.output.splitlines() if line.startswith("!!!")]
    assert "." not in banner.split(":")[0], "it names a Python class"
    assert set(sessions.statuses("Moody").values()) == {""}
    assert sessions.left_behind() == []
    sessions.run_in_process("-k", "Moody-2_2", SIMULATED_DEVICES="2")
    assert sessions.statuses("Moody") == {1: "measured", Mood.SLEEP: "", 2: "measured"}
