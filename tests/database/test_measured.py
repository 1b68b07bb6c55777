"""What a measurement writes: every column that is OpAtlas' own has somebody who fills it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from database import schema
from database.merge import UpdateMode, merge
from database.record import Measurement, RanAs, Record
from database.schema import Status
from database.signature import signature
from database.store import Database

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
OF_INGEST = {schema.PROFILING_SAMPLES}


def full(kernel_type: str, cells: Mapping[str, str], ran_as: RanAs | None) -> Record:
    """A record that has something to say of everything; `crashes_in_a_row` is what no measured row has in earnest."""
    measurement = Measurement((1.0, 2.0, 4.0), "wall-clock", "cold", device_kernels=2, ran_as=ran_as)
    name = signature(kernel_type, cells)
    return Record(kernel_type, name, cells, Status.MEASURED, "one dtype assumed", "run-1", 0.0, measurement, 3)


@pytest.mark.parametrize(
    ("record", "elsewhere"),
    [
        (full("MatMulV2", PRODUCT, RanAs("MatMulV3")), set()),
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
    done = merge(database, [record], UpdateMode.ALL, prune=False)
    assert (done.updated[record.kernel_type], done.problems) == (1, [])
    with open(path, newline="") as file:
        (row,) = csv.DictReader(file)
    assert {name for name in schema.OWN if not row.get(name)} == OF_INGEST | elsewhere
    known = {*schema.OWN, schema.AVERAGE, schema.DURATION, schema.BANDWIDTH, schema.BUS_BANDWIDTH}
    assert row.keys() - record.cells.keys() <= known
