"""The sizes of a row by the names of the field, its bytes and operations, and the peaks of devices by data sheets.

No peaks of CPUs are known: a name such as "Intel Xeon Processor" states neither cores nor memory channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from opatlas.errors import CellError
from opatlas.row.attention import attention_sizes
from opatlas.row.columns import GROUPED, MESSAGE
from opatlas.row.slots import FOUR_BITS, FP8, Slot, base_type, known_dtype, row_slots
from opatlas.text import parse_whole


@dataclass(frozen=True)
class Link:
    """What joins a device with the others of its group.

    Attributes:
        gbps: the bandwidth in one direction, in 10^9 bytes/s.
        latency_us, launch_us: of a step, and of a collective, in microseconds.
        adds_up: whether its switches add up what they carry (NVLink SHARP).
    """

    gbps: float
    latency_us: float
    launch_us: float
    adds_up: bool = False


@dataclass(frozen=True)
class Peak:
    """The peak rates of a device.

    Attributes:
        bandwidth_gbps: the memory bandwidth in 10^9 bytes/s; None if unknown.
        tera_ops: 10^12 operations/s of dense matrix products, by the dtype of the operands.
        links: by topology tier; empty if unknown.
    """

    bandwidth_gbps: float | None = None
    tera_ops: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[int, Link] = field(default_factory=dict)


def _ascend(float16: float, bfloat16: float, float32: float, bandwidth_gbps: float) -> Peak:
    return Peak(bandwidth_gbps, {"FLOAT16": float16, "BF16": bfloat16, "FLOAT": float32, "INT8": 2 * float16})


#: FLOAT without TF32, which OpAtlas turns off. Sparse rates in the data sheets are halved.
_HOPPER = {"FLOAT16": 989.5, "BF16": 989.5, "INT8": 1979.0, "FLOAT": 67.0} | dict.fromkeys(sorted(FP8), 1979.0)
_AMPERE = {"FLOAT16": 312.0, "BF16": 312.0, "INT8": 624.0, "FLOAT": 19.5}
_A2_376T, _A2_313T = _ascend(376.0, 353.9, 99.5, 1600.0), _ascend(313.0, 294.9, 83.0, 1600.0)
_280T_64G, _280T_32G = (_ascend(280.0, 245.8, 75.0, bandwidth) for bandwidth in (1600.0, 800.0))
#: Within a host: bandwidths of the data sheets, which add up both directions; times of NCCL, src/graph/tuning.cc (Ring,
#: LL, NVLink).
_NVLINK_4, _NVLINK_3 = {1: Link(450.0, 0.6, 6.6, adds_up=True)}, {1: Link(300.0, 0.6, 6.6)}
#: Ascend/msmodeling, tensor_cast/device.py: A2_INTERCONNECT, A3_INTERCONNECT, comm_op_cost_s.
_A2_LINKS = {0: Link(25.0, 1.5, 10.0), 1: Link(196.0, 0.5, 10.0)}
_A3_LINKS = {0: Link(196.0, 5.5, 10.0), 1: Link(196.0, 0.5, 10.0), 2: Link(224.0, 0.2, 10.0)}

#: Peaks by the folder name of the device, or by the name of the chip that captures have.
PEAKS: Mapping[str, Peak] = {
    # NVIDIA H200, H100 (SXM) and A100 Tensor Core GPU data sheets.
    "NVIDIA_H200": Peak(4800.0, _HOPPER, _NVLINK_4),
    "NVIDIA_H100_80GB_HBM3": Peak(3350.0, _HOPPER, _NVLINK_4),
    "NVIDIA_A100-SXM4-80GB": Peak(2039.0, _AMPERE, _NVLINK_3),
    "NVIDIA_A100-SXM4-40GB": Peak(1555.0, _AMPERE, _NVLINK_3),
    # Ascend/msmodeling, tensor_cast/device.py: mma_ops and memory_bandwidth_bytes_ps, its 1.6 T as 10^12.
    "ATLAS_800_A2_376T_64G": replace(_A2_376T, links=_A2_LINKS),
    "ATLAS_800_A2_313T_64G": replace(_A2_313T, links=_A2_LINKS),
    "ATLAS_800_A2_280T_64G": replace(_280T_64G, links=_A2_LINKS),
    "ATLAS_800_A2_280T_64G_PCIE": _280T_64G,
    "ATLAS_800_A2_280T_32G_PCIE": _280T_32G,
    "ATLAS_800_A3_752T_128G_DIE": replace(_A2_376T, links=_A3_LINKS),
    "ATLAS_800_A3_560T_128G_DIE": replace(_280T_64G, links=_A3_LINKS),
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
        *("AddRmsNorm", "AddRmsNormBias", "AddRmsNormDynamicQuant", "ArgMaxV2", "ArgMaxWithValue", "AscendQuantV2"),
        *("BroadcastTo", "Cast", "ClipByValueV2", "ClippedSwiglu", "ConcatD", "ConcatV2D", "Cos", "Cumsum"),
        *("DepthwiseConv2D", "DynamicBlockQuant", "DynamicQuant", "Equal", "Exp", "FastGelu", "FloorDiv"),
        *("FloorMod", "GeGluV2", "Gelu", "GeluV2", "Greater", "GreaterEqual", "HcPost", "HcPre"),
        *("InplaceAddRmsNorm", "InterleaveRope", "LayerNormV3", "Less", "LessEqual", "Log", "LogSoftmaxV2"),
        *("LogicalAnd", "LogicalNot", "LogicalOr", "LpNormV2", "Maximum", "Minimum", "NotEqual", "Pack", "Pad"),
        *("PadV3", "Pows", "Reciprocal", "ReduceAll", "ReduceAny", "ReduceMean", "ReduceMeanD", "ReduceSum"),
        *("ReduceSumD", "Relu", "RmsNorm", "RotaryPositionEmbedding", "Rsqrt", "ScaledMaskedSoftmax", "Sigmoid"),
        *("Sin", "SoftmaxV2", "Split", "SplitV", "SplitVD", "Sqrt", "Square", "SwiGlu", "Swish", "Tanh"),
        *("TensorMove", "Tile", "Transpose"),
    }
)


def tensor_bytes(slots: Sequence[Slot]) -> int | None:
    """Returns the bytes of all tensors; None if a dtype is unknown, or its elements have no fixed size."""
    dtypes = [known_dtype(slot.dtype) for slot in slots if not slot.absent]
    # Some kernels pack two of these elements into a byte, others do not.
    if any(dtype is None or dtype.name in FOUR_BITS for dtype in dtypes):
        return None
    shapes = [slot.shape for slot in slots if not slot.absent]
    return sum(math.prod(shape) * dtype.bytes for shape, dtype in zip(shapes, dtypes, strict=True) if dtype)


def moves_all(kernel_type: str) -> bool:
    """Returns whether a kernel reads and writes each element once; of a cache or a table others touch a part."""
    return base_type(kernel_type) in PRODUCTS | ARITHMETIC | _STREAMING


def moved_bytes(kernel_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int | None:
    """Returns the bytes of all inputs and outputs; None if the kernel may not read and write each element once."""
    if not moves_all(kernel_type) or not inputs or not outputs:
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
        share: of the peak that bounds the row; None if the peaks of the device are unknown.
        bound_by_arithmetic: whether the arithmetic is at least as near to its peak as the memory.
    """

    gbps: float
    tera_ops: float | None
    share: float | None
    bound_by_arithmetic: bool


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
    """Returns the rates of a duration in microseconds; a warm row (`bound_us`) has no share of the memory."""
    gbps = work.moved_bytes / duration_us / 1e3
    tera_ops = work.operations / duration_us / 1e6 if work.operations else None
    of_dtype = peak.tera_ops.get(work.dtype)
    of_memory = gbps / peak.bandwidth_gbps if peak.bandwidth_gbps and cold else None
    of_arithmetic = tera_ops / of_dtype if tera_ops and of_dtype else None
    share = max((each for each in (of_memory, of_arithmetic) if each is not None), default=None)
    return AchievedRates(gbps, tera_ops, share, of_arithmetic is not None and of_arithmetic == share)


class ProductSizes(NamedTuple):
    """The sizes of a matrix product: `batch` products of (m, k) and (k, n)."""

    batch: int
    m: int
    n: int
    k: int


def product_sizes(kernel_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> ProductSizes | None:
    """Returns the sizes of a matrix product, whatever is transposed; None where the row does not have them."""
    if base_type(kernel_type) not in PRODUCTS:
        return None
    done = operations(kernel_type, inputs, outputs)
    if done is None or len(outputs[0].shape) < 2 or outputs[0].format not in ("ND", ""):
        return None
    *batch, m, n = outputs[0].shape
    return ProductSizes(math.prod(batch), m, n, done // (2 * math.prod(outputs[0].shape)))


class GroupedSizes(NamedTuple):
    """The sizes of products of experts: m rows in all, each multiplied by the (k, n) of one of the groups."""

    groups: int
    m: int
    n: int
    k: int


def grouped_sizes(kernel_type: str, inputs: Sequence[Slot]) -> GroupedSizes | None:
    """Returns the sizes of products of experts; None where the row does not have them.

    The first input is (m, k); the second one has the weights of all groups, whatever their format.
    """
    if kernel_type not in GROUPED or len(inputs) < 2 or len(inputs[0].shape) != 2 or len(inputs[1].shape) < 3:
        return None
    m, k = inputs[0].shape
    groups, *others = inputs[1].shape
    n = math.prod(others) // max(k, 1)
    return GroupedSizes(groups, m, n, k) if min(groups, m, n, k) else None


def row_sizes(kernel_type: str, cells: Mapping[str, str]) -> dict[str, object]:
    """Returns the sizes, dtype, format and counted operations of a row; none if its cells cannot be read."""
    if set(MESSAGE[:2]) <= cells.keys():
        return {name.lower(): parse_whole(cells.get(name, "")) or cells.get(name, "") for name in MESSAGE}
    try:
        inputs, outputs = row_slots(kernel_type, cells)
    except CellError:
        return {}
    found: dict[str, object] = {}
    product = product_sizes(kernel_type, inputs, outputs)
    grouped = grouped_sizes(kernel_type, inputs)
    attention = attention_sizes(kernel_type, inputs, cells)
    if product is not None:
        found = {**product._asdict(), "operations": 2 * product.batch * product.m * product.n * product.k}
    elif grouped is not None:
        found = {**grouped._asdict(), "operations": 2 * grouped.m * grouped.n * grouped.k}
    elif attention is not None:
        found = {**attention._asdict(), "operations": attention.operations}
        del found["lengths"]
    first = next((slot for slot in inputs if not slot.absent), None)
    if first is not None:
        found |= {"dtype": first.dtype, "format": first.format}
    moved = tensor_bytes((*inputs, *outputs))
    if attention is not None and first is not None:
        dtype = known_dtype(first.dtype)
        moved = attention.moved_elements * dtype.bytes if dtype is not None and dtype.bytes else moved
    return {**found, "bytes": moved}
