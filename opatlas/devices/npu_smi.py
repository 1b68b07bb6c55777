"""What npu-smi says of the machine's NPUs: which chips there are, and their board, clocks and use. No torch here.

Its output differs from driver to driver: tables are read by their header, fields by their names, and what is
not there is left out. Samples: npu-smi Command Reference (Huawei), and the tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from opatlas.devices import npu_smi
from opatlas.devices.vendor_tools import parse_whole, run_tool
from opatlas.errors import OpAtlasError
from opatlas.model.location import NPU_DEVICES, slug

#: It takes a second or two; a driver that is stuck never answers.
_TIMEOUT_S = 30
_NO_VALUES = frozenset({"", "-", "NA", "N/A", "None"})
#: A microcontroller of the card, listed beside its chips.
_NOT_A_CHIP = "mcu"


@dataclass(frozen=True)
class Chip:
    """A chip of the table that `npu-smi info -m` prints; on an A3 a card (an NPU there) has two.

    Attributes:
        npu, chip: by which npu-smi addresses it (`-i`, `-c`).
        logic: its number in ASCEND_RT_VISIBLE_DEVICES.
        physical: of its device file /dev/davinci{physical}; the logic number where npu-smi does not say.
        name: such as "Ascend 910B3", or "Ascend910" on an A3.
    """

    npu: int
    chip: int
    logic: int
    physical: int
    name: str


def list_chips() -> tuple[Chip, ...]:
    """The chips that npu-smi shows, by their logic number; none where there is no npu-smi, or no answer."""
    return parse_chips(_ask("-m"))


@dataclass(frozen=True)
class NpuSmiInfo:
    """All that npu-smi says of a chip, by the names that it uses, with numbers as numbers.

    Attributes:
        board: what stays: product, serial number, versions of driver ("Software Version") and firmware.
        state: what changes: temperature, power, frequency and use.
    """

    board: Mapping[str, str | int | float]
    state: Mapping[str, str | int | float]


def query_chip(chip: Chip | None) -> NpuSmiInfo:
    """Nothing of a chip that npu-smi does not show."""
    if chip is None:
        return NpuSmiInfo({}, {})
    # At once: each question takes it a second or so.
    with ThreadPoolExecutor() as pool:
        card, die, *state = pool.map(lambda ask: ask(chip), (_card, _die, query_common, query_usages))
    return NpuSmiInfo(_as_numbers({**card, **die}), _as_numbers({**state[0], **state[1]}))


def driver_version() -> str:
    """The driver's version, such as "24.1.rc2"; "" where npu-smi does not tell."""
    first = next(iter(list_chips()), None)
    if first is None:
        return ""
    return _card(first).get("Software Version") or _die(first).get("Software Version", "")


def query_common(chip: Chip) -> dict[str, str]:
    """Number and frequency of the AI cores, temperature, power."""
    return _of_chip(chip, "common")


def query_usages(chip: Chip) -> dict[str, str]:
    """Capacity of the memory, and how much of memory and cores is in use."""
    return _of_chip(chip, "usages")


def _card(chip: Chip) -> dict[str, str]:
    return parse_fields(_ask("-t", "board", "-i", str(chip.npu)))


def _die(chip: Chip) -> dict[str, str]:
    return _of_chip(chip, "board")


def parse_chips(text: str) -> tuple[Chip, ...]:
    """The table of `npu-smi info -m`. Drivers differ in its columns; the last one is the name, with blanks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    header = next((i for i, line in enumerate(lines) if line.startswith("NPU ID")), None)
    if header is None:
        return ()
    titles = re.split(r"\s{2,}", lines[header])
    found: list[Chip] = []
    for line in lines[header + 1 :]:
        cells = dict(zip(titles, line.split(None, len(titles) - 1), strict=False))
        npu, name = parse_whole(cells.get("NPU ID")), cells.get("Chip Name", "")
        # A number of -1, or none, is that of a chip which cannot be used.
        logic = parse_whole(cells.get("Chip Logic ID", str(len(found))))
        if npu is None or logic is None or not name or name.lower() == _NOT_A_CHIP:
            continue
        physical = parse_whole(cells.get("Chip Phy-ID"))
        found.append(
            Chip(npu, parse_whole(cells.get("Chip ID")) or 0, logic, logic if physical is None else physical, name)
        )
    return tuple(sorted(found, key=lambda chip: chip.logic))


def parse_fields(text: str) -> dict[str, str]:
    """The `name : value` lines of a chip, those without a value left out; a microcontroller's follow the chip's."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        if name == "Chip Name" and value.lower() == _NOT_A_CHIP:
            break
        if colon and name and value not in _NO_VALUES:
            fields.setdefault(name, value)
    return fields


def _of_chip(chip: Chip, kind: str) -> dict[str, str]:
    # Drivers of cards with one chip may not know -c.
    card = ("-t", kind, "-i", str(chip.npu))
    return parse_fields(_ask(*card, "-c", str(chip.chip)) or _ask(*card))


def _ask(*arguments: str) -> str:
    """What `npu-smi info` prints; "" where it fails, as it does for what it does not know."""
    return run_tool("npu-smi", "info", *arguments, timeout_s=_TIMEOUT_S)


def _as_numbers(fields: Mapping[str, str]) -> dict[str, str | int | float]:
    return {name: _as_number(value) for name, value in fields.items()}


def _as_number(text: str) -> str | int | float:
    if re.fullmatch(r"\d+", text):
        # Serial numbers and the like keep their zeros.
        return text if len(text) > 1 and text[0] == "0" else int(text)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text


_A2_POWER = {"2": "376T", "2C": "376T", "3": "313T", "4": "280T", "4-1": "280T"}

#: Of a die with 20 AI cores, and of one with more.
_A3_POWERS = ("560T", "752T")

_CORES_OF_560T = 20

#: Devices of 64 GB show 65536 MB, those of 32 GB 32768 MB.
_MB_OF_A2_32G = 32768


def candidate_names(chip: Chip) -> tuple[str, ...]:
    """The database names that a chip may go by; one of its own where it is of no generation that has names."""
    plain = chip.name.replace(" ", "").removeprefix("Ascend")
    a2 = re.fullmatch(r"910B(\d(?:C|-1)?)", plain, flags=re.IGNORECASE)
    if a2:
        power = _A2_POWER.get(a2[1].upper())
        names = [name for name in _names_of_generation("A2") if power is None or f"_{power}_" in name]
        megabytes = parse_whole(npu_smi.query_usages(chip).get("HBM Capacity(MB)"))
        if megabytes is None:
            return tuple(names)
        memory = "32G" if megabytes <= _MB_OF_A2_32G else "64G"
        return tuple(name for name in names if memory in name.split("_"))
    if re.fullmatch(r"910(_93\w\w)?", plain):
        cores = parse_whole(npu_smi.query_common(chip).get("Aicore Count"))
        if cores is None:
            return _names_of_generation("A3")
        power = _A3_POWERS[cores > _CORES_OF_560T]
        return tuple(name for name in _names_of_generation("A3") if f"_{power}_" in name)
    return (slug(f"Ascend{plain}"),)


def confirmed_name(chip: Chip | None, asked: str | None) -> str:
    """The database name of an NPU: the one asked for, or the only one that it may go by; "" where there are several.

    Args:
        chip: what npu-smi shows; None where it shows nothing, so that any name is believed.

    Raises:
        OpAtlasError: the chip is not what the name asked for says.
    """
    if chip is None:
        return asked or ""
    names = candidate_names(chip)
    if asked and asked not in names:
        fitting = f"--device {' or '.join(names)}" if names else "no name that is known"
        raise OpAtlasError(
            f"--device {asked}: npu-smi shows {chip.name}, whose durations do not belong there; it fits {fitting}. "
            f"Leave --device out, or name the directory itself with --database-path"
        )
    return asked or (names[0] if len(names) == 1 else "")


def _names_of_generation(generation: str) -> tuple[str, ...]:
    return tuple(name for name in NPU_DEVICES if generation in name.split("_"))
