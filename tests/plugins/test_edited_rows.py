"""A session measures a row anew whose shape was edited since a run measured it."""

from __future__ import annotations

from sessions import Sessions, row

from opatlas.data import log as history
from opatlas.data.database import Database


def test_an_edited_row_is_measured_anew_and_nothing_is_lost(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1), row(2)])
    assert sessions.run_in_process().outcomes() == {"passed": 2}
    first, second = sessions.read("Toy")
    sessions.write("Toy", [{**first, **row(7)}, second])
    done = sessions.run_in_process("--update-mode=missing-only")
    assert done.ledger() == {"measured": 1}
    assert "(Toy-7_7-FLOAT_FLOAT-7" in done
    again, untouched = sessions.read("Toy")
    assert untouched == second
    assert again["Run ID"] not in ("", first["Run ID"])
    kept = history.read(Database(sessions.database), first["Run ID"]).records
    assert {record.cells["Input Shapes"] for record in kept} == {"1;1", "2;2"}
