"""Several devices that are one CPU, each of which can be told to break. No torch here.

Copied, with simulated_device.py, beside the replays of a test's folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opatlas.devices.device import DeviceSpec
from opatlas.devices.discovery import pin_devices, visible_ids

VISIBLE = "SIMULATED_VISIBLE_DEVICES"
POISON = "CUDA error: an illegal memory access was encountered"
FOLDER = Path(__file__).parent

_poisoned: list[bool] = []


def devices(present: int) -> Sequence[DeviceSpec]:
    """Those that the caller made visible of the devices that are there."""
    spec = DeviceSpec("simulated", opener="simulated_device:SimulatedDevice")
    return pin_devices(spec, VISIBLE, visible_ids(VISIBLE, present))


def own_id() -> str:
    """The device that this process was shown, as the caller calls it."""
    return os.environ[VISIBLE]


def poison() -> None:
    """What a bad kernel does: it fails, and so does every later call in its process."""
    _poisoned.append(True)
    raise RuntimeError(f"{POISON}\nCUDA kernel errors might be asynchronously reported at some other API call")


def break_for_good(device_id: str) -> None:
    """From now on every process of a device finds it poisoned."""
    _broken(device_id).touch()


def expect_well() -> None:
    """Raises what a poisoned device answers to every call."""
    if _poisoned or _broken(own_id()).exists():
        raise RuntimeError(POISON)


def _broken(device_id: str) -> Path:
    return FOLDER / f"broken-{device_id}"
