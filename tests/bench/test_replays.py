"""Every kernel type is replayed, on rows as captures hold them, and its result is right."""

from __future__ import annotations

from collections import Counter

import pytest
from replaying import replay_functions, replay_row, time_instead
from sample_rows import ROWS

from opatlas.row.status import Status
from opatlas.run.devices.npu_operators import resolve_npu_call
from opatlas.run.registry import replay_spec, runs_on_cpu


def claimed_types() -> Counter[str]:
    return Counter(name for function in replay_functions().values() for name in replay_spec(function).kernel_types)


@pytest.mark.parametrize("kernel_type", claimed_types())
def test_kernel_type_has_sample_rows(kernel_type):
    """Without them it would be replayed by no test, here, on a GPU or with torch_npu."""
    assert ROWS.get(kernel_type), (
        f"no test replays {kernel_type}: add it to shapes/catalog.yaml or tests/bench/sample_rows.txt"
    )


@pytest.mark.parametrize(("kernel_type", "row"), [(name, row) for name, rows in ROWS.items() for row in rows])
def test_row_is_measured_and_right(kernel_type, row):
    outcome = replay_row(kernel_type, row)
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
    measurement = outcome.measurement
    assert len(measurement.samples_us) == 1
    assert measurement.checked_elements == measurement.total_elements or measurement.checked_elements >= 4096


def test_no_kernel_type_is_claimed_twice():
    assert [name for name, count in claimed_types().items() if count > 1] == []


@pytest.mark.parametrize(
    ("kernel_type", "row", "assumption"),
    [
        ("Transpose", "4,6,6 | FLOAT -> 6,4,6 | FLOAT", "axes [1, 0, 2], of several orders that fit the shapes"),
        ("Transpose", "6,6 | FLOAT -> 6,6 | FLOAT", "axes [1, 0], of several orders that fit the shapes"),
        ("Transpose", "4,1,6,1 | FLOAT -> 6,1,4,1 | FLOAT", None),
        ("Sort", "3,5 | FLOAT -> 3,5;3,5 | FLOAT;INT64", "descending"),
        (
            "split_qkv_rmsnorm_rope_kernel",
            "5,48;7,4;5 | FLOAT;FLOAT;INT64 -> 5,32;5,8 | FLOAT;FLOAT",
            "heads of 4 features",
        ),
        ("split_qkv_rmsnorm_rope_kernel", "5,48;7,8;5 | FLOAT;FLOAT;INT64 -> 5,32;5,8 | FLOAT;FLOAT", None),
    ],
)
def test_record_names_the_assumption_about_the_row(kernel_type, row, assumption):
    outcome = replay_row(kernel_type, row)
    assert outcome.status is Status.MEASURED, outcome.reason
    assert outcome.measurement.assumptions == (() if assumption is None else (assumption,))


def test_every_replay_names_its_npu_call():
    for name, function in replay_functions().items():
        assert replay_spec(function).npu, f"{name} has no NPU call"


#: NPU calls by kernel type, as the replays name them: a name that is wrong fails its own test, not the collection.
CALLS_ON_CPU = {
    name: spec.npu
    for spec in map(replay_spec, replay_functions().values())
    for name in spec.kernel_types
    if spec.npu and runs_on_cpu(spec.npu)
}


@pytest.mark.parametrize("kernel_type", CALLS_ON_CPU)
def test_npu_call_takes_the_same_arguments_and_means_the_same(monkeypatch, kernel_type):
    time_instead(monkeypatch, resolve_npu_call(CALLS_ON_CPU[kernel_type]))
    outcome = replay_row(kernel_type, ROWS[kernel_type][0])
    if kernel_type == "HistogramV2":
        pytest.skip("torch has no histogram of integers on CPUs")
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
