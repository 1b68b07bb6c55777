"""The gaps between replayed and captured durations."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES, KERNEL_NAMES, PROFILING_KERNEL_NAMES, PROFILING_POPULATIONS, QUALITY
from opatlas.show.gaps import Gap, gap_table, gaps_by_type
from opatlas.show.result import markdown


def test_gaps_are_ranked_with_their_ratio_and_small_ones_have_no_line() -> None:
    gaps = [
        Gap("Add", "signature", {INPUT_SHAPES: shapes, PROFILING_POPULATIONS: ""}, us, 10.0)
        for shapes, us in (("16", 30.0), ("32", 11.0))
    ]
    (line,) = (line for line in markdown([gap_table(gaps)]).splitlines() if "x |" in line)
    assert line == "| 3.00x | Add | 30 | 10 | 16 |"


def test_gaps_by_kernel_type_say_of_how_many_rows_the_same_kernels_ran() -> None:
    def gap(kernel_type: str, us: float, replayed: str, captured: str, quality: str = "") -> Gap:
        cells = {KERNEL_NAMES: replayed, PROFILING_KERNEL_NAMES: captured, QUALITY: quality}
        return Gap(kernel_type, "signature", cells, us, 10.0)

    gaps = [
        *(
            gap("MatMulV2", us, "nvjet", names)
            for us, names in ((9.0, "nvjet"), (10.0, "gemm | nvjet"), (11.0, "gemm"))
        ),
        gap("SwiGlu", 40.0, "mul + silu", "gated", "noisy; composition"),
        gap("Add", 20.0, "", ""),
    ]
    assert [row[:3] + row[4:] for row in gaps_by_type(gaps).rows] == [
        ("SwiGlu", 1, 4.0, 0, 1),
        ("Add", 1, 2.0, None, 0),
        ("MatMulV2", 3, 1.0, 2, 0),
    ]
