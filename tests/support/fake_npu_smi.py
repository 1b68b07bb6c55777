"""An npu-smi to put on PATH, which prints the text of a test. Its texts have the form that real ones have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
echo "$*" >> "{folder}/asked"
shift
file="{folder}/$(echo "$*" | tr ' ' '_')"
if [ -f "$file" ]; then cat "$file"; else echo "Error parameter of $*"; exit 1; fi
"""


@dataclass(frozen=True)
class Machine:
    """The answers of npu-smi.

    Attributes:
        folder: to be put on PATH.
        asked: the file in which the calls of npu-smi are listed.
    """

    folder: Path
    asked: Path


def fake_npu_smi(folder: Path, answers: Mapping[str, str]) -> Machine:
    """An executable that prints an answer for the words after `info`, and fails for others."""
    folder.mkdir(parents=True, exist_ok=True)
    for words, text in answers.items():
        (folder / words.replace(" ", "_")).write_text(text)
    script = folder / "npu-smi"
    script.write_text(_SCRIPT.format(folder=folder))
    script.chmod(0o755)
    return Machine(folder, folder / "asked")


def table(*rows: str, physical: bool = False) -> str:
    """The output of `npu-smi info -m`; each row as its cells with commas between them."""
    titles = ["NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if physical else []), "Chip Name"]
    lines = ["".join(f"{cell:<31}" for cell in cells) for cells in (titles, *(row.split(",") for row in rows))]
    return "\n".join(f"        {line}" for line in lines) + "\n"


def fields(text: str) -> str:
    """Lines `name : value`, as npu-smi aligns them, of `name=value` that semicolons separate."""
    pairs = (pair.strip().partition("=") for pair in text.split(";"))
    return "".join(f"        {name:<30} : {value}\n" if name else "\n" for name, _, value in pairs)


_BOARD = (
    "NPU ID={npu}; Product Name=IT22PDDA; Model=NA; Manufacturer=Huawei; Serial Number=033ABC10P80000{npu}1; "
    "Software Version=25.2.1; Firmware Version=7.7.0.6.236; Compatibility=OK; Board ID=0xb7; "
    "PCIe Bus Info=0000:9D:00.0; Chip Count=2"
)
_CHIP = {
    "board": "NPU ID={npu}; NPU Name=9392; Chip ID={chip}; Chip Name=Ascend910; Firmware Version=NA",
    "common": (
        "NPU ID={npu}; Chip ID={chip}; HBM Usage Rate(%)=5; Aicore Usage Rate(%)=0; Aicore Freq(MHZ)=1800; "
        "Aicore curFreq(MHZ)=800; Aicore Count=24; Temperature(C)=36; NPU Real-time Power(W)=178.5"
    ),
    "usages": "HBM Capacity(MB)=65536; HBM Usage Rate(%)=5; Chip ID={chip}",
}
#: Two cards of an A3, with two dies each.
A3 = {
    "-m": table(
        *("0,0,0,0,Ascend910", "0,1,1,1,Ascend910", "0,2,-,-,Mcu"),
        *("1,0,2,2,Ascend910", "1,1,3,3,Ascend910", "1,2,-,-,Mcu"),
        physical=True,
    ),
    **{f"-t board -i {npu}": fields(_BOARD.format(npu=npu)) for npu in range(2)},
    **{
        f"-t {kind} -i {npu} -c {chip}": fields(text.format(npu=npu, chip=chip))
        for npu in range(2)
        for chip in range(2)
        for kind, text in _CHIP.items()
    },
}


def a2(chip: str, megabytes: int = 65536) -> dict[str, str]:
    """One card of an A2, whose driver is older: no physical numbers, and no -c."""
    return {
        "-m": table(f"0,0,0,Ascend {chip}", "0,1,-,Mcu"),
        "-t board -i 0": fields("NPU ID=0; Software Version=24.1.0.3; Firmware Version=7.5.0.5.220"),
        "-t common -i 0": fields(
            "NPU ID=0; Chip Count=1; ; Chip ID=0; Aicore Count=20; Temperature(C)=46; ; Chip Name=mcu; "
            "Temperature(C)=38"
        ),
        "-t usages -i 0": fields(f"NPU ID=0; HBM Capacity(MB)={megabytes}; Chip ID=0"),
    }
