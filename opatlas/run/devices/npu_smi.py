"""Reads npu-smi: the chips of a machine, their state, and the database folder of each chip.

The output of npu-smi differs between drivers: tables are read by their header and fields by their names, and missing
values are left out. Samples: npu-smi Command Reference (Huawei), and the tests.

A database name (opatlas.row.location.NPU_DEVICES) has the generation, the computing power in TFLOPS of FP16, and the
memory. npu-smi shows the chip, its AI cores and its memory. 910B2, 910B3 and 910B4 are chips of an A2 with 376, 313 and
280 TFLOPS. An A3 shows each of its dies as Ascend910, which is half of 752 TFLOPS (24 AI cores or more) or half of 560
TFLOPS (20 AI cores, such as 910_9362).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from opatlas.errors import OpAtlasError
from opatlas.row.location import NPU_DEVICES, slug
from opatlas.run.devices.system import run_tool
from opatlas.text import parse_whole

#: npu-smi takes a second or two, and does not return if the driver hangs.
_TIMEOUT_S = 30
_NO_VALUES = frozenset({"", "-", "NA", "N/A", "None"})
#: Name of the card's microcontroller, which is listed with the chips.
_NOT_A_CHIP = "mcu"


@dataclass(frozen=True)
class Chip:
    """A chip in the table of `npu-smi info -m`. On an A3 a card ("NPU" in npu-smi) has two chips.

    Attributes:
        npu, chip: numbers of card and chip for npu-smi (`-i`, `-c`).
        logic: number of the chip in ASCEND_RT_VISIBLE_DEVICES.
        physical: number of the device file /dev/davinci{physical}; the logic number if npu-smi does not show the file.
        name: such as "Ascend 910B3", or "Ascend910" on an A3.
    """

    npu: int
    chip: int
    logic: int
    physical: int
    name: str


def list_chips() -> tuple[Chip, ...]:
    """Returns the chips that npu-smi shows, in order of their logic numbers; () if npu-smi is missing or fails."""
    return parse_chips(_query("-m"))


@dataclass(frozen=True)
class NpuSmiInfo:
    """Fields of a chip by npu-smi's names; numbers are converted.

    Attributes:
        board: constant fields: product, serial number, versions of driver ("Software Version") and firmware.
        state: changing fields: temperature, power, frequency and use.
    """

    board: Mapping[str, str | int | float]
    state: Mapping[str, str | int | float]


def query_chip(chip: Chip | None) -> NpuSmiInfo:
    """Returns all fields of a chip; no fields for None, which means a chip that npu-smi does not show."""
    if chip is None:
        return NpuSmiInfo({}, {})
    from concurrent.futures import ThreadPoolExecutor

    # In parallel, because each query takes about a second.
    with ThreadPoolExecutor() as pool:
        card, die, *state = pool.map(lambda ask: ask(chip), (_card, _die, query_common, query_usages))
    return NpuSmiInfo(_as_numbers({**card, **die}), _as_numbers({**state[0], **state[1]}))


def driver_version() -> str:
    """Returns the driver's version, such as "24.1.rc2"; "" if npu-smi does not show the version."""
    first = next(iter(list_chips()), None)
    if first is None:
        return ""
    return _card(first).get("Software Version") or _die(first).get("Software Version", "")


def query_common(chip: Chip) -> dict[str, str]:
    """Returns the number and frequency of the AI cores, the temperature and the power."""
    return _of_chip(chip, "common")


def query_usages(chip: Chip) -> dict[str, str]:
    """Returns the capacity of the memory, and the use of memory and cores."""
    return _of_chip(chip, "usages")


def _card(chip: Chip) -> dict[str, str]:
    return parse_fields(_query("-t", "board", "-i", str(chip.npu)))


def _die(chip: Chip) -> dict[str, str]:
    return _of_chip(chip, "board")


def parse_chips(text: str) -> tuple[Chip, ...]:
    """Parses the table of `npu-smi info -m`. Its columns depend on the driver; the last one, the name, has blanks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    header = next((i for i, line in enumerate(lines) if line.startswith("NPU ID")), None)
    if header is None:
        return ()
    titles = re.split(r"\s{2,}", lines[header])
    found: list[Chip] = []
    for line in lines[header + 1 :]:
        cells = dict(zip(titles, line.split(None, len(titles) - 1), strict=False))
        npu, name = parse_whole(cells.get("NPU ID", "")), cells.get("Chip Name", "")
        # A chip that cannot be used has the number -1, or no number.
        logic = parse_whole(cells.get("Chip Logic ID", str(len(found))))
        if npu is None or logic is None or not name or name.lower() == _NOT_A_CHIP:
            continue
        physical = parse_whole(cells.get("Chip Phy-ID", ""))
        found.append(
            Chip(npu, parse_whole(cells.get("Chip ID", "")) or 0, logic, logic if physical is None else physical, name)
        )
    return tuple(sorted(found, key=lambda chip: chip.logic))


def parse_fields(text: str) -> dict[str, str]:
    """Parses the `name : value` lines of a chip, without empty values and without the microcontroller."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        if name == "Chip Name" and value.lower() == _NOT_A_CHIP:
            break
        if colon and name and value not in _NO_VALUES:
            fields.setdefault(name, value)
    return fields


def _of_chip(chip: Chip, kind: str) -> dict[str, str]:
    # Drivers for cards with one chip may not support -c.
    card = ("-t", kind, "-i", str(chip.npu))
    return parse_fields(_query(*card, "-c", str(chip.chip)) or _query(*card))


def _query(*arguments: str) -> str:
    """Returns the output of `npu-smi info`; "" for a failure, such as an unknown argument."""
    return run_tool("npu-smi", "info", *arguments, timeout_s=_TIMEOUT_S)


def _as_numbers(fields: Mapping[str, str]) -> dict[str, str | int | float]:
    return {name: _as_number(value) for name, value in fields.items()}


def _as_number(text: str) -> str | int | float:
    if re.fullmatch(r"\d+", text):
        # Serial numbers keep their leading zeros.
        return text if len(text) > 1 and text[0] == "0" else int(text)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text


_A2_POWER = {"2": "376T", "2C": "376T", "3": "313T", "4": "280T", "4-1": "280T"}

#: Power of a die with at most `_CORES_OF_560T` AI cores, and of a die with more cores.
_A3_POWERS = ("560T", "752T")
_CORES_OF_560T = 20

#: Devices of 64 GB show 65536 MB, devices of 32 GB 32768 MB.
_MB_OF_A2_32G = 32768


def candidate_names(chip: Chip) -> tuple[str, ...]:
    """Returns the database names that fit a chip; for an unknown generation one name made from the chip's name."""
    plain = chip.name.replace(" ", "").removeprefix("Ascend")
    a2 = re.fullmatch(r"910B(\d(?:C|-1)?)", plain, flags=re.IGNORECASE)
    if a2:
        power = _A2_POWER.get(a2[1].upper())
        names = [name for name in _names_of_generation("A2") if power is None or f"_{power}_" in name]
        megabytes = parse_whole(query_usages(chip).get("HBM Capacity(MB)", ""))
        if megabytes is None:
            return tuple(names)
        memory = "32G" if megabytes <= _MB_OF_A2_32G else "64G"
        return tuple(name for name in names if memory in name.split("_"))
    if re.fullmatch(r"910(_93\w\w)?", plain):
        cores = parse_whole(query_common(chip).get("Aicore Count", ""))
        if cores is None:
            return _names_of_generation("A3")
        power = _A3_POWERS[cores > _CORES_OF_560T]
        return tuple(name for name in _names_of_generation("A3") if f"_{power}_" in name)
    return (slug(f"Ascend{plain}"),)


def database_name_of_chip(chip: Chip | None, requested: str | None) -> str:
    """Returns the database name of an NPU: the requested name, or the only fitting one; "" if several names fit.

    Args:
        chip: the chip that npu-smi shows; None without a chip, so that the requested name cannot be checked.
        requested: the requested name; None without a request.

    Raises:
        OpAtlasError: the requested name does not fit the chip.
    """
    if chip is None:
        return requested or ""
    names = candidate_names(chip)
    if requested and requested not in names:
        fitting = f"--device {' or '.join(names)}" if names else "no known name"
        raise OpAtlasError(
            f"--device {requested}: npu-smi shows {chip.name}, whose durations belong elsewhere: the chip fits "
            f"{fitting}. Leave --device out, or give the folder with --database-path"
        )
    return requested or (names[0] if len(names) == 1 else "")


def _names_of_generation(generation: str) -> tuple[str, ...]:
    return tuple(name for name in NPU_DEVICES if generation in name.split("_"))
