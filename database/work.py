"""What a kernel has to do at least, where its row tells: bytes between memory and chip, arithmetic operations.

Both are of the shapes and dtypes of the row, not measured. A kernel that reads a part of a tensor only (Slice, a
gather, a paged cache), that reads one several times by its definition, or whose work depends on values (sequence
lengths, experts) has no figure here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from database.dtypes import known_dtype
from database.siblings import plain_type
from database.slots import Slot

#: The left operand and the right one stand first among the inputs.
PRODUCTS = frozenset(
    {
        *("MatMul", "MatMulV2", "MatMulV3", "MatMulCommon", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"),
        *("TransposeBatchMatMul", "QuantBatchMatmulV3"),
    }
)
#: One operation for each element of the output.
ARITHMETIC = frozenset({"Abs", "Add", "Mul", "Muls", "Neg", "RealDiv", "Sub"})
#: These read every element of their inputs and write every element of their outputs. How many operations they take
#: is up to the implementation.
_STREAMING = frozenset(
    {
        *("ArgMaxV2", "AscendQuantV2", "BroadcastTo", "Cast", "ConcatD", "Cos", "Cumsum", "DynamicQuant"),
        *("AddRmsNorm", "AddRmsNormBias", "AddRmsNormDynamicQuant", "RmsNorm", "LpNormV2", "ReduceSum"),
        *("ArgMaxWithValue", "LayerNormV3", "Pack", "ReduceMean", "ReduceMeanD", "ReduceSumD"),
        *("ClipByValueV2", "Exp", "FastGelu", "Reciprocal", "Rsqrt", "ScaledMaskedSoftmax", "Square", "Swish"),
        *("Equal", "Greater", "GreaterEqual", "Less", "LogicalAnd", "LogicalNot", "LogicalOr", "NotEqual"),
        *("FloorDiv", "FloorMod", "Log", "PadV3", "Pows", "Relu", "Sin", "SwiGlu", "TensorMove", "Tile", "Transpose"),
        *("InterleaveRope", "RotaryPositionEmbedding", "SoftmaxV2", "LogSoftmaxV2"),
    }
)
#: The elements of this one are packed in pairs by some kernels and not by others.
_PACKED = "INT4"


def tensor_bytes(slots: Sequence[Slot]) -> int | None:
    """Of all tensors together; None where a dtype is not known, or its elements have no size of their own."""
    dtypes = [known_dtype(slot.dtype) for slot in slots if not slot.absent]
    if any(dtype is None or dtype.name == _PACKED for dtype in dtypes):
        return None
    shapes = [slot.shape for slot in slots if not slot.absent]
    return sum(math.prod(shape) * dtype.bytes for shape, dtype in zip(shapes, dtypes, strict=True) if dtype)


def moved_bytes(kernel_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int | None:
    """Bytes that must be moved: each input read once, each output written once. None where the row does not tell."""
    if plain_type(kernel_type) not in PRODUCTS | ARITHMETIC | _STREAMING or not inputs or not outputs:
        return None
    return tensor_bytes((*inputs, *outputs))


def operations(kernel_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int | None:
    """2 m n k of a matrix product (each of a batch), one for each output element of arithmetic; else None."""
    kernel_type = plain_type(kernel_type)
    if kernel_type in ARITHMETIC and len(outputs) == 1:
        return math.prod(outputs[0].shape)
    if kernel_type in PRODUCTS and len(inputs) >= 2 and len(outputs) == 1:
        return _of_product(inputs[0], inputs[1], outputs[0])
    return None


def _of_product(left: Slot, right: Slot, product: Slot) -> int | None:
    """Whatever is transposed: b m k, b k n and b m n elements are b k^2 = (b m k)(b k n) / (b m n)."""
    batch = math.prod(left.shape[:-2]) if left.format == "ND" and len(left.shape) > 2 else 1
    elements = math.prod(product.shape)
    both = math.prod(left.shape) * math.prod(right.shape)
    if not elements or both % (elements * batch):
        return None
    k = math.isqrt(both // (elements * batch))
    # Where a stored tensor is padded, or the batch is broadcast, the sizes do not fit together.
    fits = k * k * elements * batch == both and all(k in slot.shape or slot.format != "ND" for slot in (left, right))
    return 2 * elements * k if fits else None
