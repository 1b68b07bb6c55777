"""Which devices this machine offers, found without importing torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.devices import npu_smi
from bench.devices.npu_names import name_of, names_of
from bench.devices.visible import VISIBLE, pinned, visible_ids
from bench.job import DeviceSpec
from database.errors import OpAtlasError
from database.layout import NPU_DEVICES, cpu_device_name, kind_of

_DEVICE_FILES = Path("/dev")


def devices_at_hand(name: str | None) -> list[DeviceSpec]:
    """The devices to replay on: of the kind that is named, else NPUs, else the CPU, whose cores are one device.

    Args:
        name: a device as its database folder is named, or a kind ("npu", "cpu"); None: the device at hand.

    Raises:
        OpAtlasError: a device that is not here, or that replays do not run on.
    """
    kind = name if name in ("npu", "cpu") else kind_of(name) if name else None
    if kind == "npu" or (kind is None and npus_present()):
        return _npus(None if name == "npu" else name)
    if kind == "cuda":
        raise OpAtlasError(
            f"--device {name} is a GPU, and this version does not replay on GPUs: "
            f"leave --device out to replay here, and name its database with --database-path"
        )
    if name not in (None, "cpu", cpu_device_name()):
        raise OpAtlasError(f"--device {name} is not this machine's CPU ({cpu_device_name()}): leave --device out")
    return [DeviceSpec("cpu", name=cpu_device_name())]


def database_name(devices: Sequence[DeviceSpec]) -> str:
    """The name of the devices' database folder. Raises OpAtlasError where it is not known."""
    device = devices[0]
    if device.kind == "npu" and not device.name:
        shown = npu_smi.chips()
        said = f"npu-smi shows {shown[0].name}" if shown else "npu-smi, which would tell, is not on PATH or fails"
        names = (names_of(shown[0]) if shown else ()) or NPU_DEVICES
        raise OpAtlasError(
            f"the NPU's database cannot be told from its chip ({said}): name it with --device ({' or '.join(names)}), "
            f"or the directory with --database-path"
        )
    return device.name or cpu_device_name()


def npus_present() -> int:
    """How many NPUs a process on this machine, or in this container, can open."""
    nodes = sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in _DEVICE_FILES.glob("davinci*"))
    return nodes or len(npu_smi.chips())


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
    by_logic = {str(chip.logic): chip for chip in npu_smi.chips()}
    names = {name_of(by_logic.get(visible), name) for visible in ids}
    # All of one machine are alike; should they not be, their durations do not belong into one folder.
    device = DeviceSpec("npu", name=names.pop() if len(names) == 1 else "")
    return pinned(device, variable, ids)
