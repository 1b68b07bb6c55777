"""The slots of a kernel's call, from the sizes that a model gives it."""

from __future__ import annotations

from shapes.models import Linear
from shapes.rows import TheoryRow, tensor


def matmul(kernel_type: str, tokens: int, linear: Linear, dtype: str) -> TheoryRow:
    """(M, K) with a weight stored as (N, K), to (M, N)."""
    return TheoryRow(
        kernel_type,
        (tensor(dtype, tokens, linear.k), tensor(dtype, linear.n, linear.k)),
        (tensor(dtype, tokens, linear.n),),
    )


def elementwise(kernel_type: str, shape: tuple[int, ...], other: tuple[int, ...], dtype: str) -> TheoryRow:
    """Two tensors to one of `shape`, to which `other` broadcasts."""
    return TheoryRow(kernel_type, (tensor(dtype, *shape), tensor(dtype, *other)), (tensor(dtype, *shape),))


def rms_norm(shape: tuple[int, ...], dtype: str) -> TheoryRow:
    """x and gamma to y and the reciprocal root mean square, which is float32 whatever x is."""
    return TheoryRow(
        "RmsNorm",
        (tensor(dtype, *shape), tensor(dtype, shape[-1])),
        (tensor(dtype, *shape), tensor("FLOAT", *shape[:-1], 1)),
    )


def swiglu(tokens: int, width: int, dtype: str) -> TheoryRow:
    """(tokens, 2 * width), gate and up side by side, to (tokens, width)."""
    return TheoryRow("SwiGlu", (tensor(dtype, tokens, 2 * width),), (tensor(dtype, tokens, width),))


def softmax(shape: tuple[int, ...], dtype: str) -> TheoryRow:
    """Over the last dimension."""
    return TheoryRow("SoftmaxV2", (tensor(dtype, *shape),), (tensor(dtype, *shape),))


def gather(rows: int, width: int, indices: int, dtype: str) -> TheoryRow:
    """A table (rows, width), indices, and the axis (one number), to (indices, width)."""
    return TheoryRow(
        "GatherV2",
        (tensor(dtype, rows, width), tensor("INT64", indices), tensor("INT64", 1)),
        (tensor(dtype, indices, width),),
    )
