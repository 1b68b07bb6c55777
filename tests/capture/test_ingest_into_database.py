"""What an ingest does to the CSVs of a database."""

import pytest
from captures import COUNTERS, KERNEL_DETAILS, launch, table, write_capture
from frames import rewrite
from printed import numbers_in

from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.data.database import Database
from opatlas.row.columns import BASE, PIPE_UTILIZATION

AVERAGE, SAMPLES = "Profiling Average Duration(us)", "Profiling Samples"
#: Counters of a profiler.
AICORE_TIME, READ_BANDWIDTH = "Profiling Average aicore_time(us)", "Profiling Average aic_l0a_read_bw(GB/s)"


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path / "database")


@pytest.fixture
def ingest(tmp_path, database):
    """Ingests launches, a capture of their own at each call."""

    def run(*launches, columns=KERNEL_DETAILS, replace=False):
        capture = write_capture(tmp_path / "kernel_details.csv", launches, columns)
        return ingest_captures(database, [capture], IngestRequest(capture, replace)).outcome

    return run


@pytest.fixture
def edit(database):
    """Rewrites a cell of a CSV, as another stage of the pipeline does."""

    def run(position, column, cell, kernel_type="MatMulV3"):
        stored = database.read(kernel_type)
        if column not in stored.frame.columns:
            stored.frame[column] = ""
        cells = stored.frame[column].tolist()
        cells[position] = cell
        stored.frame[column] = cells
        rewrite(database, stored)

    return run


def rows(database, kernel_type="MatMulV3"):
    return table(database.csv_path(kernel_type))


def counts(outcome):
    return outcome.new, outcome.updated, outcome.unchanged


def test_a_new_file(database, ingest):
    assert counts(ingest(launch(duration="10"), launch(duration="11"), launch(duration="15"))) == (1, 0, 0)
    (row,) = rows(database)
    assert row["Input Shapes"] == "16,32;64,32"
    assert (row[AVERAGE], row["Profiling Median Duration(us)"], row["Profiling Std Duration(us)"], row[SAMPLES]) == (
        "12",
        "11",
        "2.645751",
        "3",
    )
    assert row[AICORE_TIME] == "8"
    assert row["Average Duration(us)"] == ""


def test_the_columns_of_a_new_file_are_the_contracts(database, ingest):
    ingest(launch({"my_counter": "1"}), columns=[*KERNEL_DETAILS, "my_counter"])
    columns = list(rows(database)[0])
    profiling = ["Profiling Average Duration(us)", "Profiling Median Duration(us)", "Profiling Std Duration(us)"]
    counters = [f"Profiling Average {name}" for name in (*PIPE_UTILIZATION, "my_counter")]
    own = ["Profiling Samples", "Profiling Run ID"]
    assert columns == [*BASE, "Average Duration(us)", *profiling, *counters, *own]


@pytest.mark.parametrize(("replace", "mean", "samples"), [(False, "25", "3"), (True, "30", "2")])
def test_a_second_ingest_changes_the_rows_that_it_has_samples_for(database, ingest, replace, mean, samples):
    ingest(launch(duration="15"), launch(shapes="1,32;64,32", duration="5"))
    second = (launch(duration="20"), launch(duration="40"), launch(shapes="2,32;64,32"))
    assert counts(ingest(*second, replace=replace)) == (1, 1, 0)
    assert [(row["Input Shapes"], row[AVERAGE], row[SAMPLES]) for row in rows(database)] == [
        ("16,32;64,32", mean, samples),
        ("1,32;64,32", "5", "1"),
        ("2,32;64,32", "10", "1"),
    ]


def test_theory_rows_unknown_columns_and_all_orders_survive(database, ingest):
    path = database.csv_path("MatMulV3")
    path.parent.mkdir()
    path.write_text(
        "Note,Output Shapes,Output Data Types,Input Shapes,Input Data Types,Input Formats,Run ID,Profiling Samples\n"
        'theory,"1,64",BF16,"1,32;64,32",BF16;BF16,ND;ND,,\n'
        'seen,"16,64",BF16,"""16,32;64,32""",DT_BF16;DT_BF16,ND;ND,r1,7\n'
        '"a ""third""","2,64",BF16,"2,32;64,32",BF16;BF16,ND;ND,,\n'
    )
    theory = path.read_text().splitlines()
    assert counts(ingest(launch(duration="12.5"))) == (0, 1, 0)
    after = rows(database)
    assert [row["Note"] for row in after] == ["theory", "seen", 'a "third"']
    assert after[1]["Input Shapes"] == '"16,32;64,32"'
    assert (after[1][AVERAGE], after[1][SAMPLES]) == ("12.5", "1")
    assert after[0][AVERAGE] == after[2][AVERAGE] == ""
    order = [name for name in after[0] if name in theory[0].split(",")]
    assert ",".join(order) == theory[0]


def test_two_rows_of_one_signature_are_both_brought_up_to_date(database, ingest):
    ingest(launch())
    path = database.csv_path("MatMulV3")
    header, row = path.read_text().splitlines()
    path.write_text("\n".join([header, row, row, ""]))
    ingest(launch(duration="77"), replace=True)
    assert [row[AVERAGE] for row in rows(database)] == ["77", "77"]


@pytest.mark.parametrize(("replace", "mean"), [(False, "8"), (True, "")])
def test_a_counter_that_was_not_recorded_this_time(database, ingest, replace, mean):
    ingest(launch())
    ingest(launch(dict.fromkeys(COUNTERS, "N/A")), replace=replace)
    assert rows(database)[0][AICORE_TIME] == mean


def test_a_capture_does_not_vouch_for_a_theory_row_of_one_ep_size(database, ingest, edit):
    ingest(launch(type="DispatchFFNCombine"))
    edit(0, "EP Size", "16", "DispatchFFNCombine")
    edit(0, AVERAGE, "", "DispatchFFNCombine")
    assert counts(ingest(launch(type="DispatchFFNCombine", duration="50"))) == (1, 0, 0)
    assert [row[AVERAGE] for row in rows(database, "DispatchFFNCombine")] == ["", "30"]


def test_a_damaged_csv_stays_as_it_is_and_the_others_go_in(database, ingest):
    ingest(launch())
    path = database.csv_path("MatMulV3")
    damaged = path.read_text() + "half a row\n"
    path.write_text(damaged)
    outcome = ingest(launch(duration="20"), launch(type="Add"))
    assert counts(outcome) == (1, 0, 0)
    assert outcome.kernel_types == ["Add"]
    assert len(outcome.problems) == 1
    assert "MatMulV3.csv:3: 1 fields" in outcome.problems[0]
    assert path.read_text() == damaged


def test_launches_of_two_kinds_are_told_and_no_quality_of_a_replay(database, ingest):
    two_kinds = [launch(duration=str(177 + 27 * (n % 2) + n % 3 / 10)) for n in range(20)]
    outcome = ingest(*two_kinds, *[launch(type="Mul", duration=str(100 + n % 3)) for n in range(20)])
    (row,) = rows(database)
    assert numbers_in(row["Profiling Populations"]) == (10, 177.1, 10, 204.1)
    assert not rows(database, "Mul")[0].get("Profiling Populations")
    (mixed,) = outcome.mixed
    assert (mixed.kernel_type, mixed.modes.low_count, mixed.modes.high_count) == ("MatMulV3", 10, 10)
    # Launches of a third kind in between leave one population.
    ingest(*[launch(duration=str(170 + n)) for n in range(40)])
    assert rows(database)[0]["Profiling Populations"] == ""
