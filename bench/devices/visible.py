"""Which devices of a kind this process may use, and how a device process is shown one of them alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from bench.custom_opp import environment_with_operators
from bench.job import DeviceSpec

#: Drivers number the devices in this variable anew from 0, for whoever reads it.
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


def visible_ids(variable: str, present: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The devices that the caller made visible, as it named them: indices, or names such as `GPU-5f1c...`.

    Args:
        variable: of VISIBLE; where it is not set, all devices are visible.
        present: how many devices the machine has.

    As in the drivers, the list ends before the first entry that names no device (`0,1,-1,2` is two).
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


def all_hidden(variable: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the caller hides every device of a kind on purpose: the variable is set, but to none."""
    return environment.get(variable, "0").strip() in ("", "-1")


def pinned(device: DeviceSpec, variable: str, ids: list[str]) -> list[DeviceSpec]:
    """One spec for each visible device; its process sees that device alone."""
    return [replace(device, index=index, pinned=(variable, name)) for index, name in enumerate(ids)]


def environment_of(device: DeviceSpec) -> dict[str, str]:
    """What a process that is to own a device must have in its environment before it imports torch."""
    operators = environment_with_operators() if device.kind == "npu" else {}
    # torch would import torch_npu and the like by itself, and fail where what these stand on is not there:
    # a device imports its own, and says what is wrong.
    shown = [device.pinned] if device.pinned and device.alone else []
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **operators, **dict(shown)}
