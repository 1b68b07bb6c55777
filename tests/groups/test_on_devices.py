"""Groups of real devices, over NCCL or HCCL, where this machine has two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from replaying import cells_of
from sample_rows_moe import LAYER, LAYER_INT8

from bench.devices.at_hand import devices_at_hand
from bench.errors import DeviceGone
from bench.executor import Executor
from bench.groups.process import GroupProcess
from bench.groups.spec import GroupSpec
from bench.instruments import MSPROF, OFFERED, TORCH_NPU_PROFILER
from bench.job import Job, MeasureSettings
from bench.msprof.device import of_group
from database.schema import Status

DEVICES = [device for device in devices_at_hand(None) if device.kind != "cpu"]
SPEC = GroupSpec(2)
pytestmark = pytest.mark.skipif(len(DEVICES) < 2, reason="needs 2 GPUs or NPUs")


@pytest.fixture(scope="module", params=[name for kind in {d.kind for d in DEVICES} for name in OFFERED[kind]] or [""])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    if request.param == TORCH_NPU_PROFILER:
        pytest.skip("starts and stops CANN's profiler for each row, which ends the processes of a group")
    settings = MeasureSettings(repeat_count=5, instrument=request.param)
    group: Executor = GroupProcess(SPEC, DEVICES[:2], settings)
    if request.param == MSPROF:
        group = of_group(SPEC, DEVICES[:2], settings, tmp_path_factory.mktemp("profiles"))
    try:
        group.describe()
    except DeviceGone as error:
        if "InstrumentMissing" in str(error):
            pytest.skip(str(error))
        raise
    yield group
    group.close()


@pytest.mark.parametrize(
    "row",
    [
        f"64,512;4,512,1024;4,512,512;64,4;4,1024;4,512;64,4 | {LAYER} -> 64,512;4 | DT_BF16;INT32 @ EP Size = 2",
        f"64,512;4,512,1024;4,512,512;64,4;4,1024;4,512;64,4 | {LAYER_INT8} -> 64,512;4 | DT_BF16;INT32 @ EP Size = 2",
    ],
)
def test_a_layer_of_experts(group: Executor, row: str) -> None:
    module, function = "bench.test_expert_parallel", "test_dispatch_ffn_combine"
    job = Job(module, "", function, "DispatchFFNCombine", cells_of(row), 120, SPEC)
    outcome = group.run(job)
    assert outcome.status is Status.MEASURED, outcome
    assert outcome.measurement is not None
    assert min(outcome.measurement.samples_us) > 0
    print(group.describe().name, outcome.measurement)
