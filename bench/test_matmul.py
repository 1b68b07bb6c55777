"""Replays of matrix products."""

from __future__ import annotations

from bench import expected, impl, resolve
from bench.errors import Unsupported
from bench.registry import replays
from database.schema import INPUT_SHAPES


@replays("MatMulV2", "MatMulV3", "MatMulCommon", npu="torch.nn.functional.linear")
def test_matmul(row, replay):
    row.expect_inputs(2, 3)
    a, b = _factors(row, row.matrices(0, rank=2), row.matrices(1, rank=2), transposed_b_first=True)
    # Beside half-precision matrices the kernel takes a FLOAT bias; the call takes one dtype, and casts it.
    bias = [row.tensor(2).to(a.dtype)] if len(row.input_slots) == 3 else []
    if bias and bias[0].shape != b.shape[-1:]:
        raise row.refuse(INPUT_SHAPES, f"the bias (slot 2) must have the shape {b.shape[-1]}", "correct its shape")
    replay(impl.matmul, a, b.mT, *bias, expected=expected.matmul)


@replays("BatchMatMulV2", npu="torch.matmul")
def test_batch_matmul(row, replay):
    row.expect_inputs(2)
    a, b = _factors(row, row.matrices(0), row.matrices(1), transposed_b_first=False)
    replay(impl.batch_matmul, a, b, expected=expected.batch_matmul)


def _factors(row, a, b, *, transposed_b_first):
    """(..., M, K) and (..., K, N), views of what is stored; the output shape decides which are transposed."""
    if not a.is_floating_point():
        raise Unsupported(f"torch's product of integers does not widen them, as {row.kernel_type} does")
    batch, product = row.output_shape()[:-2], row.output_shape()[-2:]
    fitting = resolve.matrix_product(a.shape[-2:], b.shape[-2:], product, transposed_b_first=transposed_b_first)
    if fitting is None or resolve.broadcast([a.shape[:-2], b.shape[:-2]]) != batch:
        raise row.refuse(
            INPUT_SHAPES,
            f"{tuple(a.shape)} and {tuple(b.shape)}, as they are or transposed, have no product of the shape "
            f"{row.output_shape()}",
            "correct one of the three shapes",
        )
    a_is_transposed, b_is_transposed = fitting
    return a.mT if a_is_transposed else a, b.mT if b_is_transposed else b
