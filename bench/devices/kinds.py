"""The kinds of devices that OpAtlas knows by name. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """
    Attributes:
        opener: "module:class" of what opens a device of it, as in a spec.
        backend: what carries its tensors from rank to rank, as torch.distributed calls it.
        ranks_share: the ranks of a node share its one device, instead of having one each.
    """

    opener: str
    backend: str
    ranks_share: bool = False


#: By name, which is what torch calls that type of device, too.
KINDS: Mapping[str, Kind] = {
    "npu": Kind("bench.devices.npu:NpuDevice", backend="hccl"),
    "cuda": Kind("bench.devices.cuda:CudaDevice", backend="nccl"),
    "cpu": Kind("bench.devices.cpu:CpuDevice", backend="gloo", ranks_share=True),
}


def ranks_share(kind: str) -> bool:
    """Whether the ranks of a node share its one device; those of a kind that is not known have one each."""
    return kind in KINDS and KINDS[kind].ranks_share
