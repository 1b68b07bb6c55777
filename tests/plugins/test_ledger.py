"""Every collected row is accounted for, once; what earlier sessions left unresolved is told again."""

from __future__ import annotations

import re
import signal

import pytest
from moods import Mood
from sessions import Sessions, row

PROFILED = {"Profiling Average Duration(us)": "5.0"}
BAD = (Mood.EXIT, Mood.REFUSE, Mood.UNSUPPORTED, Mood.WRONG_RESULT, Mood.MEMORY_ERROR)


def test_every_status_has_its_term(sessions: Sessions) -> None:
    statuses = dict.fromkeys((1, 2, *BAD), "") | {Mood.RAISE: "failed"}
    sessions.write("Moody", [{**row(n), "Status": status} for n, status in statuses.items()])
    sessions.write("Toy", [row(1)])
    done = sessions.run()
    assert done.ledger() == {
        "measured": 3,
        "crashed": 1,
        "invalid": 1,
        "unsupported": 1,
        "failed": 1,
        "oom": 1,
        "xfailed": 1,
    }
    (report,) = (sessions.database / "reports").glob("*.md")
    (ledger,) = (line for line in done.output.splitlines() if " collected = " in line)
    assert ledger in report.read_text()


def test_rows_behind_the_last_allowed_failure_are_not_run(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.RAISE), *[row(n) for n in range(101, 131)]])
    done = sessions.run_in_process("-x")
    assert done.code == pytest.ExitCode.TESTS_FAILED
    ledger = done.ledger()
    assert ledger["failed"] == 1
    assert ledger["not run"] >= 1
    (report,) = (sessions.database / "reports").glob("*.md")
    assert report.read_text().count("\n| Moody-1") == ledger["not run"]


def test_what_was_left_unresolved_and_is_not_run_now_is_told(sessions: Sessions) -> None:
    moods = [{**row(n), **PROFILED, "Status": status} for n, status in ((12, "crashed"), (13, "timeout"), (1, ""))]
    sessions.write("Moody", moods)
    sessions.write("Toy", [row(1)])
    done = sessions.run_in_process("--update-mode=missing-only", "--mixed")
    assert (done.code, done.ledger()) == (0, {"measured": 1})
    assert re.search(r"^left by earlier sessions +1 crashed, 1 timeout$", done.output, re.MULTILINE)


def test_what_a_killed_session_found_out_is_told_by_the_next(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(Mood.RAISE), row(Mood.SLEEP), row(2)])
    running = sessions.start()
    running.wait_for_records(2)
    running.wait_for_body(Mood.SLEEP)
    running.send(signal.SIGKILL)
    running.wait()
    done = sessions.run("--update-mode=missing-only", "-k", "not 13_13")
    assert "merged 2 records" in done
    assert "(1 measured, 1 failed)" in done
    assert done.ledger() == {"measured": 1, "xfailed": 1}
    assert "ValueError: bad mood" in done
