"""Runs in the environment of torch_npu: opens the stand-in NPU, and prints its answers as JSON.

    python open_npu.py [all-visible]

With the word it is the second of those that the process sees, and else the only one.

A failure to open is printed as the error's type and message.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace

from opatlas.errors import OpAtlasError
from opatlas.row.errors import ReplayError
from opatlas.run.devices.device import DeviceSpec, kind_named, open_device
from opatlas.run.instruments.instrument import MeasureSettings, StopRule

SPEC = DeviceSpec("npu", 3, pinned=(kind_named("npu").visible, "3"), name="ATLAS_800_A3_752T_128G_DIE")
CALLS = (
    None,
    "torch.add",
    "torch_npu.npu_swiglu",
    "torch_npu.npu_swiglu_of_tomorrow",
    "torch.ops._C_ascend.npu_add_rms_norm_bias",
)


def found(device, call):
    """The function that the name of an NPU call resolves to."""
    try:
        return {"status": "found", "text": repr(device.kernel(lambda: None, call))}
    except ReplayError as error:
        return {"status": error.status, "text": str(error)}


def main() -> None:
    try:
        spec = replace(SPEC, index=1, sees_no_other=False) if sys.argv[1:] else SPEC
        device = open_device(spec, MeasureSettings(instrument="npu-events"))
    except OpAtlasError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        return
    events = device.instrument()

    def call():
        # torch_npu records events from a queue of its own: on a busy machine the first one may come late.
        device.synchronize()
        time.sleep(0.01)

    samples = events.sample(call, device.synchronize, StopRule(repeat_count=3, time_limit_s=60))
    device.release_memory()
    said = {
        "torch_device": str(device.torch_device),
        "description": asdict(device.describe()),
        "available_bytes": device.available_bytes(),
        "instrument": events.name,
        "durations_us": samples.durations_us,
        "kernels": {str(call): found(device, call) for call in CALLS},
        "offered": list(kind_named("npu").instruments),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
