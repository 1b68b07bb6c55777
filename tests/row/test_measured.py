"""What a measurement writes: every column that is OpAtlas' own has somebody who fills it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from opatlas.data.cells import duration_cells, status_cells
from opatlas.data.database import Database
from opatlas.data.write_back import write_back
from opatlas.row import columns as schema
from opatlas.row.record import Execution, LaunchedCase, Measurement, Record, Rounds
from opatlas.row.signature import signature
from opatlas.row.status import Status, UpdateMode

PRODUCT = {
    "Input Shapes": "2,3;4,3",
    "Input Data Types": "FLOAT;FLOAT",
    "Input Formats": "ND;ND",
    "Output Shapes": "2,4",
    "Output Data Types": "FLOAT",
    "Output Formats": "ND",
}
MESSAGE = {"message_bytes": "1024", "num_devices": "2", "dtype": "DT_BF16", "topology_tier": "1"}
#: Filled by the ingest of captures.
OF_INGEST = schema.columns_of(schema.ColumnGroup.LAUNCHES)


def full(kernel_type: str, cells: Mapping[str, str], ran_as: LaunchedCase | None) -> Record:
    """A record that has something to say of everything."""
    measurement = Measurement(
        (1.0, 2.0, 4.0),
        "wall-clock",
        "cold",
        device_kernels=2,
        helper_kernels={"Cast": 1.5},
        checked_elements=4,
        total_elements=8,
        assumptions=("even lengths", "no mask"),
        stand_in="a loop",
        ran_as=ran_as,
        execution=Execution(
            "flashinfer 0.5.3", ("gemm", "cast"), 3.5, (1, 2), ("bf16 to fp8",), set_up_s=1.5, max_error=0.25
        ),
        against="torch 2.13.0",
        rounds=(Rounds((10.0, 10.0), (11.0, 11.0), (11.0, 11.0)), Rounds((10.0,), (10.5,))),
    )
    name = signature(kernel_type, cells)
    return Record(kernel_type, name, cells, Status.MEASURED, "one dtype assumed", "run-1", 0.0, measurement)


@pytest.mark.parametrize(
    ("record", "elsewhere"),
    [
        (full("AddAiCore", PRODUCT, LaunchedCase("Add")), set()),
        # Its Duration(us) is the median.
        (full("hcom_allReduce_", MESSAGE, None), {schema.MICROBENCH_MEDIAN}),
    ],
    ids=["kernel", "message"],
)
def test_a_full_record_fills_every_column_of_ours(record: Record, elsewhere: set[str], tmp_path: Path) -> None:
    database = Database(tmp_path)
    path = tmp_path / f"{record.kernel_type}.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([record.cells.keys(), record.cells.values()])
    done = write_back(database, [record], UpdateMode.ALL, prune=False)
    assert (done.updated[record.kernel_type], done.problems) == (1, [])
    with open(path, newline="") as file:
        (row,) = csv.DictReader(file)
    of_others = {*OF_INGEST, *schema.POOLED, *schema.JUDGED, schema.CRASHES_IN_A_ROW}
    assert {name for name in schema.OWN if not row.get(name)} == {*of_others, *elsewhere}
    known = {*schema.OWN, schema.AVERAGE, schema.DURATION, schema.BANDWIDTH, schema.BUS_BANDWIDTH}
    assert row.keys() - record.cells.keys() <= known


def all_cells(record: Record) -> dict[str, str]:
    return {**status_cells(record), **duration_cells(record)}


def test_what_a_reader_of_the_duration_should_know_has_columns_of_its_own() -> None:
    row = all_cells(full("MatMulV2", PRODUCT, None))
    assert (row[schema.QUALITY], row[schema.STAND_IN]) == ("composition", "a loop")
    assert row[schema.QUALITY_REASON].startswith("noisy: ")
    assert "65 %" in row[schema.QUALITY_REASON]
    assert (row[schema.ASSUMPTIONS], row[schema.CHECKED_ELEMENTS]) == ("even lengths; no mask", "4/8")


def test_the_cells_of_a_comparison_are_what_both_processes_say() -> None:
    row = all_cells(full("MatMulV2", PRODUCT, None))
    ratio = [row[name] for name in (schema.SPEED_UP, schema.SPEED_UP_LOW, schema.SPEED_UP_HIGH)]
    assert ratio == ["1.0500", "1.0500", "1.1000"]
    assert (row[schema.SPEED_UP_ROUNDS], row[schema.SPEED_UP_AGAINST]) == ("2;1", "torch 2.13.0")
    assert row[schema.CONTROL_RATIO] == "1.0000"
