"""A database of an Ascend profiler holds the launches of the CSV of the same profile."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from ascend_databases import write_database
from captures import COLLECTIVE, launch, write_capture

from opatlas.capture.capture_discovery import find_captures
from opatlas.capture.cases import Aggregate
from opatlas.capture.single_launches import read_launches
from opatlas.errors import TableError

NAME = "ascend_pytorch_profiler_0.db"


def started(at_us: float, step: str, **words: str) -> dict[str, str]:
    """A launch at a time."""
    return launch(
        {"Start Time(us)": f"{1_764_246_877_000_000 + at_us:.3f}\t", "Step Id": step, "Name": "aclnn_x"}, **words
    )


LAUNCHES = [
    started(0, "3", duration="10.5"),
    started(20, "3", duration="12", shapes="4,8;", dtypes="BF16;DT_UNDEFINED", formats="ND;NULL", type="Add"),
    started(40, "3", duration="9", shapes="N/A", dtypes="N/A", formats="N/A", out="N/A", type="Unknown"),
    {**started(50, "4"), **COLLECTIVE, "OP State": "N/A", "Stream ID": "N/A"},
    started(70, "4", duration="11.25"),
]


def test_a_database_gives_the_rows_and_the_launches_of_the_csv(tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "kernel_details.csv", LAUNCHES)
    database = write_database(tmp_path / NAME, LAUNCHES)
    of_csv, of_database = Aggregate(), Aggregate()
    of_csv.add_file(capture)
    of_database.add_file(database)
    assert of_database.account == of_csv.account
    cases = [[case for of_type in each.cases().values() for case in of_type] for each in (of_csv, of_database)]
    assert cases[0] == cases[1]
    # A CSV states waits and blocks as it likes, the database by its times.
    launches = [[replace(one, wait_us=0) for one in read_launches(path).launches] for path in (capture, database)]
    assert launches[0] == launches[1]
    assert [one.wait_us for one in read_launches(database).launches] == [0, 9.5, 8, 1, 10]


def executed_twice(database: sqlite3.Connection) -> None:
    (columns,) = database.execute("SELECT * FROM TASK WHERE globalTaskId = 0").fetchall()
    # A graph launches a task again; a task of two contexts has equal lines.
    for start, context in ((columns[0] + 10**6, 0), (columns[0] + 10**6, 1)):
        again = (start, start + 11_000, *columns[2:7], context, *columns[8:])
        database.execute(f"INSERT INTO TASK VALUES ({', '.join('?' * len(again))})", again)


def test_a_task_that_runs_twice_is_launched_twice_when_the_host_says(tmp_path: Path) -> None:
    path = write_database(tmp_path / NAME, LAUNCHES[:1])
    with sqlite3.connect(path) as database:
        executed_twice(database)
        database.execute("CREATE TABLE CANN_API (startNs, endNs, type, globalTid, connectionId, name)")
        at_ns = 1_764_246_877_000_000_000
        database.executemany(
            "INSERT INTO CANN_API VALUES (?, ?, 1, 1, 0, 1)", [(at_ns - 900, at_ns), (at_ns - 500, at_ns)]
        )
    database.close()
    first, second = read_launches(path).launches
    assert (first.duration_us, second.duration_us, second.start_ns - first.start_ns) == (10.5, 11.0, 10**6)
    assert first.counters == second.counters
    assert first.launched_ns == first.start_ns - 500


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("DROP TABLE COMPUTE_TASK_INFO", "Level1"),
        ("ALTER TABLE TASK DROP COLUMN endNs", "endNs"),
        ("DROP TABLE STRING_IDS", "STRING_IDS"),
        ("DROP TABLE TASK; CREATE VIEW TASK AS SELECT 1 AS startNs, 2 AS endNs, 3 AS globalTaskId", "TASK"),
        ("journal", "-journal"),
        ("text", "SQLite"),
    ],
)
def test_what_a_database_lacks_is_told(tmp_path: Path, damage: str, named: str) -> None:
    path = write_database(tmp_path / NAME, LAUNCHES)
    if damage == "journal":
        path.with_name(f"{NAME}-journal").touch()
    elif damage == "text":
        path.write_text("SQLite format 3")
    else:
        with sqlite3.connect(path) as database:
            database.executescript(damage)
        database.close()
    with pytest.raises(TableError, match=named):
        Aggregate().add_file(path)


@pytest.mark.parametrize(
    ("files", "read"),
    [
        (["a_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv", "a_ascend_pt/ASCEND_PROFILER_OUTPUT/" + NAME], [0]),
        (
            ["a_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv", "b_ascend_pt/ASCEND_PROFILER_OUTPUT/" + NAME],
            [0, 1],
        ),
        (["a_ascend_pt/ASCEND_PROFILER_OUTPUT/" + NAME, "a_ascend_pt/PROF_1_X/msprof_20260101000000.db"], [0]),
        (
            ["PROF_1_X/mindstudio_profiler_output/op_summary_20260101000000.csv", "PROF_1_X/msprof_20260101000000.db"],
            [0],
        ),
        (["PROF_1_X/msprof_20260101000000.db", "PROF_1_X/msprof_20260102000000.db", "PROF_1_X/analysis.db"], [1]),
        (["ascend_pytorch_profiler_0.db", "ascend_pytorch_profiler_1.db"], [0, 1]),
    ],
)
def test_of_a_profile_one_capture_counts(tmp_path: Path, files: list[str], read: list[int]) -> None:
    paths = [tmp_path / name for name in files]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert find_captures(tmp_path).files == [paths[index] for index in read]
