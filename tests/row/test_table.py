"""The typed columns of a table: durations, statuses, sizes, whatever the cells were read from."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from opatlas.row import columns as col
from opatlas.row.quality import Quality, Source
from opatlas.row.table import RowTable

PRODUCT = {
    col.INPUT_SHAPES: "4,8;8,16",
    col.INPUT_DTYPES: "DT_BF16;DT_BF16",
    col.OUTPUT_SHAPES: "4,16",
    col.OUTPUT_DTYPES: "DT_BF16",
}


def table(*rows: dict[str, str], kernel_type: str = "MatMulV2", arrow: bool = True) -> RowTable:
    names = dict.fromkeys(name for row in rows for name in row)
    cells = {name: [row.get(name, "") for row in rows] for name in names}
    return RowTable(kernel_type, Path(f"{kernel_type}.csv"), pa.table(cells) if arrow else pd.DataFrame(cells))


@pytest.mark.parametrize("arrow", [True, False])
def test_a_row_has_its_durations_sizes_and_place(arrow: bool) -> None:
    rows = table(
        PRODUCT,
        {
            **PRODUCT,
            col.AVERAGE: "10",
            col.MICROBENCH_MEDIAN: "9.5",
            col.MICROBENCH_STD: "0.5",
            col.MICROBENCH_SAMPLES: "20",
        },
        arrow=arrow,
    )
    assert len(rows) == 2
    assert rows.row(0).replayed is None
    found = rows.row(1).replayed
    assert found is not None
    assert (found.source, found.us, found.median_us, found.samples) == (Source.REPLAYED, 10.0, 9.5, 20.0)
    assert found.noise == pytest.approx(0.05)
    assert not found.noisy
    assert rows.row(1).place == "MatMulV2.csv:3"
    assert [rows.row(1).sizes[name] for name in ("m", "n", "k", "bytes")] == [4, 16, 8, 2 * (32 + 128 + 64)]
    assert rows.by_signature == {rows.row(0).signature: 0}
    assert [row.position for row in rows] == [0, 1]
    assert rows.frame[col.AVERAGE].tolist() == ["", "10"]


@pytest.mark.parametrize("cell", ["", "0", "-1", "nan", "inf", "none", "3600000001"])
def test_what_no_launch_takes_is_no_duration(cell: str) -> None:
    rows = table({**PRODUCT, col.AVERAGE: cell, col.PROFILING_AVERAGE: cell})
    assert rows.row(0).replayed is None
    assert rows.row(0).captured is None


def test_a_replay_without_a_quality_is_noisy_by_its_spread_and_a_capture_by_its_populations() -> None:
    spread = {col.AVERAGE: "10", col.MICROBENCH_STD: "2", col.PROFILING_AVERAGE: "10", col.PROFILING_STD: "5"}
    rows = table(
        spread, {**spread, col.QUALITY: "quiet"}, {**spread, col.QUALITY: "drifting", col.PROFILING_POPULATIONS: "2"}
    )
    assert rows.replayed.noisy.tolist() == [True, False, True]
    assert rows.captured.noisy.tolist() == [False, False, True]
    assert rows.captured.quality == [None, None, Quality.BIMODAL]


def test_a_composition_is_known_unknown_or_none() -> None:
    rows = table({col.STAND_IN: "mm"}, {col.QUALITY: "composition"}, {col.QUALITY: "quiet"}, {col.AVERAGE: "1"})
    assert list(rows.replayed.composed) == [True, True, False, None]
    assert rows.replayed.of_kernel.tolist() == [False, False, False, True]


def test_a_message_stores_the_median_and_other_tools_an_average() -> None:
    rows = table(
        {"message_bytes": "1024", "num_devices": "2", "dtype": "DT_BF16", "topology_tier": "1", col.DURATION: "5"},
        {"message_bytes": "2048", "num_devices": "2", "dtype": "DT_BF16", "topology_tier": "1", col.AVERAGE: "7"},
        kernel_type="hcom_allReduce_",
    )
    assert rows.replayed.median_us.tolist()[0] == 5.0
    assert math.isnan(rows.replayed.us[1])
    assert [each[1] is not None for each in rows.durations] == [False, True, False]
    assert rows.titles[0] == "1024 bytes, 2 devices, DT_BF16, tier 1"


@pytest.mark.parametrize(("std", "counted"), [("400", 2.0), ("0.5", 0.5), ("", math.nan)])
def test_a_stall_of_a_message_is_no_noise_of_its_median(std: str, counted: float) -> None:
    cells = {"message_bytes": "1024", "num_devices": "2", "dtype": "DT_BF16", "topology_tier": "1"}
    cells |= {col.DURATION: "12", col.MICROBENCH_MIN: "10", col.MICROBENCH_STD: std, col.MICROBENCH_SAMPLES: "30"}
    (noise,) = table(cells, kernel_type="hcom_allGather_").replayed.std_us
    assert noise == pytest.approx(counted, nan_ok=True)


def test_equal_cells_have_equal_words_however_they_are_written() -> None:
    rows = table({**PRODUCT, col.INPUT_DTYPES: "DT_BF16;BFLOAT16;DT_FLOAT"}, {**PRODUCT, col.INPUT_DTYPES: "BF16;BF16"})
    # A product has no third input without a shape.
    assert rows.words(col.INPUT_DTYPES) == [("BF16", "BF16")] * 2
    assert rows.words(col.INPUT_SHAPES) == [("4,8", "8,16")] * 2
    assert table({col.INPUT_DTYPES: "FP32;FLOAT"}, kernel_type="Add").words(col.INPUT_DTYPES) == [("FLOAT", "FLOAT")]


def test_pooled_cells_count_for_the_run_that_they_name() -> None:
    pooled = {col.POOLED_MACHINES: "5", col.POOLED_SPREAD: "2.5", col.POOLED_RUN_DURATIONS: "one 9.1; two 9.2"}
    rows = table({**pooled, col.RUN_ID: "two"}, {**pooled, col.RUN_ID: "three"}, {col.RUN_ID: "two"})
    assert rows.machines == [(5, 0.025), (None, None), (None, None)]
