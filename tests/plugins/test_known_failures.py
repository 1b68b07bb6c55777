"""Rows that failed before: xfail, --strict, --lf, and those that are not run now."""

from __future__ import annotations

import re

import pytest
from moods import Mood
from sessions import Sessions, row

CRASHED_TWICE = {"Status": "crashed", "Status Reason": "signal 11", "Crashes In A Row": "2"}
CAPTURED = {"Profiling Average Duration(us)": "5.0"}
#: Later than those that switch it off.
CACHE = ("-p", "cacheprovider")


def test_strictness_of_the_configuration_is_about_tests_alone(sessions: Sessions) -> None:
    sessions.write("Moody", [{**row(Mood.RAISE), "Status": "failed"}])
    (sessions.folder / "pytest.ini").write_text("[pytest]\nstrict = true\n")
    assert sessions.run_in_process().ledger() == {"xfailed": 1}


def test_with_strict_a_row_that_was_given_up_fails_without_being_run(sessions: Sessions) -> None:
    measured = dict.fromkeys(CRASHED_TWICE, "")
    sessions.write("Moody", [{**row(Mood.SEGFAULT), **CRASHED_TWICE}, {**row(101), **measured}])
    strict = sessions.run_in_process("--strict")
    assert strict.code == pytest.ExitCode.TESTS_FAILED
    assert strict.ledger() == {"given up": 1, "measured": 1}
    assert "--runxfail" in strict
    assert not (sessions.folder / "body-11").exists()
    (cells, _) = sessions.read("Moody")
    assert {name: cells[name] for name in CRASHED_TWICE} == CRASHED_TWICE


def test_a_known_failure_is_among_the_last_failed(sessions: Sessions) -> None:
    sessions.write("Moody", [{**row(Mood.RAISE), "Status": "failed"}, {**row(101), "Status": ""}])
    assert sessions.run_in_process(*CACHE).ledger() == {"xfailed": 1, "measured": 1}
    assert sessions.run_in_process(*CACHE, "--lf").ledger() == {"xfailed": 1}


def test_what_was_left_unresolved_and_is_not_run_now_is_told(sessions: Sessions) -> None:
    moods = [{**row(n), **CAPTURED, "Status": status} for n, status in ((12, "crashed"), (13, "timeout"), (1, ""))]
    sessions.write("Moody", moods)
    sessions.write("Toy", [row(1)])
    done = sessions.run_in_process("--update-mode=missing-only", "--mixed")
    assert (done.code, done.ledger()) == (0, {"measured": 1})
    assert re.search(r" 1 crashed, 1 timeout$", done.output, re.MULTILINE)
