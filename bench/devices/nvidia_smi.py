"""Which GPUs nvidia-smi shows. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.devices.tools import printed
from database.layout import slug

#: Without persistence mode it loads the driver first, which takes seconds a GPU.
_TIMEOUT_S = 60
_GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-fA-F-]+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """
    Attributes:
        index: in the order of the PCI bus.
        name: slug of what it calls itself: "NVIDIA_H200".
        uuid: "GPU-..."; says which one it is in CUDA_VISIBLE_DEVICES, whatever the order of the others.
    """

    index: int
    name: str
    uuid: str


def gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine or container; none where there is no nvidia-smi, or no answer."""
    return parse_gpus(printed("nvidia-smi", "-L", timeout_s=_TIMEOUT_S))


def driver_version() -> str:
    """The driver's version, such as "550.54.15"; "" where there is no nvidia-smi, or no answer."""
    told = printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", timeout_s=_TIMEOUT_S)
    return told.partition("\n")[0].strip()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """What `nvidia-smi -L` prints: `GPU 0: NVIDIA H200 (UUID: GPU-...)`, and lines of MIG parts, which are left out."""
    return tuple(Gpu(int(index), slug(name), uuid) for index, name, uuid in _GPU.findall(text))
