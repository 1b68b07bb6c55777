"""The peaks of devices, by their data sheets, and the bytes and operations of a row.

No peaks of CPUs are known: a name such as "Intel Xeon Processor" states neither cores nor memory channels, and a short
measurement depends on other processes (12 GB/s instead of 45 with two busy processes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opatlas.errors import CellError
from opatlas.row.siblings import base_type
from opatlas.row.slots import FP8, Slot, known_dtype, row_slots


@dataclass(frozen=True)
class Peak:
    """The peak rates of a device.

    Attributes:
        bandwidth_gbps: the memory bandwidth in 10^9 bytes/s; None if unknown.
        tera_ops: 10^12 operations/s of dense matrix products, by the dtype of the operands.
    """

    bandwidth_gbps: float | None = None
    tera_ops: Mapping[str, float] = field(default_factory=dict)


def _ascend(float16: float, bfloat16: float, float32: float, bandwidth_gbps: float) -> Peak:
    return Peak(bandwidth_gbps, {"FLOAT16": float16, "BF16": bfloat16, "FLOAT": float32, "INT8": 2 * float16})


#: FLOAT without TF32, which OpAtlas turns off. Sparse rates in the data sheets are halved.
_HOPPER = {"FLOAT16": 989.5, "BF16": 989.5, "INT8": 1979.0, "FLOAT": 67.0} | dict.fromkeys(sorted(FP8), 1979.0)
_AMPERE = {"FLOAT16": 312.0, "BF16": 312.0, "INT8": 624.0, "FLOAT": 19.5}
_A2_376T, _A2_313T = _ascend(376.0, 353.9, 99.5, 1600.0), _ascend(313.0, 294.9, 83.0, 1600.0)
_280T_64G, _280T_32G = (_ascend(280.0, 245.8, 75.0, bandwidth) for bandwidth in (1600.0, 800.0))

#: Peaks by the folder name of the device, or by the name of the chip that captures have.
PEAKS: Mapping[str, Peak] = {
    # NVIDIA H200, H100 (SXM) and A100 Tensor Core GPU data sheets.
    "NVIDIA_H200": Peak(4800.0, _HOPPER),
    "NVIDIA_H100_80GB_HBM3": Peak(3350.0, _HOPPER),
    "NVIDIA_A100-SXM4-80GB": Peak(2039.0, _AMPERE),
    "NVIDIA_A100-SXM4-40GB": Peak(1555.0, _AMPERE),
    # Ascend/msmodeling, tensor_cast/device.py: mma_ops and memory_bandwidth_bytes_ps, its 1.6 T as 10^12.
    "ATLAS_800_A2_376T_64G": _A2_376T,
    "ATLAS_800_A2_313T_64G": _A2_313T,
    "ATLAS_800_A2_280T_64G": _280T_64G,
    "ATLAS_800_A2_280T_64G_PCIE": _280T_64G,
    "ATLAS_800_A2_280T_32G_PCIE": _280T_32G,
    "ATLAS_800_A3_752T_128G_DIE": _A2_376T,
    "ATLAS_800_A3_560T_128G_DIE": _280T_64G,
    # Chips have the peaks of the product with as many cores at the same clock, by CANN's platform_config/{chip}.ini:
    # cube_core_cnt x cube_freq x 8192 operations is the rate of BF16 above (910B2 24 x 1.8 GHz, 910B3 20 x 1.8 GHz,
    # 910B4 20 x 1.5 GHz). msopprof's FREQ_MAP has 1.85 GHz for 910B1, and half of the bandwidth for 910B4.
    "Ascend910B1": _ascend(376.0, 363.7, 99.5, 1600.0),
    "Ascend910B2": _A2_376T,
    "Ascend910B2C": _A2_376T,
    "Ascend910B3": _A2_313T,
    "Ascend910B4": _280T_32G,
    "Ascend910B4-1": _280T_32G,
    # A die of an A3: 24 cores at 1.8 GHz (AKG, docs of hardware, 910_9382), 20 cores for 910_9362.
    "Ascend910C": _A2_376T,
    **dict.fromkeys(("Ascend910_9381", "Ascend910_9382", "Ascend910_9391", "Ascend910_9392"), _A2_376T),
    "Ascend910_9362": _280T_64G,
    # Huawei, Atlas 300I Pro inference card, data sheet: one 310P3. It has no BF16.
    "Ascend310P3": Peak(204.8, {"FLOAT16": 70.0, "INT8": 140.0}),
}
_BY_NAME = {name.casefold(): peak for name, peak in PEAKS.items()}


def device_peak(device_name: str) -> Peak:
    """Returns the peaks of a device by its folder name, in any case; an empty Peak if they are unknown."""
    return _BY_NAME.get(device_name.casefold(), Peak())


#: Matrix products. Their first two inputs are the left and the right operand.
PRODUCTS = frozenset(
    {
        *("MatMul", "MatMulV2", "MatMulV3", "MatMulCommon", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"),
        *("TransposeBatchMatMul", "QuantBatchMatmulV3"),
    }
)
#: Kernels with one operation for each element of the output.
ARITHMETIC = frozenset({"Abs", "Add", "Mul", "Muls", "Neg", "RealDiv", "Sub"})
#: Kernels that read each element of their inputs and write each element of their outputs. The number of operations
#: depends on the implementation.
_STREAMING = frozenset(
    {
        *("ArgMaxV2", "AscendQuantV2", "BroadcastTo", "Cast", "ConcatD", "Cos", "Cumsum", "DynamicQuant"),
        "DynamicBlockQuant",
        *("AddRmsNorm", "AddRmsNormBias", "AddRmsNormDynamicQuant", "RmsNorm", "LpNormV2", "ReduceSum"),
        *("ArgMaxWithValue", "LayerNormV3", "Pack", "ReduceMean", "ReduceMeanD", "ReduceSumD"),
        *("ClipByValueV2", "Exp", "FastGelu", "Reciprocal", "Rsqrt", "ScaledMaskedSoftmax", "Square", "Swish"),
        *("Equal", "Greater", "GreaterEqual", "Less", "LogicalAnd", "LogicalNot", "LogicalOr", "NotEqual"),
        *("FloorDiv", "FloorMod", "Log", "PadV3", "Pows", "Relu", "Sin", "SwiGlu", "TensorMove", "Tile", "Transpose"),
        *("InterleaveRope", "RotaryPositionEmbedding", "SoftmaxV2", "LogSoftmaxV2"),
    }
)
#: Some kernels pack two elements of this dtype into a byte, others do not.
_PACKED = "INT4"


def tensor_bytes(slots: Sequence[Slot]) -> int | None:
    """Returns the bytes of all tensors; None if a dtype is unknown, or its elements have no fixed size."""
    dtypes = [known_dtype(slot.dtype) for slot in slots if not slot.absent]
    if any(dtype is None or dtype.name == _PACKED for dtype in dtypes):
        return None
    shapes = [slot.shape for slot in slots if not slot.absent]
    return sum(math.prod(shape) * dtype.bytes for shape, dtype in zip(shapes, dtypes, strict=True) if dtype)


def row_bytes(kernel_type: str, cells: Mapping[str, str]) -> int | None:
    """Returns the bytes of all tensors of a row; None if its cells do not say."""
    try:
        inputs, outputs = row_slots(kernel_type, cells)
    except CellError:
        return None
    return tensor_bytes((*inputs, *outputs))


def moved_bytes(kernel_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int | None:
    """Returns the bytes of all inputs and outputs; None if the kernel may not read and write each element once."""
    if base_type(kernel_type) not in PRODUCTS | ARITHMETIC | _STREAMING or not inputs or not outputs:
        return None
    return tensor_bytes((*inputs, *outputs))


def operations(kernel_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int | None:
    """Returns the operations: 2 m n k of each matrix product, 1 for each output element of arithmetic; else None."""
    kernel_type = base_type(kernel_type)
    if kernel_type in ARITHMETIC and len(outputs) == 1:
        return math.prod(outputs[0].shape)
    if kernel_type in PRODUCTS and len(inputs) >= 2 and len(outputs) == 1:
        return _product_operations(inputs[0], inputs[1], outputs[0])
    return None


def _product_operations(left: Slot, right: Slot, product: Slot) -> int | None:
    """Derives k, whatever is transposed, from the numbers of elements: b k^2 = (b m k)(b k n) / (b m n)."""
    batch = math.prod(left.shape[:-2]) if left.format == "ND" and len(left.shape) > 2 else 1
    elements = math.prod(product.shape)
    both = math.prod(left.shape) * math.prod(right.shape)
    if not elements or both % (elements * batch):
        return None
    k = math.isqrt(both // (elements * batch))
    # The sizes do not fit if a stored tensor is padded, or the batch is broadcast.
    fits = k * k * elements * batch == both and all(k in slot.shape or slot.format != "ND" for slot in (left, right))
    return 2 * elements * k if fits else None


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a row.

    Attributes:
        read_bytes, moved_bytes: the bytes of the inputs, and of inputs and outputs; each tensor counts once.
        operations: 2 m n k for a matrix product; None for other kernels.
        dtype: the dtype of the first input, which selects the arithmetic peak.
    """

    read_bytes: int
    moved_bytes: int
    operations: int | None
    dtype: str


@dataclass(frozen=True, slots=True)
class AchievedRates:
    """The rates of a row.

    Attributes:
        gbps: 10^9 bytes/s moved.
        tera_ops: 10^12 operations/s; None for kernels other than matrix products.
        bandwidth_share, arithmetic_share: shares of the peaks of the device; None if the peak is unknown.
    """

    gbps: float
    tera_ops: float | None
    bandwidth_share: float | None
    arithmetic_share: float | None

    @property
    def share(self) -> float | None:
        """The larger share, whose peak bounds the row; None if both are unknown."""
        return max((each for each in (self.bandwidth_share, self.arithmetic_share) if each is not None), default=None)

    @property
    def bound_by_arithmetic(self) -> bool:
        """Whether the arithmetic is at least as near to its peak as the memory."""
        return self.arithmetic_share is not None and self.arithmetic_share == self.share


def row_work(kernel_type: str, cells: Mapping[str, str]) -> Work | None:
    """Returns the work of a row; None if it is unknown for the kernel type or the cells."""
    try:
        inputs, outputs = row_slots(kernel_type, cells)
    except CellError:
        return None
    moved, read = moved_bytes(kernel_type, inputs, outputs), tensor_bytes(inputs)
    if not moved or not read:
        return None
    counted = operations(kernel_type, inputs, outputs) if base_type(kernel_type) in PRODUCTS else None
    return Work(read, moved, counted, inputs[0].dtype)


def bound_us(work: Work, peak: Peak, *, cold: bool) -> float | None:
    """Returns the least time in microseconds that the peaks allow; None if no peak is known.

    Args:
        cold: whether the inputs are in memory; a warm cache may be faster than memory.
    """
    bounds = []
    if cold and peak.bandwidth_gbps:
        # Outputs may still be in the cache when the kernel ends.
        bounds.append(work.read_bytes / peak.bandwidth_gbps / 1e3)
    if work.operations and work.dtype in peak.tera_ops:
        bounds.append(work.operations / peak.tera_ops[work.dtype] / 1e6)
    return max(bounds, default=None)


def achieved_rates(work: Work, peak: Peak, duration_us: float, *, cold: bool = True) -> AchievedRates:
    """Returns the rates of a duration in microseconds, above zero, and their shares of the peaks.

    Args:
        cold: as in `bound_us`; a warm row has no share of the memory bandwidth.
    """
    gbps = work.moved_bytes / duration_us / 1e3
    tera_ops = work.operations / duration_us / 1e6 if work.operations else None
    of_dtype = peak.tera_ops.get(work.dtype)
    return AchievedRates(
        gbps=gbps,
        tera_ops=tera_ops,
        bandwidth_share=gbps / peak.bandwidth_gbps if peak.bandwidth_gbps and cold else None,
        arithmetic_share=tera_ops / of_dtype if tera_ops and of_dtype else None,
    )
