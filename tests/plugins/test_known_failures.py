"""Rows that failed before: xfail, --strict, --pdb, and --lf."""

from __future__ import annotations

import pytest
from moods import Mood
from sessions import Sessions, row

CRASHED_TWICE = {"Status": "crashed", "Status Reason": "signal 11", "Crashes In A Row": "2"}
#: Later than those that switch it off.
CACHE = ("-p", "cacheprovider")


def test_strictness_of_the_configuration_is_about_tests_alone(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.RAISE)])
    sessions.run_in_process()
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
    sessions.write("Moody", [row(n) for n in (Mood.RAISE, 101)])
    sessions.run_in_process(*CACHE)
    for _ in range(2):
        assert sessions.run_in_process(*CACHE, "--lf").ledger() == {"xfailed": 1}
