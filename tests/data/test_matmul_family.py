"""Samples of a sibling: to the CSV of the type that ran alone; the row that was asked for says so."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from abs_rows import V2, V3, product_record as record, read, write as write_rows
from captures import cells
from folding import csvs, differences, killed, recovered, restored, session
from hypothesis import given

from opatlas.data.database import Database
from opatlas.data.write_back import write_back
from opatlas.row.record import Record, RowName
from opatlas.row.same_case import canonical_form
from opatlas.row.signature import signature
from opatlas.row.status import Status, UpdateMode


def failure(kernel_type: str) -> Record:
    return Record(kernel_type, signature(kernel_type, cells()), cells(), Status.FAILED, "wrong", "run-1", 0.0)


def write(database: Database, kernel_type: str, *rows: dict[str, str]) -> None:
    write_rows(database, list(rows), kernel_type)


def files(database: Database) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in database.path.glob("*.csv")}


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "database")


def durations(database: Database, *kernel_types: str) -> list[str]:
    return [read(database, name)[0].get("Average Duration(us)", "") for name in kernel_types]


def test_a_sample_is_appended_to_the_type_that_ran_alone(database: Database) -> None:
    write(database, V2, cells())
    write(database, V3, cells("8,8;8,8", "8,8"))
    result = write_back(database, [record()], UpdateMode.ALL, prune=False)
    (asked,), (_, own) = read(database, V2), read(database, V3)
    assert (own["Average Duration(us)"], own["MicroBench Samples"], own["Status"]) == ("6.0000", "2", "measured")
    assert own["MicroBench aic_mac_ratio"] == "0.5"
    assert (asked.get("Average Duration(us)", ""), asked["Status"]) == ("", "unsupported")
    assert V3 in asked["Status Reason"]
    assert not own.get("Status Reason")
    assert own["Input Shapes"] == "16,32;64,32"
    assert (result.marked, result.added) == ({V2: 1, V3: 0}, {V2: 0, V3: 1})


def test_another_name_of_the_type_that_ran_is_filled_too(database: Database) -> None:
    write(database, "AddAiCore", cells())
    write_back(database, [record("AddAiCore", "Add")], UpdateMode.ALL, prune=False)
    assert durations(database, "AddAiCore", "Add") == ["6.0000", "6.0000"]
    assert read(database, "AddAiCore")[0]["Status Reason"] == "ran as Add"


def test_a_later_record_of_the_requested_row_leaves_the_launched_row_its_samples(database: Database) -> None:
    earlier, later = record(V2, V3, 5.0), replace(record(V2, V2, 50.0), finished_at=1.0)
    for groups in ([[earlier], [later]], [[earlier, later]], [[later, earlier]]):
        write(database, V2, cells())
        write(database, V3, cells())
        for records in groups:
            write_back(database, records, UpdateMode.ALL, prune=False)
        assert durations(database, V2, V3) == ["51.0000", "6.0000"]


def test_a_later_launch_of_another_type_leaves_the_requested_row_its_samples(tmp_path: Path) -> None:
    own, launched = record(V2, V2, 50.0), replace(record(V2, V3, 5.0), finished_at=1.0)
    for number, groups in enumerate(([[own, launched]], [[launched, own]], [[own], [launched]], [[launched], [own]])):
        database = Database(tmp_path / str(number))
        write(database, V2, cells())
        if len(groups) == 1:
            session(database, *groups[0])
        else:
            for part, records in enumerate(groups):
                killed(database, *records, part=f"-gw{part}")
            recovered(database)
        assert durations(database, V2, V3) == ["51.0000", "6.0000"]
        assert read(database, V2)[0]["Status"] == "unsupported"
        before = csvs(database)
        restored(database)
        assert not differences(before, csvs(database))


def test_missing_only_appends_the_row_that_ran_and_fills_only_rows_without_a_duration(database: Database) -> None:
    write(database, V2, cells())
    write(database, V3, {**cells(), "Average Duration(us)": "", "Profiling Average Duration(us)": "9"})
    write(database, "MatMulCommon", {**cells(), "Average Duration(us)": ""})
    write_back(database, [record()], UpdateMode.MISSING_ONLY, prune=False)
    assert durations(database, V2, V3) == ["", ""]
    write_back(database, [record(ran_as="MatMulCommon")], UpdateMode.MISSING_ONLY, prune=False)
    assert durations(database, "MatMulCommon") == ["6.0000"]
    (database.path / "MatMulV3.csv").unlink()
    result = write_back(database, [record()], UpdateMode.MISSING_ONLY, prune=False)
    assert (result.added[V3], result.unmatched) == (1, [])
    assert durations(database, V2, V3) == ["", "6.0000"]


def test_missing_only_appends_no_other_name_of_a_type(database: Database) -> None:
    write(database, "AddAiCore", cells())
    result = write_back(database, [record("AddAiCore", "Add")], UpdateMode.MISSING_ONLY, prune=False)
    assert result.of_siblings == [RowName("Add", signature("Add", cells()))]
    assert result.unmatched == [], "the sample filled the row that was asked for"
    assert not (database.path / "Add.csv").exists()


def test_what_a_row_was_measured_itself_counts_before_what_a_sibling_brought(database: Database) -> None:
    for order in itertools.permutations([record(V2, V3, 5.0), record(V3, V3, 100.0)]):
        write(database, V2, cells())
        write(database, V3, cells())
        write_back(database, order, UpdateMode.ALL, prune=False)
        assert durations(database, V2, V3) == ["", "101.0000"]
    write(database, V2, cells())
    write(database, V3, cells())
    write_back(database, [failure(V3), record(V2, V3)], UpdateMode.ALL, prune=False)
    assert read(database, V3)[0]["Status"] == "failed", "it was run itself, and failed"
    # Each ran as the other: both rows get the samples of their own type.
    write_back(database, [record(V2, V3, 5.0), record(V3, V2, 100.0)], UpdateMode.ALL, prune=False)
    assert durations(database, V2, V3) == ["101.0000", "6.0000"]
    assert read(database, V2)[0]["Status Reason"] == ""


def test_what_ran_on_other_shapes_goes_to_the_row_of_those(database: Database) -> None:
    other = cells("16,32;32,64")
    write(database, V2, cells())
    write_back(database, [record(ran_cells=other)], UpdateMode.ALL, prune=False)
    reason = read(database, V2)[0]["Status Reason"]
    assert all(named in reason for named in (V3, "16,32;32,64"))
    assert read(database, V3)[0]["Input Shapes"] == "16,32;32,64"


SIZES = st.integers(1, 40)


@given(SIZES, SIZES, SIZES, st.booleans(), st.booleans())
def test_transposed_operands_have_one_canonical_form(m: int, k: int, n: int, left: bool, right: bool) -> None:
    a = f"{k},{m}" if left else f"{m},{k}"
    b = f"{k},{n}" if right else f"{n},{k}"
    form = canonical_form(cells(f"{a};{b}", f"{m},{n}"))
    assert form is not None
    assert form == canonical_form(cells(f"{m},{k};{n},{k}", f"{m},{n}"))


@pytest.mark.parametrize(
    ("row", "other"),
    [
        (cells(), cells(dtype="FLOAT")),
        (cells(), cells(formats="ND;FRACTAL_NZ")),
        (cells(), cells("32,16;64,16", "32,64")),
        (cells(formats="ND;ND;ND"), cells("16,32;64,32;64", formats="ND;ND;ND")),
    ],
)
def test_other_products_have_other_forms(row: dict[str, str], other: dict[str, str]) -> None:
    assert None not in (canonical_form(row), canonical_form(other))
    assert canonical_form(row) != canonical_form(other)


def test_the_form_of_fractal_nz_is_that_of_its_matrix() -> None:
    blocked = cells("16,32;2,4,16,16", formats="ND;FRACTAL_NZ")
    plain = cells("16,32;64,32", formats="ND;FRACTAL_NZ")
    assert canonical_form(blocked) == canonical_form(plain) is not None


@pytest.mark.parametrize(
    ("shapes", "out"), [("16,32;64,33", "16,64"), ("16,32", "16,32"), ("2,16,32;64,32", "2,16,64"), ("7,9;9,5", "")]
)
def test_what_is_no_product_of_two_matrices_has_none(shapes: str, out: str) -> None:
    assert canonical_form(cells(shapes, out)) is None
