"""Finds the devices of this machine without importing torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.row.location import NPU_DEVICES, cpu_device_name, device_kind
from opatlas.row.versions import cuda_version
from opatlas.run.devices import npu_smi, nvidia
from opatlas.run.devices.device import KINDS, DeviceSpec
from opatlas.run.devices.npu_operators import operator_environment
from opatlas.run.devices.npu_smi import candidate_names, database_name_of_chip
from opatlas.run.devices.nvidia import Gpu
from opatlas.run.devices.system import read_text
from opatlas.text import parse_whole

#: The variable that lists the visible devices, by kind. A process numbers the listed devices from 0.
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


def visible_ids(variable: str, present: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the visible devices as the variable lists them: indices, or names such as `GPU-5f1c...`.

    As in the drivers, the list ends before the first entry that names no device (`0,1,-1,2` has two).

    Args:
        variable: a value of `VISIBLE`; if it is not set, all devices are visible.
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


def hides_all(variable: str) -> bool:
    """Returns whether the variable is set and lists no device, so that the user hides all devices of a kind."""
    return os.environ.get(variable, "0").strip() in ("", "-1")


def pin_devices(device: DeviceSpec, variable: str, ids: list[str]) -> list[DeviceSpec]:
    """Returns a spec for each visible device; the process of a spec sees this device only."""
    return [replace(device, index=index, pinned=(variable, name)) for index, name in enumerate(ids)]


def device_environment(device: DeviceSpec) -> dict[str, str]:
    """Returns the environment variables that a process needs before it imports torch and opens the device."""
    operators = operator_environment() if device.kind == "npu" else {}
    # Otherwise torch itself imports backends such as torch_npu, and fails if their libraries are missing. A device
    # imports its own backend, and its error names the remedy.
    shown = [device.pinned] if device.pinned and device.sees_no_other else []
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **operators, **dict(shown)}


def ranks_share(kind: str) -> bool:
    """Returns whether all ranks of a node share one device; False for unknown kinds."""
    return kind in KINDS and KINDS[kind].ranks_share


_DEVICE_FILES = Path("/dev")


def available_devices(name: str | None) -> list[DeviceSpec]:
    """Returns the devices to replay on: NPUs if there are any, else GPUs, else the CPU as one device.

    Args:
        name: name of a database folder, or a kind ("npu", "cuda", "cpu"). None: the best available kind, without hidden
            devices, and without GPUs if torch was built without CUDA.

    Raises:
        OpAtlasError: the named device is not available, or cannot replay.
    """
    kind = name if name in KINDS else device_kind(name) if name else None
    if kind == "npu" or (kind is None and not hides_all(VISIBLE["npu"]) and npus_present()):
        return _npus(None if name == "npu" else name)
    if kind == "cuda" or (kind is None and not hides_all(VISIBLE["cuda"]) and cuda_version() and nvidia.list_gpus()):
        return _gpus(None if name == "cuda" else name)
    if name not in (None, "cpu", cpu_device_name()):
        raise OpAtlasError(
            f"--device {name}: this machine does not have this device; give npu, cuda or cpu, or the name of a folder "
            f"in database/data (for this CPU {cpu_device_name()}), or leave --device out"
        )
    return [DeviceSpec("cpu", name=cpu_device_name())]


def database_name(devices: Sequence[DeviceSpec]) -> str:
    """Returns the name of the devices' database folder. Raises OpAtlasError if it is not known."""
    device = devices[0]
    if device.kind == "npu" and not device.name:
        shown = npu_smi.list_chips()
        said = f"npu-smi shows {shown[0].name}" if shown else "npu-smi is not on PATH or fails"
        names = (candidate_names(shown[0]) if shown else ()) or NPU_DEVICES
        raise OpAtlasError(
            f"the NPU's database folder does not follow from its chip ({said}): give --device "
            f"({' or '.join(names)}), or the folder with --database-path"
        )
    if not device.name:
        raise OpAtlasError(
            f"the database of devices of kind {device.kind} is not known: give its folder with --database-path, or "
            f"set the name of the DeviceSpec (pytest_opatlas_devices)"
        )
    return device.name


def npus_present() -> int:
    """Returns the number of NPUs that a process on this machine, or in this container, can open."""
    nodes = sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in _DEVICE_FILES.glob("davinci*"))
    return nodes or len(npu_smi.list_chips())


def _npus(name: str | None) -> list[DeviceSpec]:
    """Returns a spec for each visible NPU. Raises OpAtlasError if no NPU is visible."""
    present = npus_present()
    if not present:
        raise OpAtlasError(
            f"--device {name or 'npu'}: there is no NPU here ({_DEVICE_FILES}/davinci0 is missing, and npu-smi shows "
            f"none): in a container, pass the devices and the driver on (docker run --device /dev/davinci0 ...); leave "
            f"--device out to replay on another device"
        )
    variable = VISIBLE["npu"]
    ids = visible_ids(variable, present)
    if not ids:
        raise OpAtlasError(f"{variable} shows none of the {present} NPUs here: unset it, or list some of them (0,1)")
    by_logic = {str(chip.logic): chip for chip in npu_smi.list_chips()}
    names = {database_name_of_chip(by_logic.get(visible), name) for visible in ids}
    # NPUs of one machine are usually alike. Durations of different NPUs do not belong into one folder.
    device = DeviceSpec("npu", name=names.pop() if len(names) == 1 else "")
    return pin_devices(device, variable, ids)


def _gpus(name: str | None) -> list[DeviceSpec]:
    """Returns a spec for each visible GPU, or each visible GPU of a name. Raises OpAtlasError if no GPU fits."""
    present = nvidia.list_gpus()
    if not present:
        raise OpAtlasError(
            f"--device {name or 'cuda'}: there is no NVIDIA GPU here (nvidia-smi shows none, or is not on PATH): in a "
            f"container, pass the GPUs on (docker run --gpus all ...); leave --device out to replay on another device"
        )
    variable = VISIBLE["cuda"]
    ids = visible_ids(variable, len(present))
    if not ids:
        raise OpAtlasError(f"{variable} shows none of the {len(present)} GPUs here: unset it, or list some (0,1)")
    visible = {entry: _gpu(entry, present) for entry in ids}
    names = {gpu.name for gpu in visible.values()}
    if name is None and len(names) > 1:
        raise OpAtlasError(
            f"the visible GPUs are {' and '.join(sorted(names))}, whose durations belong into separate folders: "
            f"name one with --device, or list GPUs of one kind in {variable}"
        )
    # CUDA numbers unlike GPUs by speed, and nvidia-smi by PCI bus. A UUID names the same GPU for both.
    by_uuid = variable not in os.environ or len({gpu.name for gpu in present}) > 1
    chosen = [gpu.uuid if by_uuid else entry for entry, gpu in visible.items() if name is None or gpu.name == name]
    if not chosen:
        raise OpAtlasError(
            f"--device {name} is not among the visible GPUs ({', '.join(sorted(names))}): name one of them"
        )
    return pin_devices(DeviceSpec("cuda", name=name or names.pop()), variable, chosen)


def _gpu(entry: str, present: Sequence[Gpu]) -> Gpu:
    """Returns the GPU of an entry of CUDA_VISIBLE_DEVICES: a number of nvidia-smi, or the beginning of a UUID.

    Raises:
        OpAtlasError: the entry names no GPU.
    """
    index = parse_whole(entry)
    if index is not None:
        return present[index]
    for gpu in present:
        if gpu.uuid.startswith(entry):
            return gpu
    raise OpAtlasError(
        f"{VISIBLE['cuda']} names {entry!r}, which is not among the GPUs here "
        f"({', '.join(gpu.uuid for gpu in present)}); parts of a GPU (MIG) are not replayed on"
    )


#: Version of the loaded kernel module, also visible in containers.
_NVIDIA_MODULE = Path("/sys/module/nvidia/version")


def driver_version(kind: str) -> str | None:
    """Returns the driver's version for the manifest; "" if it is not known, None if the kind has no driver."""
    if kind == "cuda":
        return read_text(_NVIDIA_MODULE).strip() or nvidia.driver_version()
    return npu_smi.driver_version() if kind == "npu" else None
