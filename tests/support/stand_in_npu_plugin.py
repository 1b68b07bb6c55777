"""A pytest plugin that puts stand-in NPUs (stand_in_npu.py) in the place of the device at hand."""

from __future__ import annotations

import os

from opatlas.run.devices.device import DeviceSpec, kind_named, pin_devices

NAME = "ATLAS_800_A3_752T_128G_DIE"
#: The variable that tells how many there are, if not one.
COUNT = "STAND_IN_NPUS"


def pytest_opatlas_devices():
    spec = DeviceSpec("npu", opener="stand_in_npu:StandInNpu", name=NAME)
    return pin_devices(
        spec, kind_named("npu").visible, [str(index) for index in range(int(os.environ.get(COUNT, "1")))]
    )
