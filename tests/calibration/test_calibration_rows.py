"""The calibration set: which rows are chosen, and its file."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from opatlas.calibration.rows import CALIBRATION, ROWS, CalibrationRow, choose, read_set, stored_durations, write_set
from opatlas.errors import OpAtlasError
from opatlas.model.location import list_databases, shipped_note
from tests.query.tables import RUN, product_rows, write_table

#: Databases of a whole catalog that ship.
SHIPPED = [path for path in list_databases() if len(list(path.glob("[!.h]*.csv"))) > 30 and shipped_note(path)]
_ELSEWHERE = '{"rows": [{"family": "norms", "kernel_type": "../Abs", "case_id": "Abs-1"}]}'
SIZES = [(m, 512, 1024) for m in range(1, 81)]


def products(us: list[float], **columns: str) -> pd.DataFrame:
    conditions = {"Cache State": "cold", "Instrument": "wall-clock", **columns}
    return product_rows(SIZES[: len(us)], us).assign(**conditions)


def durations_of(folder: Path) -> list[float]:
    return [each.median_us for each in stored_durations(folder, choose(folder))]


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.parts[-3])
def test_the_set_of_a_database_that_ships_has_all_families_and_many_durations(folder: Path) -> None:
    rows = choose(folder)
    assert len(rows) == len({row.case_id for row in rows}) == ROWS
    assert Counter(row.family for row in rows).keys() == {
        *("products", "attention", "element-wise", "reductions", "copies", "norms", "launch-bound")
    }
    durations = [each.median_us for each in stored_durations(folder, rows)]
    assert max(durations) > 100 * min(durations)
    assert sum(durations) < 100_000
    assert choose(folder) == rows


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.parts[-3])
def test_a_database_that_ships_has_the_rows_of_its_set(folder: Path) -> None:
    rows = read_set(folder)
    assert rows, f"opatlas calibrate {folder} --choose"
    assert len(stored_durations(folder, rows)) == ROWS


def test_rows_that_tell_little_of_a_machine_are_left_out(tmp_path: Path) -> None:
    rows = products([50.0 + m for m in range(8)])
    rows.loc[0, "Quality"] = "noisy"
    rows.loc[1, "Stand-In"] = "composition of 2 torch operators (mm, add)"
    rows.loc[2, "Status"] = "failed"
    rows.loc[3, "Average Duration(us)"] = "900000"
    pooled = {"Pooled Machines": "3", "Pooled Machine Spread(%)": "40.00", "Pooled Run Durations(us)": f"{RUN} 54.0"}
    rows.loc[4, list(pooled)] = list(pooled.values())
    rows.loc[5, "Cache State"] = "warm"
    write_table(tmp_path, "MatMulV2", rows.fillna(""))
    assert durations_of(tmp_path) == [56.0, 57.0]


def test_durations_are_spread_evenly_over_the_octaves(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", products([10 * 1.1**m for m in range(80)]))
    found = sorted(durations_of(tmp_path))
    assert len(found) == ROWS
    assert max(large / small for small, large in itertools.pairwise(found)) < 2


def test_the_median_of_the_runs_counts(tmp_path: Path) -> None:
    pooled = {"Pooled Median Duration(us)": "60.0", "Pooled Machines": "3", "Pooled Machine Spread(%)": "2.00"}
    write_table(tmp_path, "MatMulV2", products([50.0], **pooled, **{"Pooled Run Durations(us)": f"{RUN} 60.0; b 62.0"}))
    (row,) = stored_durations(tmp_path, choose(tmp_path))
    assert row.median_us == 60.0
    assert row.half_width == pytest.approx(0.036, abs=0.001)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_set(tmp_path) is None
    rows = [CalibrationRow("products", "MatMulV2", "MatMulV2-1"), CalibrationRow("norms", "RmsNorm", "RmsNorm-'2'")]
    write_set(tmp_path, rows)
    assert read_set(tmp_path) == rows


@pytest.mark.parametrize("text", ["{}", "[1]", "not JSON", '{"rows": [{"family": 1}]}', _ELSEWHERE])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / CALIBRATION).write_text(text)
    with pytest.raises(OpAtlasError, match=CALIBRATION):
        read_set(tmp_path)


def test_a_row_that_the_database_lacks_is_named(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", products([50.0]))
    with pytest.raises(OpAtlasError, match="MatMulV2-gone"):
        stored_durations(tmp_path, [CalibrationRow("products", "MatMulV2", "MatMulV2-gone")])


def test_a_database_without_such_rows_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", products([50.0], **{"Cache State": ""}))
    with pytest.raises(OpAtlasError, match=str(tmp_path)):
        choose(tmp_path)
