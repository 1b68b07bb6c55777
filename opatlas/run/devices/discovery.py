"""Finds the devices of this machine without importing torch."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from opatlas.errors import OpAtlasError
from opatlas.row.kind import kind_of
from opatlas.run.devices.device import DeviceSpec, DeviceState, device_kinds, kind_named


def visible_ids(variable: str, present: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the visible devices as the variable lists them: indices, or names such as `GPU-5f1c...`.

    As in the drivers, the list ends before the first entry that names no device (`0,1,-1,2` has two).

    Args:
        variable: `DeviceKind.visible`; if it is not set, all devices are visible.
        present: number of devices of the machine.
    """
    value = environment.get(variable)
    if value is None:
        return [str(index) for index in range(present)]
    ids: list[str] = []
    for entry in value.split(","):
        name = entry.strip()
        if not name or name in ids or (re.fullmatch(r"-?\d+", name) and not 0 <= int(name) < present):
            break
        ids.append(name)
    return ids


def is_hidden(variable: str) -> bool:
    """Returns whether the variable is set and lists no device, so that the user hides all devices of a kind."""
    return os.environ.get(variable, "0").strip() in ("", "-1")


def pin_devices(device: DeviceSpec, variable: str, ids: Iterable[str]) -> list[DeviceSpec]:
    """Returns a spec for each visible device; the process of a spec sees this device only."""
    return [replace(device, index=index, pinned=(variable, name)) for index, name in enumerate(ids)]


def device_environment(device: DeviceSpec) -> dict[str, str]:
    """Returns the environment variables that a process needs before it imports torch and opens the device."""
    # Otherwise torch itself imports backends such as torch_npu, and fails if their libraries are missing. A device
    # imports its own backend, and its error names the remedy.
    shown = [device.pinned] if device.pinned and device.sees_no_other else []
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **kind_named(device.kind).environment(), **dict(shown)}


def available_devices(name: str | None) -> list[DeviceSpec]:
    """Returns the devices to replay on: NPUs if there are any, else GPUs, else the CPU as one device.

    Args:
        name: name of a database folder, or a kind ("npu", "cuda", "cpu"). None: the best available kind, without hidden
            devices, and without GPUs if torch was built without CUDA.

    Raises:
        OpAtlasError: the named device is not available, or cannot replay.
    """
    kinds = device_kinds()
    if name is not None and name in kinds:
        return kinds[name].find(None)
    kind = kinds[kind_of(name).name] if name else next(kind for kind in kinds.values() if kind.is_present())
    return kind.find(name)


def database_name(devices: Sequence[DeviceSpec]) -> str:
    """Returns the name of the devices' database folder. Raises OpAtlasError if it is not known."""
    if not devices[0].name:
        raise OpAtlasError(kind_named(devices[0].kind).name_remedy())
    return devices[0].name


def device_states(devices: Iterable[DeviceSpec], own: Collection[int], opened: bool) -> list[DeviceState]:
    """Returns the states of the devices that tell theirs; the arguments are those of `DeviceKind.state`."""
    states = (kind_named(device.kind).state(device, own, opened) for device in devices)
    return [state for state in states if state is not None]
