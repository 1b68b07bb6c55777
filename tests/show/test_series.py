"""Series of durations on the site: curves over one size, with predictions, and histories over runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from many_runs import run_name, write_runs

import opatlas
from opatlas.show.site.series import RunHistories, curve_cells, curves_of, predicted
from tests.ask.tables import product_rows, write_table

TOKENS = (1, 2, 4, 8, 16, 32, 63, 64, 65, 128)


def weights(*sizes: tuple[int, int], dtype: str = "DT_BF16") -> pd.DataFrame:
    """Returns products of each weight (n, k) with some tokens, which take 2 us + a time that grows with all sizes."""
    calls = [(m, n, k) for n, k in sizes for m in TOKENS]
    rows = product_rows(calls, [2 + m * n * k / 1e7 for m, n, k in calls])
    return rows.assign(**{"Input Data Types": f"{dtype};{dtype}", "Output Data Types": dtype})


def test_the_products_of_a_weight_are_a_curve_over_m(tmp_path: Path) -> None:
    # One of the weights has the size of a number of tokens.
    tables = [
        weights((512, 1024), (256, 64)),
        weights((512, 1024), dtype="DT_FLOAT16"),
        product_rows([(7, 9, 11)], [1.0]),
    ]
    write_table(tmp_path, "MatMulV2", pd.concat(tables, ignore_index=True))
    rows = opatlas.open(tmp_path).answers.stored_rows("MatMulV2", next(iter(opatlas.open(tmp_path).implementations)))
    curves = curves_of(rows)
    assert sorted((each.name, each.cells["Input Data Types"], len(each.places)) for each in curves) == [
        ("*,1024;512,1024", "DT_BF16;DT_BF16", len(TOKENS)),
        ("*,1024;512,1024", "DT_FLOAT16;DT_FLOAT16", len(TOKENS)),
        # With 64 tokens the depth of the weight has this size, too: another curve, of one row.
        ("*,64;256,64", "DT_BF16;DT_BF16", len(TOKENS) - 1),
    ]
    cells = curve_cells(curves, len(rows), 5)
    assert cells[-1] == {}
    assert [each["varies"] for each in cells[: len(TOKENS)]] == list(TOKENS)
    assert {each["curve"] for each in cells if each} == {5, 6, 7}


def test_a_curve_has_predictions_between_its_rows_and_at_the_edges_of_tiles(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", weights((512, 1024), (1024, 1024), (512, 2048)))
    database = opatlas.open(tmp_path)
    (name,) = database.implementations
    curves = curves_of(database.answers.stored_rows("MatMulV2", name))
    points = list(predicted(curves, database, "MatMulV2", name))
    assert len(points) == 3
    for curve, told in zip(curves, points, strict=True):
        assert {1, 64, 65, 128} <= set(told["x"])
        assert told["x"] == sorted(told["x"])
        row = database.answers.stored_rows("MatMulV2", name).found[curve.places[128]]
        assert told["us"][-1] == pytest.approx(row.duration.us, rel=0.1)
        assert all(factor > 1 for factor in told["factor"])


def test_too_few_rows_predict_nothing(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", product_rows([(m, 8, 16) for m in (2, 4, 32)], [1.0, 2.0, 3.0]))
    database = opatlas.open(tmp_path)
    (name,) = database.implementations
    curves = curves_of(database.answers.stored_rows("MatMulV2", name))
    assert [list(each.places) for each in curves] == [[2, 4, 32]]
    assert [each["x"] for each in predicted(curves, database, "MatMulV2", name)] == [[]]


def test_messages_and_attention_have_curves(tmp_path: Path) -> None:
    sizes = [1 << power for power in range(10, 15)]
    messages = pd.concat(
        pd.DataFrame(
            {
                "message_bytes": sizes,
                "num_devices": devices,
                "dtype": "DT_BF16",
                "topology_tier": "1",
                "Duration(us)": "5",
            }
        )
        for devices in ("2", "4")
    )
    write_table(tmp_path, "hcom_allReduce_", messages)
    database = opatlas.open(tmp_path)
    (name,) = database.implementations
    rows = database.answers.stored_rows("hcom_allReduce_", name)
    assert [list(each.places) for each in curves_of(rows)] == [sizes, sizes]
    shipped = opatlas.open("NVIDIA_H200").answers.stored_rows("FusedInferAttentionScore", "flashinfer")
    longest, *others = curves_of(shipped)
    assert not [each.name for each in (longest, *others) if "None" in each.name]
    found = [shipped.found[place].row.sizes for place in longest.places.values()]
    assert len({(each["sequences"], each["heads"], each["kv_heads"], each["head_size"]) for each in found}) == 1
    assert [each["keys"] // each["sequences"] for each in found] == sorted(longest.places)


def test_histories_tell_runs_the_trend_and_what_the_newest_changed(tmp_path: Path) -> None:
    # The second row became slower by half after five runs; one row has one run only.
    rows = [[10.0 + row] * 10 for row in range(12)]
    rows[1] = [20.0] * 5 + [30.0] * 5
    database = opatlas.open(write_runs(tmp_path / "db", [*rows, [float("nan")] * 9 + [7.0]], {0: "2.10.0"}).path)
    histories = RunHistories([database], [])
    assert histories.runs == [run_name(number) for number in range(10)]
    (label,) = (each.label for each in database.implementations.values())
    ids = [row.case_id for row in database.answers.stored_rows("Abs", next(iter(database.implementations))).table]
    of_rows = histories.of_rows(pd.DataFrame({"id": ids, "implementation": label}))
    assert sorted(of_rows) == list(range(12))
    assert [us for _, us in of_rows[1]] == pytest.approx(rows[1])
    assert histories.trend([of_rows[1]])[0] == (0, pytest.approx(0.8))
    newest = histories.newest(database)
    assert newest is not None
    assert (newest["run"], newest["rows"], newest["again"], newest["runs"]) == (run_name(9), 13, 12, 10)
    assert newest["change"] == pytest.approx(0)
    assert newest["steps"] == {"slower": 1}
    assert [(each["id"], round(each["percent"])) for each in newest["largest"]] == [(ids[1], 50)]


def test_without_runs_nothing_is_new(tmp_path: Path) -> None:
    rows = product_rows([(1, 2, 3)], [1.0]).assign(**{"Run ID": ""})
    write_table(tmp_path, "MatMulV2", rows)
    assert RunHistories([opatlas.open(tmp_path)], []).newest(opatlas.open(tmp_path)) is None
