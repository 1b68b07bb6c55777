"""Which database an NPU's durations belong to: its chip against the names of `database.layout.NPU_DEVICES`.

A name tells the generation, the computing power in TFLOPS of FP16, and the memory. npu-smi tells the chip, its
AI cores and its memory: 910B2, 910B3 and 910B4 are an A2's chips of 376, 313 and 280 TFLOPS; an A3 shows its
dies as Ascend910, each half of 752 (24 AI cores or more) or of 560 TFLOPS (20 AI cores, as 910_9362 has).
"""

from __future__ import annotations

import re

from opatlas.devices import npu_smi
from opatlas.devices.npu_smi import Chip
from opatlas.devices.vendor_tools import whole_number
from opatlas.errors import OpAtlasError
from opatlas.model.location import NPU_DEVICES, slug

_A2_POWER = {"2": "376T", "2C": "376T", "3": "313T", "4": "280T", "4-1": "280T"}


#: Of a die with 20 AI cores, and of one with more.
_A3_POWERS = ("560T", "752T")


_CORES_OF_560T = 20


#: Devices of 64 GB show 65536 MB, those of 32 GB 32768 MB.
_MB_OF_A2_32G = 32768


def names_of(chip: Chip) -> tuple[str, ...]:
    """The database names that a chip may go by; one of its own where it is of no generation that has names."""
    plain = chip.name.replace(" ", "").removeprefix("Ascend")
    a2 = re.fullmatch(r"910B(\d(?:C|-1)?)", plain, flags=re.IGNORECASE)
    if a2:
        power = _A2_POWER.get(a2[1].upper())
        names = [name for name in _of("A2") if power is None or f"_{power}_" in name]
        megabytes = whole_number(npu_smi.usages(chip).get("HBM Capacity(MB)"))
        if megabytes is None:
            return tuple(names)
        memory = "32G" if megabytes <= _MB_OF_A2_32G else "64G"
        return tuple(name for name in names if memory in name.split("_"))
    if re.fullmatch(r"910(_93\w\w)?", plain):
        cores = whole_number(npu_smi.common(chip).get("Aicore Count"))
        if cores is None:
            return _of("A3")
        power = _A3_POWERS[cores > _CORES_OF_560T]
        return tuple(name for name in _of("A3") if f"_{power}_" in name)
    return (slug(f"Ascend{plain}"),)


def name_of(chip: Chip | None, asked: str | None) -> str:
    """The database name of an NPU: the one asked for, or the only one that it may go by; "" where there are several.

    Args:
        chip: what npu-smi shows; None where it shows nothing, so that any name is believed.

    Raises:
        OpAtlasError: the chip is not what the name asked for says.
    """
    if chip is None:
        return asked or ""
    names = names_of(chip)
    if asked and asked not in names:
        fitting = f"--device {' or '.join(names)}" if names else "no name that is known"
        raise OpAtlasError(
            f"--device {asked}: npu-smi shows {chip.name}, whose durations do not belong there; it fits {fitting}. "
            f"Leave --device out, or name the directory itself with --database-path"
        )
    return asked or (names[0] if len(names) == 1 else "")


def _of(generation: str) -> tuple[str, ...]:
    return tuple(name for name in NPU_DEVICES if generation in name.split("_"))
