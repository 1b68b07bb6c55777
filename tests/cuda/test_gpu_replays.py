"""Every kernel type on a GPU: measured by its records, and right. The calls are kept for docs/kernels.md."""

from __future__ import annotations

import pytest
from operators import operators_of
from replaying import job_of
from sample_rows import ROWS
from written_facts import write_calls

from opatlas.row.status import Status
from opatlas.run.registry import CALLS, read_facts


@pytest.fixture(scope="module")
def called(request, runner):
    """By kernel type: the operators that its first row was timed with."""
    found = {}
    kernel = runner.device.kernel

    def watched(impl, npu):
        return operators_of(kernel(impl, npu), lambda names: found.setdefault(found["now"], names))

    runner.device.kernel = watched
    yield found
    found.pop("now", None)
    found.pop("", None)
    runner.device.kernel = kernel
    if request.config.getoption("--write-gpu-calls"):
        # With -k some types are run, and the others stay as they are.
        write_calls({name: calls for name, calls in (read_facts(CALLS) | found).items() if name in ROWS})


@pytest.mark.parametrize(("kernel_type", "row"), [(name, row) for name, rows in ROWS.items() for row in rows])
def test_row_is_measured_and_right(kernel_type, row, runner, called, request):
    is_first = row == ROWS[kernel_type][0]
    called["now"] = kernel_type if is_first else ""
    outcome = runner.run(job_of(kernel_type, row))
    empty = "hold no kernel of some of the calls" in outcome.reason and outcome.status is Status.FAILED
    if empty and any("0" in shape.split(",") for shape in row.partition("|")[0].strip().split(";")):
        pytest.skip("without elements there is nothing to launch")
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
    measurement = outcome.measurement
    assert len(measurement.samples_us) == 3
    assert measurement.device_kernels >= 1
    assert all(0.1 < sample < 1e5 for sample in measurement.samples_us)
    if is_first and not request.config.getoption("--write-gpu-calls"):
        kept = read_facts(CALLS).get(kernel_type)
        assert kept, f"not known of {kernel_type}: run `pytest tests/cuda -k {kernel_type} --write-gpu-calls`"
        assert called.get(kernel_type, kept) == kept
