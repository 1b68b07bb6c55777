"""What a row was taken to mean, what was checked and what was timed: read back from the database of a session."""

from __future__ import annotations

from replaying import cells_of
from sample_rows import ROWS
from sessions import ROOT, Sessions


def test_assumed_lengths_and_the_stand_in_of_attention_are_in_the_database(sessions: Sessions) -> None:
    sessions.write("FusedInferAttentionScore", [cells_of(ROWS["FusedInferAttentionScore"][0])])
    done = sessions.run_in_process(str(ROOT / "bench" / "test_attention.py"))
    assert done.code == 0, done.output
    (row,) = sessions.read("FusedInferAttentionScore")
    assert "4 sequences" in row["Assumptions"]
    assert row["Stand-In"].startswith("composition of")
    checked, total = map(int, row["Checked Elements"].split("/"))
    assert 0 < checked <= total
