"""Every stored row answers with itself, and a question that no row or several rows fit gets a remedy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import opatlas
from opatlas.ask.query.implementation_answers import ANSWER_COLUMNS, COMPOSITION_WORDS
from opatlas.ask.query.question import usual_deviation
from opatlas.data.database import Database
from opatlas.row.columns import PROFILING_AVERAGE, PROFILING_MEDIAN
from opatlas.row.communication import row_kind
from opatlas.row.quality import valid_duration
from opatlas.theory.model_calls import model_calls
from opatlas.theory.sources import resolve_model
from tests.ask.tables import RUN, product_rows, write_table

SHIPPED = [path for path in opatlas.list_databases() if (path / "SHIPPED.txt").exists()]


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: "-".join(path.parts[-3:]))
def test_every_row_that_ships_answers_with_itself(folder: Path) -> None:
    database = opatlas.open(folder, compositions=True)
    asked, own = 0, next(iter(database.implementations))
    for kernel_type in database.kernel_types():
        frame = Database(folder).read_or_empty(kernel_type).frame
        column = row_kind(kernel_type).duration_columns[0]
        if column not in frame.columns:
            # Another implementation has the rows.
            continue
        stored = frame[column].map(valid_duration)
        frame, stored = frame[stored.notna()], stored[stored.notna()].astype(float)
        if frame.empty:
            continue
        answers = database.query_many(kernel_type, frame, implementation=own)
        first = stored.groupby(database.answers.stored_rows(kernel_type, own).signatures).transform("first")
        assert answers["Duration(us)"].tolist() == first.tolist(), kernel_type
        assert set(answers["How"]) == {"measured"}
        assert (answers["Low(us)"] < answers["Duration(us)"]).all()
        assert (answers["High(us)"] > answers["Duration(us)"]).all()
        asked += len(frame)
    assert asked


def test_many_answers_say_where_and_how_each_was_measured(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    rows = product_rows([(m, 512, 1024) for m in (8, 16)], us=[12.5, 13.0])
    conditions = {"Cache State": ["cold", "warm"], "Instrument": ["cupti", "events"]}
    pooled = {"Pooled Machines": ["3", ""], "Pooled Machine Spread(%)": ["1.5", ""]}
    write_table(folder, "MatMulV2", rows.assign(**conditions, **pooled, **{"Pooled Run Durations(us)": f"{RUN}:12.5"}))
    asked = product_rows([(8, 512, 1024), (16, 512, 1024), (32, 512, 1024)], us=[0, 0, 0])
    answers = opatlas.open(folder).query_many("MatMulV2", asked)
    assert tuple(answers.columns) == ANSWER_COLUMNS
    assert answers["Device"].tolist() == ["NVIDIA_H200"] * 3
    assert answers["Cache State"].tolist() == ["cold", "warm", "cold, warm"]
    assert answers["Instrument"].tolist() == ["cupti", "events", "cupti, events"]
    assert answers["Machines"].tolist() == [3, "", ""]
    assert answers["How"].tolist()[:2] == ["measured"] * 2


@pytest.mark.parametrize(
    ("populations", "quality"), [("", ""), ("10 launches around 11 us and 10 around 14 us", "bimodal")]
)
def test_a_captured_average_of_two_populations_is_reported(tmp_path: Path, populations: str, quality: str) -> None:
    rows = product_rows([(16, 512, 1024)], us=[0]).drop(columns=["Average Duration(us)", "Quality", "Run ID"])
    rows = rows.assign(**{"Profiling Average Duration(us)": "12.5", "Profiling Populations": populations})
    write_table(tmp_path, "MatMulV2", rows)
    database = opatlas.open(tmp_path)
    answer = database.query("MatMulV2", "16,1024;512,1024")
    assert (answer.duration_us, answer.instrument, answer.quality) == (12.5, "capture", quality)
    assert bool(answer.note) == bool(populations)
    assert populations in answer.note
    many = database.query_many("MatMulV2", rows)
    assert (many["Quality"][0], many["Instrument"][0]) == (quality, "capture")
    of_trace = {"Profiling Populations": "", "Profiling Kernel Names": "a + b", "Profiling Source": "CUDA graph"}
    write_table(tmp_path, "MatMulV2", rows.assign(**of_trace))
    assert opatlas.open(tmp_path).query("MatMulV2", "16,1024;512,1024").note == "CUDA graph: a + b"


@pytest.mark.parametrize("cells", [{"Quality": "composition"}, {"Stand-In": "several operators"}, {"Status": "failed"}])
@pytest.mark.parametrize("others", [0, 12])
def test_rows_that_do_not_answer_are_rivals(tmp_path: Path, cells: dict[str, str], others: int) -> None:
    sizes = [(16, 512, 1024), *((32 * (1 + i), 512, 1024) for i in range(others))]
    rows = product_rows(sizes, us=[12.5, *(20.0 + i for i in range(others))])
    for name, cell in cells.items():
        rows[name] = [cell, *rows.get(name, pd.Series([""] * len(rows)))[1:]]
    write_table(tmp_path, "MatMulV2", rows)
    if others:
        answer = opatlas.open(tmp_path).query("MatMulV2", "16,1024;512,1024")
        assert answer.how is not opatlas.How.MEASURED
        is_composed = "Status" not in cells
        assert [(each.duration_us, each.how, each.composed) for each in answer.rivals] == [
            (12.5, "measured", is_composed)
        ]
        assert "stored" in answer.note
    else:
        with pytest.raises(opatlas.NoAnswer):
            opatlas.open(tmp_path).query("MatMulV2", "16,1024;512,1024")
    if "Status" not in cells:
        assert opatlas.open(tmp_path, compositions=True).query("MatMulV2", "16,1024;512,1024").duration_us == 12.5


@pytest.mark.parametrize(
    ("cells", "half_width"),
    [
        ({"Quality": "bimodal"}, 0.01 * 1.645),
        ({"Quality": "noisy", "MicroBench Std Duration(us)": "5"}, 0.4 * 1.645),
        ({"Quality": "drifting", "MicroBench Std Duration(us)": "2.5"}, 0.2 * 1.645),
        ({"Quality": "throttled"}, 0.01 * 1.645),
        ({"Quality": "", "MicroBench Std Duration(us)": "6"}, 0.48 * 1.645),
        ({"Status": "timeout"}, 0.01 * 1.645 / 5),
    ],
)
def test_a_row_that_is_stored_answers_with_its_spread(tmp_path: Path, cells: dict[str, str], half_width: float) -> None:
    sizes = [(m, 512, 1024) for m in (16, *range(32, 448, 32))]
    rows = product_rows(sizes, us=[12.5, *(20.0 + i for i in range(13))])
    for name, cell in cells.items():
        rows.loc[0, name] = cell
    write_table(tmp_path, "MatMulV2", rows)
    database = opatlas.open(tmp_path)
    answer = database.query("MatMulV2", "16,1024;512,1024")
    assert (answer.how, answer.duration_us, answer.quality) == ("measured", 12.5, cells.get("Quality", "quiet"))
    width = math.hypot(half_width, 0.0390)
    assert answer.interval_us == pytest.approx((12.5 * max(1 - width, 0.01), 12.5 * (1 + width)), abs=1e-3)
    assert cells.get("Status", "") in answer.note
    assert bool(answer.note) == ("Status" in cells)
    many = database.query_many("MatMulV2", rows)
    assert many["Low(us)"][0] == pytest.approx(answer.interval_us[0])
    assert (many["How"][0], many["High(us)"][0]) == ("measured", pytest.approx(answer.interval_us[1]))
    # It predicts no others.
    others = database.query("MatMulV2", "24,1024;512,1024").rows
    assert answer.rows[0].case_id not in {row.case_id for row in others}


@pytest.mark.parametrize("noise", [0.05, 0.15, 3.0])
def test_a_noisy_message_answers(tmp_path: Path, noise: float) -> None:
    sizes = [1024 << i for i in range(16)]
    us = [5.0 + size / 1e5 for size in sizes]
    messages = pd.DataFrame(
        {
            "message_bytes": [str(size) for size in sizes],
            "num_devices": "2",
            "dtype": "DT_BF16",
            "topology_tier": "1",
            "Duration(us)": [f"{each:.4f}" for each in us],
            "MicroBench Std Duration(us)": [f"{each * (noise if i < 8 else 0.01):.4f}" for i, each in enumerate(us)],
            "MicroBench Samples": "25",
            "Status": "measured",
        }
    )
    write_table(tmp_path, "hcom_allReduce_", messages)
    database = opatlas.open(tmp_path)
    for size, duration_us in zip(sizes, us, strict=True):
        answer = database.collective("all_reduce", bytes=size, devices=2)
        assert (answer.how, answer.duration_us) == ("measured", pytest.approx(duration_us, abs=1e-4))
    between = database.collective("all_reduce", bytes=5000, devices=2)
    assert between.how == ("extrapolated" if noise == 3.0 else "interpolated")


@pytest.mark.parametrize(
    ("kernel_type", "cells", "composed"),
    [
        pytest.param("SwiGlu", {"Instrument": "cupti", "MicroBench Device Kernels": "2"}, None, id="unknown"),
        pytest.param("SwiGlu", {"Instrument": "cupti", "MicroBench Device Kernels": "1"}, False, id="one kernel"),
        pytest.param("SwiGlu", {"Instrument": "msprof", "MicroBench Device Kernels": "2"}, False, id="an NPU"),
        pytest.param("SwiGlu", {"Instrument": "cupti", "Quality": "quiet"}, False, id="quiet"),
        pytest.param("SwiGlu", {"Instrument": "cupti", "Quality": "composition"}, True, id="a composition"),
        pytest.param("SwiGlu", {}, False, id="captured"),
        pytest.param("Sort", {"Instrument": "cupti", "MicroBench Device Kernels": "21"}, False, id="one operator"),
        pytest.param("RmsNorm", {"Instrument": "wall-clock"}, None, id="kernels not counted"),
        pytest.param("of_a_user", {"Instrument": "cupti"}, None, id="no replay"),
    ],
)
def test_an_answer_says_whether_its_row_is_a_composition(
    tmp_path: Path, kernel_type: str, cells: dict[str, str], composed: bool | None
) -> None:
    rows = product_rows([(16, 512, 1024)], us=[12.5]).drop(columns=["Quality"]).assign(**cells)
    write_table(tmp_path, kernel_type, rows)
    database = opatlas.open(tmp_path, compositions=True)
    stored = database.query(kernel_type, "16,1024;512,1024")
    predicted = database.query(kernel_type, "24,1024;512,1024", output_shapes="24,512")
    assert (stored.how, stored.composed, bool(stored.note)) == (opatlas.How.MEASURED, composed, composed is None)
    assert (predicted.how, predicted.composed) == (opatlas.How.ANALYTIC, composed)
    answers = database.query_many(kernel_type, rows)
    assert answers["Composition"].tolist() == [COMPOSITION_WORDS[composed]]


def test_a_captured_answer_says_that_lengths_are_means(tmp_path: Path) -> None:
    calls = model_calls(resolve_model("Qwen/Qwen3-32B"), batch=4, context=512)
    cells = next(call.cells for call in calls if call.part == "attention")
    told = {"Profiling Average Duration(us)": "40", "Runtime metadata_completeness": "mean-lengths"}
    write_table(tmp_path, "FusedInferAttentionScore", pd.DataFrame([{**cells, **told}]))
    database = opatlas.open(tmp_path)
    answer = database.answers.answer_row(next(iter(database.implementations)), "FusedInferAttentionScore", cells)
    assert (answer.how, "mean length" in answer.note) == (opatlas.How.MEASURED, True)


def test_rows_of_the_dtypes_that_are_asked_predict_before_faster_ones_of_others(tmp_path: Path) -> None:
    sizes = [(m, 512, 1024) for m in (8, 16, 32)]
    write_table(tmp_path, "MatMulV2", product_rows(sizes, us=[12.0, 13.0, 14.0]))
    other = product_rows(sizes, us=[3.0, 3.5, 4.0]).assign(**{"Input Data Types": "INT8;INT8"})
    write_table(tmp_path / "implementations" / "mine-1.0", "MatMulV2", other)
    database, asked = opatlas.open(tmp_path), product_rows([(24, 512, 1024)], us=[0.0])
    answers = database.query_many("MatMulV2", asked)
    assert (answers["Duration(us)"][0] > 10, answers["Note"][0]) == (True, "")
    assert "dtypes" in database.query_many("MatMulV2", asked, implementation="mine")["Note"][0]


def test_the_fastest_implementation_answers_unless_one_is_named(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", product_rows([(16, 512, 1024)], us=[12.5]))
    write_table(tmp_path / "implementations" / "mine-1.0", "MatMulV2", product_rows([(16, 512, 1024)], us=[9.0]))
    database = opatlas.open(tmp_path)
    fastest = database.query("MatMulV2", "16,1024;512,1024")
    assert (fastest.duration_us, fastest.implementation) == (9.0, "mine 1.0")
    assert [rival.duration_us for rival in fastest.rivals] == [12.5]
    default, mine = database.implementations
    assert database.query("MatMulV2", "16,1024;512,1024", implementation=default).duration_us == 12.5
    table = product_rows([(16, 512, 1024)], us=[0])
    assert database.query_many("MatMulV2", table)["Duration(us)"].tolist() == [9.0]
    assert database.query_many("MatMulV2", table, implementation=mine)["Implementation"].tolist() == ["mine 1.0"]


def test_rows_that_differ_beyond_the_question_are_distinguished(tmp_path: Path) -> None:
    rows = product_rows([(16, 512, 1024), (16, 512, 1024)], us=[12.5, 25.0])
    rows.loc[1, ["Input Data Types", "Output Data Types"]] = ["FLOAT;FLOAT", "FLOAT"]
    write_table(tmp_path, "MatMulV2", rows)
    database = opatlas.open(tmp_path)
    with pytest.raises(opatlas.NoAnswer, match="dtypes"):
        database.query("MatMulV2", "16,1024;512,1024")
    for spelled in ("float32", "torch.float32"):
        assert database.query("MatMulV2", "16,1024;512,1024", dtypes=spelled).duration_us == 25.0


@pytest.mark.parametrize(
    ("kernel_type", "shapes", "options", "remedy"),
    [
        ("MatMulV22", "16,1024;512,1024", {}, "MatMulV2"),
        ("MatMulV2", "16,1024;512,x", {}, "16,1024;512,x"),
        ("MatMulV2", "", {}, "48,18432"),
        ("MatMulV2", [16, "512"], {}, "16 "),
        ("MatMulV2", "16,1024;512,1024", {"dtypes": "bf17"}, "BF16"),
        ("MatMulV2", "16,1024;512,1024", {"implementation": "other"}, "fastest"),
    ],
)
def test_a_wrong_question_is_an_error_with_a_remedy(
    tmp_path: Path, kernel_type: str, shapes: object, options: dict[str, object], remedy: str
) -> None:
    write_table(tmp_path, "MatMulV2", product_rows([(16, 512, 1024)], us=[12.5]))
    with pytest.raises(opatlas.OpAtlasError, match=remedy):
        opatlas.open(tmp_path).query(kernel_type, shapes, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["NVIDIA_H2000", "no/such/folder"])
def test_a_place_without_a_database_is_an_error(place: str) -> None:
    with pytest.raises(opatlas.OpAtlasError, match="name"):
        opatlas.open(place)


def test_a_table_without_a_needed_column_is_an_error(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", product_rows([(16, 512, 1024)], us=[12.5]))
    with pytest.raises(opatlas.OpAtlasError, match="Output Shapes"):
        opatlas.open(tmp_path).query_many("MatMulV2", pd.DataFrame({"Input Shapes": [""], "Input Data Types": [""]}))


def test_a_question_that_only_compositions_answer_names_their_option(tmp_path: Path) -> None:
    write_table(tmp_path, "SwiGlu", product_rows([(16, 512, 1024)], us=[100.0]).assign(Quality="composition"))
    shapes = ["16,1024", "512,1024"]
    with pytest.raises(opatlas.NoAnswer, match="compositions=True"):
        opatlas.open(tmp_path).query("SwiGlu", shapes)
    with pytest.raises(opatlas.NoAnswer, match="compositions=True"):
        opatlas.open(tmp_path).query_row("SwiGlu", {"Input Shapes": ";".join(shapes)})
    assert opatlas.open(tmp_path, compositions=True).query("SwiGlu", shapes).composed


@pytest.mark.parametrize(
    ("machines", "spread", "runs", "half_width"),
    [
        ("3", "6.00", RUN, 0.0638),  # their deviation is 3.5 %, the usual one 0.94 %: both 2.6 %
        ("3", "0.10", RUN, 0.0164),  # machines that agree by chance
        ("40", "6.00", RUN, 0.0331),
        ("2", "1.00", RUN, 0.0266),
        ("3", "6.00", "20250101T000000-bbbbbb", 0.0388),  # of a duration that was replaced
        ("3", "", RUN, 0.0317),
        ("3", "-1", RUN, 0.0317),
        ("three", "6.00", RUN, 0.0388),
    ],
)
def test_the_spread_between_machines_tells_the_interval_of_a_further_one(
    tmp_path: Path, machines: str, spread: str, runs: str, half_width: float
) -> None:
    pooled = {"Pooled Machines": machines, "Pooled Machine Spread(%)": spread, "Pooled Run Durations(us)": f"{runs} 1"}
    rows = product_rows([(16, 512, 1024)], us=[100.0]).assign(**{**pooled, "MicroBench Std Duration(us)": "0"})
    write_table(tmp_path, "MatMulV2", rows)
    answer = opatlas.open(tmp_path).query("MatMulV2", ["16,1024", (512, 1024)], dtypes="BF16")
    assert answer.interval_us == pytest.approx((100 * (1 - half_width), 100 * (1 + half_width)), abs=0.006)
    (many,) = opatlas.open(tmp_path).query_many("MatMulV2", rows)["High(us)"]
    assert many == pytest.approx(answer.interval_us[1])
    holds = runs == RUN and spread in ("6.00", "0.10", "1.00") and machines.isdigit()
    line = opatlas.open(tmp_path).frame("MatMulV2").iloc[0]
    if holds:
        assert (line["machines"], line["machine_spread"]) == (int(machines), float(spread) / 100)
    here = opatlas.open(tmp_path, same_machine=True).query("MatMulV2", ["16,1024", (512, 1024)], dtypes="BF16")
    assert here.interval_us == pytest.approx((97.9, 102.1))


def test_runs_of_one_machine_that_differ_widen_the_interval(tmp_path: Path) -> None:
    """Of two runs of 80 and 120 us the pooled one had an interval of 3.9 %."""
    pooled = {"Pooled Machines": "1", "Pooled Run Durations(us)": f"20250101T000000-bbbbbb 80; {RUN} 120"}
    rows = product_rows([(16, 512, 1024)], us=[120.0]).assign(**{**pooled, "MicroBench Std Duration(us)": "0"})
    write_table(tmp_path, "MatMulV2", rows)
    for same_machine, width in ((False, 0.0388), (True, 0.021)):
        opened = opatlas.open(tmp_path, same_machine=same_machine)
        _, high = opened.query("MatMulV2", ["16,1024", (512, 1024)], dtypes="BF16").interval_us
        # Their deviation is 28.28 us of 100.
        assert high == pytest.approx(120 * (1 + np.hypot(1.645 * 0.2828, width)), rel=1e-3)


@pytest.mark.parametrize("deviation", [0.003, 0.02])
@pytest.mark.parametrize("machines", [1, 2, 4, 7])
def test_nine_of_ten_further_machines_lie_in_the_intervals(tmp_path: Path, machines: int, deviation: float) -> None:
    """Rows differ in how much machines differ, which have long tails. Rows of two machines tell what is usual."""
    draw, counts = np.random.default_rng(0), np.where(np.arange(1200) % 2, machines, 2)
    own = deviation / np.sqrt(draw.chisquare(2, (1200, 1)) / 2)
    medians = 100 * np.exp(own * draw.standard_t(3, (1200, 9)))
    known = np.where(np.arange(8) < counts[:, None], medians[:, :8], np.nan)
    middle = np.nanquantile(known, 0.5, axis=1, method="lower")
    pooled = {
        "Pooled Machines": counts,
        "Pooled Machine Spread(%)": 100 * (np.nanmax(known, axis=1) - np.nanmin(known, axis=1)) / middle,
        "Pooled Run Durations(us)": f"{RUN} 1",
        "MicroBench Std Duration(us)": "0",
    }
    rows = product_rows([(8 + i, 512, 1024) for i in range(1200)], us=middle.tolist()).assign(**pooled)
    write_table(tmp_path, "MatMulV2", rows)
    answers = opatlas.open(tmp_path).query_many("MatMulV2", rows)
    inside = (answers["Low(us)"] <= medians[:, 8]) & (medians[:, 8] <= answers["High(us)"])
    assert 0.88 <= inside[counts == machines].mean() <= 0.94


@pytest.mark.parametrize("deviation", [0.002, 0.03])
def test_a_dozen_rows_tell_how_much_machines_usually_differ(deviation: float) -> None:
    usual = []
    for seed in range(20):
        medians = np.random.default_rng(seed).normal(0, deviation, (12, 2))
        machines = np.array([np.full(12, 2.0), np.ptp(medians, axis=1)])
        usual.append(usual_deviation(machines, np.full(12, 1000.0), np.zeros(12)))
    assert 0.6 < np.mean(usual) / deviation < 1.6


def test_a_captured_duration_has_its_own_median_and_no_instrument_of_a_replay(tmp_path: Path) -> None:
    rows = product_rows([(16, 512, 1024), (32, 512, 1024)], [5, 0])
    conditions = {"Cache State": "cold", "Instrument": "cupti"}
    captured = rows.assign(**conditions, **{PROFILING_AVERAGE: ["", "9.5"], PROFILING_MEDIAN: ["", "9.25"]})
    captured.loc[1, "Average Duration(us)"] = ""
    write_table(tmp_path, "MatMulV2", captured)
    database = opatlas.open(tmp_path)
    replayed, of_capture = (database.matmul(m=m, n=512, k=1024) for m in (16, 32))
    assert (replayed.cache, replayed.instrument) == ("cold", "cupti")
    assert (of_capture.duration_us, of_capture.cache, of_capture.instrument) == (9.5, "", "capture")
    assert database.frame("MatMulV2")["median_us"].tolist()[1] == 9.25


@pytest.mark.parametrize(
    ("row_us", "rival_us", "ends_below"), [(100.0, 20.0, True), (24.0, 20.0, False), (20.0, 24.0, False)]
)
def test_a_prediction_goes_before_a_measured_row_only_with_its_whole_interval(
    tmp_path: Path, row_us: float, rival_us: float, ends_below: bool
) -> None:
    # The interval of this smooth table is far narrower than the difference of 100 and 20, and wider than that of 24.
    write_table(tmp_path, "MatMulV2", product_rows([(192, 512, 1024)], us=[row_us]))
    tokens = (16, 32, 64, 128, 256, 512, 1024, 2048)
    smooth = [rival_us * (0.5 + 0.5 * m / 192) * (1 + 0.06 * (-1) ** i) for i, m in enumerate(tokens)]
    sizes = [(m, n, 1024) for n in (512, 1024) for m in tokens]
    mine = tmp_path / "implementations" / "mine-1.0"
    write_table(mine, "MatMulV2", product_rows(sizes, us=[*smooth, *(2 * us for us in smooth)]))
    database = opatlas.open(tmp_path)
    answer = database.query("MatMulV2", "192,1024;512,1024")
    row = database.query("MatMulV2", "192,1024;512,1024", implementation=next(iter(database.implementations)))
    rival = database.query("MatMulV2", "192,1024;512,1024", implementation="mine")
    assert (row.how, rival.how) == ("measured", "interpolated")
    assert (rival.interval_us[1] < row_us) is ends_below
    first, second = (rival, row) if ends_below else (row, rival)
    assert (answer.implementation, answer.duration_us) == (first.implementation, first.duration_us)
    assert [(each.implementation, each.how) for each in answer.rivals] == [(second.implementation, second.how)]
    (many,) = database.query_many("MatMulV2", product_rows([(192, 512, 1024)], us=[0])).to_dict("records")
    assert (many["Implementation"], many["How"]) == (first.implementation, first.how)
    assert many["Duration(us)"] == pytest.approx(first.duration_us)
    assert (many["Quality"], many["Run ID"]) == (("", "") if ends_below else ("quiet", RUN))


@pytest.mark.parametrize("others", [{"Input Data Types": "FLOAT16;FLOAT16"}, {"few": "rows"}])
def test_a_guess_and_rows_of_other_dtypes_go_before_no_measured_row(tmp_path: Path, others: dict[str, str]) -> None:
    write_table(tmp_path, "MatMulV2", product_rows([(192, 512, 1024)], us=[1000.0]))
    sizes = [(m, n, 1024) for n in (512, 1024) for m in (16, 32, 64, 128, 256, 512, 1024, 2048)]
    sizes = sizes[:3] if "few" in others else sizes
    rows = product_rows(sizes, us=[2.0 + m / 100 for m, _, _ in sizes])
    write_table(tmp_path / "implementations" / "mine-1.0", "MatMulV2", rows.assign(**others))
    database = opatlas.open(tmp_path)
    cells = product_rows([(192, 512, 1024)], us=[0])
    row = {str(name): str(cell) for name, cell in cells.iloc[0].items()}
    assert database.query_row("MatMulV2", row).how == "measured"
    assert database.query_many("MatMulV2", cells)["How"].tolist() == ["measured"]


def test_another_kernel_type_that_does_the_same_work_answers_where_there_are_no_rows(tmp_path: Path) -> None:
    calls = model_calls(resolve_model("Qwen/Qwen3-32B"), batch=64, context=4096)
    others = [call.instead for call in calls if call.instead is not None]
    for other in others:
        write_table(tmp_path / "db", other.kernel_type, pd.DataFrame([{**other.cells, "Average Duration(us)": "5"}]))

    def parts() -> dict[str, tuple[str, float | None]]:
        found = opatlas.open(tmp_path / "db").model("Qwen/Qwen3-32B", batch=64, context=4096).parts
        return {part.part: (part.kernel_type, part.us_per_call) for part in found if part.us_per_call is not None}

    assert parts() == {"rope": ("_triton_rope", 5), "last_tokens": ("GatherV3", 5)}
    own = next(call.cells for call in calls if call.part == "rope")
    write_table(tmp_path / "db", "ApplyRotaryPosEmb", pd.DataFrame([{**own, "Average Duration(us)": "7"}]))
    assert parts()["rope"] == ("ApplyRotaryPosEmb", 7)
