"""Which devices this machine offers, found without importing torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opatlas.devices import npu_smi
from opatlas.devices import nvidia as nvidia_smi
from opatlas.devices.device import KINDS, DeviceSpec
from opatlas.devices.npu_operators import operator_environment
from opatlas.devices.npu_smi import candidate_names, confirmed_name
from opatlas.devices.nvidia import Gpu
from opatlas.errors import OpAtlasError
from opatlas.model.location import NPU_DEVICES, cpu_device_name, device_kind
from opatlas.model.versions import cuda_version
from opatlas.text import whole

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


def hides_all(variable: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the caller hides every device of a kind on purpose: the variable is set, but to none."""
    return environment.get(variable, "0").strip() in ("", "-1")


def pin_devices(device: DeviceSpec, variable: str, ids: list[str]) -> list[DeviceSpec]:
    """One spec for each visible device; its process sees that device alone."""
    return [replace(device, index=index, pinned=(variable, name)) for index, name in enumerate(ids)]


def device_environment(device: DeviceSpec) -> dict[str, str]:
    """What a process that is to own a device must have in its environment before it imports torch."""
    operators = operator_environment() if device.kind == "npu" else {}
    # torch would import torch_npu and the like by itself, and fail where what these stand on is not there:
    # a device imports its own, and says what is wrong.
    shown = [device.pinned] if device.pinned and device.alone else []
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **operators, **dict(shown)}


def ranks_share(kind: str) -> bool:
    """Whether the ranks of a node share its one device; those of a kind that is not known have one each."""
    return kind in KINDS and KINDS[kind].ranks_share


_DEVICE_FILES = Path("/dev")


def available_devices(name: str | None) -> list[DeviceSpec]:
    """The devices to replay on: of the kind that is named, else NPUs, else GPUs, else the CPU, all of it one device.

    Args:
        name: a device as its database folder is named, or a kind ("npu", "cuda", "cpu"); None: the device at
            hand, which GPUs are only for a torch that was built for them, and no device is that the caller hides.

    Raises:
        OpAtlasError: a device that is not here, or that replays do not run on.
    """
    kind = name if name in KINDS else device_kind(name) if name else None
    if kind == "npu" or (kind is None and not hides_all(VISIBLE["npu"]) and npus_present()):
        return _npus(None if name == "npu" else name)
    if kind == "cuda" or (
        kind is None and not hides_all(VISIBLE["cuda"]) and cuda_version() and nvidia_smi.list_gpus()
    ):
        return _gpus(None if name == "cuda" else name)
    if name not in (None, "cpu", cpu_device_name()):
        raise OpAtlasError(
            f"--device {name}: there is no such device here; give npu, cuda or cpu, the name of a device as its folder "
            f"under database/data has it (this CPU's is {cpu_device_name()}), or leave --device out"
        )
    return [DeviceSpec("cpu", name=cpu_device_name())]


def database_name(devices: Sequence[DeviceSpec]) -> str:
    """The name of the devices' database folder. Raises OpAtlasError where it is not known."""
    device = devices[0]
    if device.kind == "npu" and not device.name:
        shown = npu_smi.list_chips()
        said = f"npu-smi shows {shown[0].name}" if shown else "npu-smi, which would tell, is not on PATH or fails"
        names = (candidate_names(shown[0]) if shown else ()) or NPU_DEVICES
        raise OpAtlasError(
            f"the NPU's database cannot be told from its chip ({said}): name it with --device ({' or '.join(names)}), "
            f"or the directory with --database-path"
        )
    if not device.name:
        raise OpAtlasError(
            f"the database of a device of kind {device.kind} is not known: name its folder with --database-path, or "
            f"let the DeviceSpec have a name (pytest_opatlas_devices)"
        )
    return device.name


def npus_present() -> int:
    """How many NPUs a process on this machine, or in this container, can open."""
    nodes = sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in _DEVICE_FILES.glob("davinci*"))
    return nodes or len(npu_smi.list_chips())


def _npus(name: str | None) -> list[DeviceSpec]:
    """One spec for each NPU that the caller made visible. Raises OpAtlasError."""
    present = npus_present()
    if not present:
        raise OpAtlasError(
            f"--device {name or 'npu'}: there is no NPU here ({_DEVICE_FILES}/davinci0 is missing, and npu-smi shows "
            f"none): in a container, pass the devices and the driver on (docker run --device /dev/davinci0 ...); leave "
            f"--device out to replay on the device at hand"
        )
    variable = VISIBLE["npu"]
    ids = visible_ids(variable, present)
    if not ids:
        raise OpAtlasError(f"{variable} shows none of the {present} NPUs here: unset it, or list some of them (0,1)")
    by_logic = {str(chip.logic): chip for chip in npu_smi.list_chips()}
    names = {confirmed_name(by_logic.get(visible), name) for visible in ids}
    # All of one machine are alike; should they not be, their durations do not belong into one folder.
    device = DeviceSpec("npu", name=names.pop() if len(names) == 1 else "")
    return pin_devices(device, variable, ids)


def _gpus(name: str | None) -> list[DeviceSpec]:
    """One spec for each GPU that the caller made visible, or for each of this name. Raises OpAtlasError."""
    present = nvidia_smi.list_gpus()
    if not present:
        raise OpAtlasError(
            f"--device {name or 'cuda'}: there is no NVIDIA GPU here (nvidia-smi shows none, or is not on PATH): in a "
            f"container, pass the GPUs on (docker run --gpus all ...); leave --device out to replay on the device at "
            f"hand"
        )
    variable = VISIBLE["cuda"]
    ids = visible_ids(variable, len(present))
    if not ids:
        raise OpAtlasError(f"{variable} shows none of the {len(present)} GPUs here: unset it, or list some (0,1)")
    visible = {entry: _gpu(entry, present) for entry in ids}
    names = {gpu.name for gpu in visible.values()}
    if name is None and len(names) > 1:
        raise OpAtlasError(
            f"the visible GPUs are {' and '.join(sorted(names))}, whose durations belong into a folder each: "
            f"name one with --device, or show one kind of them with {variable}"
        )
    # Where the user numbered none, by UUID: CUDA numbers them by their speed, nvidia-smi by their place.
    chosen = [
        entry if variable in os.environ else gpu.uuid
        for entry, gpu in visible.items()
        if name is None or gpu.name == name
    ]
    if not chosen:
        raise OpAtlasError(
            f"--device {name} is not among the visible GPUs ({', '.join(sorted(names))}): name one of them"
        )
    return pin_devices(DeviceSpec("cuda", name=name or names.pop()), variable, chosen)


def _gpu(entry: str, present: Sequence[Gpu]) -> Gpu:
    """What an entry of CUDA_VISIBLE_DEVICES names: a number, or the beginning of a UUID. Raises OpAtlasError."""
    index = whole(entry)
    if index is not None:
        return present[index]
    for gpu in present:
        if gpu.uuid.startswith(entry):
            return gpu
    raise OpAtlasError(
        f"{VISIBLE['cuda']} names {entry!r}, which is none of the GPUs here "
        f"({', '.join(gpu.uuid for gpu in present)}); parts of a GPU (MIG) are not replayed on"
    )


#: Of the loaded kernel module. A container sees it too.
_NVIDIA_MODULE = Path("/sys/module/nvidia/version")


def driver_version(kind: str) -> str | None:
    """The version as manifests have it; "" where nobody tells, None for a kind of device that has no driver."""
    if kind == "cuda":
        return _of_module(_NVIDIA_MODULE) or nvidia_smi.driver_version()
    return npu_smi.driver_version() if kind == "npu" else None


def _of_module(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):  # no such module, or a system that hides it
        return ""
