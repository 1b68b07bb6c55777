"""The gaps between replayed and captured durations."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES, PROFILING_POPULATIONS
from opatlas.show.gaps import Gap, gap_table
from opatlas.show.result import markdown


def test_gaps_are_ranked_with_their_ratio_and_small_ones_have_no_line() -> None:
    gaps = [
        Gap("Add", "signature", {INPUT_SHAPES: shapes, PROFILING_POPULATIONS: ""}, us, 10.0)
        for shapes, us in (("16", 30.0), ("32", 11.0))
    ]
    (line,) = (line for line in markdown([gap_table(gaps, 5)]).splitlines() if "x |" in line)
    assert line == "| 3.00x | Add | 16 | 30 | 10 |"
