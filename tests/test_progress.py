"""Progress of long work: nothing where lines stay, and a note for what takes long."""

from __future__ import annotations

import time

import pytest

from opatlas.progress import note_after, track


def test_a_log_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([1, 2, 3], "rows")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


def test_only_what_takes_long_has_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    with note_after("fitting", seconds=60):
        pass
    assert capsys.readouterr().err == ""
    with note_after("fitting", seconds=0.001):
        while not (said := capsys.readouterr().err):
            time.sleep(0.01)
    assert said + capsys.readouterr().err == "fitting\n"
