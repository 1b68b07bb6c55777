"""Simulates several devices on one CPU, which can be made to fail. Imports no torch.

Copied, with simulated_device.py, next to the replays of a test's folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opatlas.run.devices.device import DeviceSpec, pin_devices, visible_ids

VISIBLE = "SIMULATED_VISIBLE_DEVICES"
POISON = "CUDA error: an illegal memory access was encountered"
FOLDER = Path(__file__).parent

_poisoned: list[bool] = []
#: Errors that the next calls in this process raise, one each.
_left_over: list[str] = []


def devices(present: int) -> Sequence[DeviceSpec]:
    """Returns a spec for each visible device."""
    spec = DeviceSpec("simulated", opener="simulated_device:SimulatedDevice")
    return pin_devices(spec, VISIBLE, visible_ids(VISIBLE, present))


def own_id() -> str:
    """Returns the name of the device that this process sees."""
    return os.environ[VISIBLE]


def poison() -> None:
    """Fails like a kernel with a fatal device error; every later call in this process fails, too."""
    _poisoned.append(True)
    raise RuntimeError(f"{POISON}\nCUDA kernel errors might be asynchronously reported at some other API call")


def leave_error() -> None:
    """Fails like a library's launch with wrong arguments, and leaves the error for the next call in this process."""
    _left_over.append("CUDA error: invalid argument")
    raise RuntimeError("Check failed: (status == cudaSuccess) is false: launch failed: invalid argument")


def break_for_good(device_id: str) -> None:
    """Makes a device fail in every process from now on."""
    _broken(device_id).touch()


def expect_well() -> None:
    """Raises the error that an earlier call left, or the fatal device error, if this device has failed."""
    if _left_over:
        raise RuntimeError(_left_over.pop())
    if _poisoned or _broken(own_id()).exists() or os.environ.get("SIMULATED_SICK"):
        raise RuntimeError(POISON)


def _broken(device_id: str) -> Path:
    return FOLDER / f"broken-{device_id}"
