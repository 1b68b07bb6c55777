"""Every collected row is accounted for, once; what earlier sessions left unresolved is told again."""

from __future__ import annotations

import re

import pytest
from moods import Mood
from sessions import Sessions, row

PROFILED = {"Profiling Average Duration(us)": "5.0"}


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
