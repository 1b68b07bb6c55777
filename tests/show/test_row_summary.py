"""Numbers as people read them, and what a row's samples come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from opatlas.formats import duration, noise, scaled
from opatlas.row.columns import (
    INPUT_SHAPES,
    KERNEL_NAMES,
    MESSAGE_BYTES,
    NUM_DEVICES,
    PROFILING_KERNEL_NAMES,
    PROFILING_POPULATIONS,
    QUALITY,
)
from opatlas.row.quality import Quality
from opatlas.row.record import Measurement, Record
from opatlas.row.roofline import Peak
from opatlas.row.status import Status
from opatlas.show.result import markdown
from opatlas.show.row_summary import (
    Gap,
    RowSummary,
    duration_tables,
    gap_table,
    gaps_by_type,
    quality_fields,
    row_shapes,
    summarize_row,
)

H200 = Peak(4800.0, {"BF16": 989.5})


def record(samples_us: Sequence[float], cache: str = "cold", dtype: str = "BF16", m: int = 1) -> Record:
    """A product of m x 1024 and 1024 x 4096."""
    cells = {
        "Input Shapes": f"{m},1024;4096,1024",
        "Input Data Types": f"{dtype};{dtype}",
        "Input Formats": "ND;ND",
        "Output Shapes": f"{m},4096",
        "Output Data Types": dtype,
        "Output Formats": "ND",
    }
    measurement = Measurement(tuple(samples_us), "cupti", cache)
    return Record("MatMulV2", "signature", cells, Status.MEASURED, "", "run", 0.0, measurement)


def figures(kernel_type: str = "Add", median_us: float = 10.0, **more: object) -> RowSummary:
    values = {
        "min_us": median_us,
        "noise": 0.02,
        "samples": 20,
        "quality": Quality.QUIET,
        "instrument": "cupti",
        "cache": "cold",
        **more,
    }
    return RowSummary(kernel_type, "16,1024", median_us, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("us", "text"),
    [(1.3, "1.3 us"), (15.052, "15.05 us"), (601.4, "601.4 us"), (37818.5, "37,818 us"), (0.01234, "0.01234 us")],
)
def test_a_duration_has_four_digits_and_all_before_the_point(us: float, text: str) -> None:
    assert duration(us) == text


def test_rates_noise_and_shares_have_their_units() -> None:
    assert [scaled(rate, "B/s") for rate in (1.6e12, 72.4e9, 312e6, 5)] == [
        "1.6 TB/s",
        "72.4 GB/s",
        "312 MB/s",
        "5 B/s",
    ]
    assert (noise(0.021), noise(1.56), noise(None)) == ("±2.1 %", "±156.0 %", "")


def test_of_two_rates_the_one_that_is_nearer_to_its_peak_is_told() -> None:
    row = summarize_row(record([4.0] * 5, m=1), H200)
    moved = 2 * (1024 + 1024 * 4096 + 4096)
    assert row.share == pytest.approx(moved / 4e-6 / 4800e9)
    assert row.rate == "2.1 TB/s"
    large = summarize_row(record([100.0] * 5, m=8192), H200)
    assert large.share == pytest.approx(2 * 8192 * 1024 * 4096 / 100e-6 / 989.5e12)
    assert large.rate.endswith(" TFLOP/s")


def test_a_warm_cache_has_no_share_of_the_memorys_peak() -> None:
    row = summarize_row(record([4.0] * 5, cache="warm"), H200)
    assert row.share == pytest.approx(2 * 1024 * 4096 / 4e-6 / 989.5e12)
    assert summarize_row(record([4.0] * 5, cache="warm"), Peak()).share is None


def test_a_stand_in_has_a_rate_and_no_share_of_a_peak() -> None:
    measured = record([10.0] * 3)
    assert measured.measurement is not None
    stands_in = replace(measured, measurement=replace(measured.measurement, stand_in="composition of 4"))
    assert summarize_row(measured, H200).share is not None
    assert summarize_row(stands_in, H200).share is None
    assert summarize_row(stands_in, H200).rate
    assert "composition" in summarize_row(stands_in, H200).line()
    assert "composition" not in summarize_row(measured, H200).line()


def test_a_message_is_told_by_its_bytes_and_devices() -> None:
    cells = {MESSAGE_BYTES: "1048576", NUM_DEVICES: "16"}
    assert row_shapes("hcom_allReduce_", cells) == "1048576 B on 16"
    assert row_shapes("hcom_allReduce_", {}) == " B on "


def test_the_line_for_ci_has_how_it_was_taken_and_the_capture() -> None:
    line = figures(median_us=15.05, captured_us=14.2).line()
    assert all(part in line for part in ("15.05 us", "±2.0 %", "n=20", "cold", "cupti", "14.2 us", "1.06x"))
    assert ", drifting" in figures(quality=Quality.DRIFTING).line()


def test_rows_of_a_type_together() -> None:
    rows = [figures("Add", us, noise=us / 100) for us in (3.0, 1.0, 2.0)] + [figures("Mul", 9.0)]
    rows += [figures("Sub", quality=quality) for quality in (Quality.NOISY, Quality.COMPOSITION)]
    (types, *_) = duration_tables(rows)
    assert [row[:6] for row in types.rows][:2] == [("Add", 3, 2.0, 1.0, 3.0, 0.02), ("Mul", 1, 9.0, 9.0, 9.0, 0.02)]
    # A composition is no noise.
    assert [row[6] for row in types.rows] == [0, 0, 1]


def test_few_rows_have_no_lists_of_the_slowest() -> None:
    rows = [figures("Add", us, noise=us / 100) for us in range(1, 8)]
    (types,) = duration_tables(rows[:5])
    assert [row[:2] for row in types.rows] == [("Add", 5)]
    _, slowest, noisiest = duration_tables(rows)
    assert [row[0] for row in slowest.rows] == [7, 6, 5, 4, 3]
    assert [row[1] for row in noisiest.rows] == [0.07, 0.06, 0.05, 0.04, 0.03]


def test_rows_that_are_not_quiet_are_counted_by_quality_with_the_cause_of_noise() -> None:
    rows = [figures(quality=quality) for quality in Quality] + [figures(quality=Quality.NOISY)]
    found = quality_fields(rows, "load 4.2 on 2 cores")
    assert found["noisy"][0] == 2
    assert found["noisy"][1].endswith("load 4.2 on 2 cores")
    assert {name: count for name, (count, _) in found.items() if name != "noisy"} == {
        "unknown quality": 1,
        **{each.value: 1 for each in Quality if each not in (Quality.UNKNOWN, Quality.QUIET, Quality.NOISY)},
    }
    assert quality_fields([figures()], "load 9") == {}


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
