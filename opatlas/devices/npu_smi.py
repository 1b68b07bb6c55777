"""What npu-smi says of the machine's NPUs: which chips there are, and their board, clocks and use. No torch here.

Its output differs from driver to driver: tables are read by their header, fields by their names, and what is
not there is left out. Samples: npu-smi Command Reference (Huawei), and the tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from opatlas.devices.vendor_tools import printed, whole_number

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


def chips() -> tuple[Chip, ...]:
    """The chips that npu-smi shows, by their logic number; none where there is no npu-smi, or no answer."""
    return parse_chips(_ask("-m"))


@dataclass(frozen=True)
class Said:
    """All that npu-smi says of a chip, by the names that it uses, with numbers as numbers.

    Attributes:
        board: what stays: product, serial number, versions of driver ("Software Version") and firmware.
        state: what changes: temperature, power, frequency and use.
    """

    board: Mapping[str, str | int | float]
    state: Mapping[str, str | int | float]


def said_of(chip: Chip | None) -> Said:
    """Nothing of a chip that npu-smi does not show."""
    if chip is None:
        return Said({}, {})
    # At once: each question takes it a second or so.
    with ThreadPoolExecutor() as pool:
        card, die, *state = pool.map(lambda ask: ask(chip), (_card, _die, common, usages))
    return Said(_as_numbers({**card, **die}), _as_numbers({**state[0], **state[1]}))


def driver_version() -> str:
    """The driver's version, such as "24.1.rc2"; "" where npu-smi does not tell."""
    first = next(iter(chips()), None)
    if first is None:
        return ""
    return _card(first).get("Software Version") or _die(first).get("Software Version", "")


def common(chip: Chip) -> dict[str, str]:
    """Number and frequency of the AI cores, temperature, power."""
    return _of_chip(chip, "common")


def usages(chip: Chip) -> dict[str, str]:
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
        npu, name = whole_number(cells.get("NPU ID")), cells.get("Chip Name", "")
        # A number of -1, or none, is that of a chip which cannot be used.
        logic = whole_number(cells.get("Chip Logic ID", str(len(found))))
        if npu is None or logic is None or not name or name.lower() == _NOT_A_CHIP:
            continue
        physical = whole_number(cells.get("Chip Phy-ID"))
        found.append(
            Chip(npu, whole_number(cells.get("Chip ID")) or 0, logic, logic if physical is None else physical, name)
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
    return printed("npu-smi", "info", *arguments, timeout_s=_TIMEOUT_S)


def _as_numbers(fields: Mapping[str, str]) -> dict[str, str | int | float]:
    return {name: _as_number(value) for name, value in fields.items()}


def _as_number(text: str) -> str | int | float:
    if re.fullmatch(r"\d+", text):
        # Serial numbers and the like keep their zeros.
        return text if len(text) > 1 and text[0] == "0" else int(text)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text
