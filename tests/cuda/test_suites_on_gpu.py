"""The suites of operators on a GPU: torch's own operators are right in their cases, and overrides run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from operator_kernels import write_kernels

import opatlas
from opatlas.outer.suites import listing
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.runner import Runner

pytestmark = pytest.mark.usefixtures("gpu")

_OPERATORS = (
    *("add.Tensor", "argmax.default", "cat.default", "mm.default", "relu.default", "max_pool2d_with_indices.default"),
    *("sort.default", "sum.dim_IntList", "_softmax.default"),
)


@pytest.mark.parametrize("suite", ["opinfo", "traces"])
def test_torch_is_right_in_the_cases_of_a_suite(suite: str) -> None:
    """Cases without elements launch no kernel: these are checked, and the others are measured."""
    rows = listing.list_suite(suite, "cuda", _OPERATORS).rows
    runner = Runner(DeviceSpec("cuda"), MeasureSettings(repeat_count=2, cache="warm"))
    found: Counter[Status] = Counter()
    wrong = []
    for kernel_type, own in rows.items():
        for cells in own:
            outcome = runner.run(Job("opatlas.bench.test_listed", "", "test_operator", kernel_type, cells, 60))
            found[outcome.status] += 1
            if outcome.status not in (Status.MEASURED, Status.CHECKED, Status.UNSUPPORTED):
                wrong.append(f"{kernel_type} {cells['Sample']}: {outcome.status}: {outcome.reason}")
    assert wrong == []
    assert found[Status.MEASURED] > 50


def test_an_override_is_of_its_device_alone(tmp_path: Path) -> None:
    folder = write_kernels(tmp_path / "mine", {"relu__default": "def NAME(x):\n    return x * 0 - 1\n"})
    with opatlas.use(folder):
        assert torch.relu(torch.ones(2, device="cuda")).tolist() == [-1.0, -1.0]
        assert torch.relu(torch.ones(2)).tolist() == [1.0, 1.0]
    assert torch.relu(torch.ones(2, device="cuda")).tolist() == [1.0, 1.0]
