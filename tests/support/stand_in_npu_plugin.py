"""A pytest plugin that puts a stand-in NPU (stand_in_npu.py) in the place of the device at hand."""

from __future__ import annotations

from opatlas.devices.device import DeviceSpec
from opatlas.devices.discovery import VISIBLE, pin_devices

NAME = "ATLAS_800_A3_752T_128G_DIE"


def pytest_opatlas_devices():
    return pin_devices(DeviceSpec("npu", opener="stand_in_npu:StandInNpu", name=NAME), VISIBLE["npu"], ["0"])
