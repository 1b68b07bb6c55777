"""Groups of real devices, over NCCL or HCCL, where this machine has two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from replaying import cells_of, replay_of
from sample_rows import BACK, LAYER, LAYER_BITS, LAYER_INT8, TOLD

from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import available_devices, kind_named
from opatlas.run.group import GroupSpec
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Job
from opatlas.run.msprof_sessions import MsprofBatches
from opatlas.run.process.device_process import GroupProcess
from opatlas.run.scheduler import Scheduler

DEVICES = [device for device in available_devices(None) if device.kind != "cpu"]
SPEC = GroupSpec(2)
pytestmark = pytest.mark.skipif(len(DEVICES) < 2, reason="needs 2 GPUs or NPUs")


@pytest.fixture(
    scope="module", params=[name for kind in {d.kind for d in DEVICES} for name in kind_named(kind).instruments] or [""]
)
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    settings = MeasureSettings(repeat_count=5, instrument=request.param)
    group: Scheduler = GroupProcess(SPEC, DEVICES[:2], settings)
    if request.param == MSPROF:
        group = MsprofBatches(
            lambda launcher: GroupProcess(SPEC, DEVICES[:2], settings, launcher=launcher),
            settings,
            tmp_path_factory.mktemp("profiles"),
            SPEC,
        )
    try:
        group.describe()
    except DeviceGone as error:
        if "InstrumentMissing" in str(error):
            pytest.skip(str(error))
        raise
    yield group
    group.close()


LAYER_OF_TWO = "64,512;4,512,1024;4,512,512;64,4;4,1024;4,512;64,4"
#: Two ranks, each with four experts; room for 64 tokens of each, four times.
EXPERTS_OF_TWO = [
    ("DispatchFFNCombine", f"{LAYER_OF_TWO} | {LAYER} -> 64,512;4 | DT_BF16;INT32"),
    ("DispatchFFNCombine", f"{LAYER_OF_TWO} | {LAYER_INT8} -> 64,512;4 | DT_BF16;INT32"),
    ("DispatchFFNCombine", f"{LAYER_OF_TWO};64 | {LAYER_BITS};BOOL -> 64,512;1,4 | DT_BF16;INT32"),
    ("MoeDistributeDispatch", f"64,512;64,4 | DT_BF16;INT32 -> 512,512;512;256;4;8;1 | DT_BF16;{TOLD};INT32"),
    ("MoeDistributeDispatch", f"64,512;64,4;8,512 | DT_BF16;INT32;FLOAT -> 512,512;512;256;4;8 | INT8;{TOLD}"),
    ("MoeDistributeDispatchV2", f"64,512;64,4;;64 | DT_BF16;INT32;;BOOL -> 512,512;512;65536;4;8 | INT8;{TOLD}"),
    ("MoeDistributeCombine", f"512,512;64,4;256;8;64,4 | DT_BF16;{BACK} -> 64,512 | DT_BF16"),
    ("MoeDistributeCombineV2", f"512,512;64,4;65536;8;64,4;1;64 | DT_BF16;{BACK};INT32;BOOL -> 64,512 | DT_BF16"),
    ("MoeDistributeDispatchV3", f"2052;64,512;64,4 | INT32;DT_BF16;INT32 -> 512,512;512;65536;4;8 | INT8;{TOLD}"),
    ("MoeDistributeCombineV3", f"2052;512,512;64,4;65536;8;64,4 | INT32;DT_BF16;{BACK} -> 64,512 | DT_BF16"),
]


@pytest.mark.parametrize(("kernel_type", "row"), EXPERTS_OF_TWO)
def test_experts_of_two_ranks(group: GroupProcess, kernel_type: str, row: str) -> None:
    module, _, function = replay_of(kernel_type).rpartition(".")
    outcome = group.run(Job(module, "", function, kernel_type, cells_of(f"{row} @ EP Size = 2"), 120, SPEC))
    assert outcome.status is Status.MEASURED, outcome
    assert outcome.measurement is not None
    assert min(outcome.measurement.samples_us) > 0
    print(group.describe().name, outcome.measurement)
