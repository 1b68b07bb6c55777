"""Which GPUs NVLink joins, as NVIDIA's management library tells it. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.job import DeviceSpec
from database.numbers import whole


@dataclass(frozen=True)
class Islands:
    """
    Attributes:
        size: GPUs that are joined to each other, where these are neighbours and as many everywhere; 1: none are.
            None where nobody can tell, or where they are not.
        why: what was found, in words.
    """

    size: int | None
    why: str


def islands(devices: Sequence[DeviceSpec]) -> Islands:
    """Of GPUs, by how their processes are shown them."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return Islands(None, "a guess: nvidia-ml-py, which would tell of NVLink, is not installed")
    try:
        pynvml.nvmlInit()
        try:
            handles = [_handle(pynvml, device) for device in devices]
            return islands_of(len(handles), lambda one, other: _joined(pynvml, handles[one], handles[other]))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Islands(None, f"a guess: NVML does not tell of NVLink ({error})")


def islands_of(count: int, joined: Callable[[int, int], bool]) -> Islands:
    """The islands of GPUs 0 ... count - 1, by whether two of them are joined."""
    if count < 2:
        return Islands(None, "one GPU")
    pairs = {(one, other): joined(one, other) for one in range(count) for other in range(one + 1, count)}
    if not any(pairs.values()):
        return Islands(1, "no NVLink: PCIe")
    if all(pairs.values()):
        return Islands(count, "NVLink between all GPUs")
    size = 1 + sum(are_joined for (one, _), are_joined in pairs.items() if one == 0)
    even = count % size == 0 and all(
        are_joined == (one // size == other // size) for (one, other), are_joined in pairs.items()
    )
    return Islands(size, "islands of NVLink") if even else Islands(None, "a guess: NVLink joins some GPUs, unevenly")


def _handle(library: Any, device: DeviceSpec) -> Any:
    name = device.pinned[1] if device.pinned is not None else str(device.index)
    index = whole(name)
    if index is not None:
        return library.nvmlDeviceGetHandleByIndex(index)
    return library.nvmlDeviceGetHandleByUUID(name)


def _joined(library: Any, one: Any, other: Any) -> bool:
    status = library.nvmlDeviceGetP2PStatus(one, other, library.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == library.NVML_P2P_STATUS_OK)
