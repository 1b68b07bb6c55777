"""What devices can do at most, by their makers: the roofs over what was measured.

A CPU has none here. A name such as "Intel Xeon Processor" tells neither cores nor memory channels, and what a short
trial reaches depends on what else runs: beside two busy processes it read 12 GB/s instead of 45.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peak:
    """The most that a device can do.

    Attributes:
        bandwidth_gbps: of the memory, in 10^9 bytes/s; None: not known.
        tera_ops: 10^12 operations/s of matrix products, by the dtype of their operands. Dense.
    """

    bandwidth_gbps: float | None = None
    tera_ops: Mapping[str, float] = field(default_factory=dict)


def _ascend(float16: float, bfloat16: float, float32: float, bandwidth_gbps: float) -> Peak:
    return Peak(bandwidth_gbps, {"FLOAT16": float16, "BF16": bfloat16, "FLOAT": float32, "INT8": 2 * float16})


#: FLOAT without TF32, which OpAtlas turns off. The sparse figures of the data sheets are halved.
_HOPPER = {"FLOAT16": 989.5, "BF16": 989.5, "INT8": 1979.0, "FLOAT": 67.0}
_AMPERE = {"FLOAT16": 312.0, "BF16": 312.0, "INT8": 624.0, "FLOAT": 19.5}

#: By the device's name in database/data.
PEAKS: Mapping[str, Peak] = {
    # NVIDIA H200, H100 (SXM) and A100 Tensor Core GPU data sheets.
    "NVIDIA_H200": Peak(4800.0, _HOPPER),
    "NVIDIA_H100_80GB_HBM3": Peak(3350.0, _HOPPER),
    "NVIDIA_A100-SXM4-80GB": Peak(2039.0, _AMPERE),
    "NVIDIA_A100-SXM4-40GB": Peak(1555.0, _AMPERE),
    # Ascend/msmodeling, tensor_cast/device.py: mma_ops and memory_bandwidth_bytes_ps, its 1.6 T as 10^12.
    "ATLAS_800_A2_376T_64G": _ascend(376.0, 353.9, 99.5, 1600.0),
    "ATLAS_800_A2_313T_64G": _ascend(313.0, 294.9, 83.0, 1600.0),
    "ATLAS_800_A2_280T_64G": _ascend(280.0, 245.8, 75.0, 1600.0),
    "ATLAS_800_A2_280T_64G_PCIE": _ascend(280.0, 245.8, 75.0, 1600.0),
    "ATLAS_800_A2_280T_32G_PCIE": _ascend(280.0, 245.8, 75.0, 800.0),
    "ATLAS_800_A3_752T_128G_DIE": _ascend(376.0, 353.9, 99.5, 1600.0),
    "ATLAS_800_A3_560T_128G_DIE": _ascend(280.0, 245.8, 75.0, 1600.0),
}


def peak_of(device_name: str) -> Peak:
    """Returns the peaks of a device by its name in database/data; empty for one whose maker's figures are not known."""
    return PEAKS.get(device_name, Peak())
