"""What a killed session under msprof leaves behind. The stand-ins are those of test_msprof.py."""

from __future__ import annotations

import signal

from moods import Mood
from sessions import Sessions, row, wait_for
from stand_in_npus import StandInNpus, measured_right


def test_the_profile_of_a_killed_session_is_read_by_the_next(sessions: Sessions, npus: StandInNpus) -> None:
    sessions.write("Moody", [row(1), row(2), row(Mood.WAIT_FOR_GO)])
    killed = npus.start("-k", "Moody")
    killed.wait_for_body(Mood.WAIT_FOR_GO)
    killed.send(signal.SIGKILL)
    killed.wait()
    assert wait_for(lambda: not sessions.processes(), seconds=300)
    assert measured_right(sessions, "Moody") == set()
    done = npus.run("-s", "--update-mode=missing-only", "-k", "Moody-1_1 or Moody-2_2")
    assert "merged 2 records" in done
    assert "body of" not in done
    assert measured_right(sessions, "Moody") == {1, 2}
    assert not (sessions.database / "profiles").exists() or not list((sessions.database / "profiles").rglob("PROF_*"))


def test_ctrl_c_keeps_what_the_session_has_launched(sessions: Sessions, npus: StandInNpus) -> None:
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO), row(2)])
    running = npus.start()
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.send(signal.SIGINT)
    sessions.go()
    done = running.wait()
    assert done.ledger() == {"measured": 2, "not run": 1}, done.output
    assert measured_right(sessions, "Moody") == {1, 40}
