"""A change of a kernel to its process is reported, and no other row is measured under it."""

from __future__ import annotations

from sessions import Sessions, row


def test_a_row_that_changes_its_process_is_reported_and_the_next_gets_a_new_one(sessions: Sessions) -> None:
    moods = (1, 50, 2, 51, 3, 4)
    sessions.write("Moody", [row(mood) for mood in moods])
    done = sessions.run()
    assert done.ledger() == {"measured": 5, "failed": 1}
    reasons = {int(r["Input Shapes"].partition(";")[0]): r["Status Reason"] for r in sessions.read("Moody")}
    assert "torch threads" in reasons[50]
    assert "torch.allclose" in reasons[51]
    assert [reasons[mood] for mood in (1, 2, 3, 4)] == [""] * 4
    processes = [(sessions.folder / f"body-{mood}").read_text() for mood in moods]
    assert processes[0] == processes[1] != processes[2] == processes[3] != processes[4] == processes[5]
