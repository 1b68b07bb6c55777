"""Replays of matrix products."""

from __future__ import annotations

from itertools import product

from opatlas.row.columns import INPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs.shape_rules import factors
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("MatMulV2", "MatMulV3", "MatMulCommon", "MatMul", npu="torch.nn.functional.linear")
def test_matmul(row, replay):
    row.expect_inputs(2, 3)
    a, b = _factors(row, row.matrices(0, rank=2), row.matrices(1, rank=2), transposed_b_first=True, rank=2)
    # As large as a sum of K products, so that a missing bias shows.
    reach = max(a.shape[-1], 1) ** 0.5
    # The kernel takes a FLOAT bias with half-precision matrices; the call takes one dtype and casts the bias.
    bias = []
    if len(row.input_slots) == 3:
        row.expect_shape(2, b.shape[-1:], meaning="the bias")
        bias = [row.tensor(2, -reach, reach).to(a.dtype)]
    replay(impl.linear, a, b.mT, *bias, output_slots=_output_slots(row, a), expected=formulas.linear)


@replays("BatchMatMulV2", "BatchMatMulV3", "BatchMatMul", "BatchMatMulNd", npu="torch.matmul")
def test_batch_matmul(row, replay):
    row.expect_inputs(2)
    a, b = _factors(row, row.matrices(0), row.matrices(1), transposed_b_first=False)
    replay(impl.batch_matmul, a, b, output_slots=_output_slots(row, a), expected=formulas.batch_matmul)


@replays("TransposeBatchMatMul", npu="torch_npu.npu_transpose_batchmatmul")
def test_transpose_batch_matmul(row, replay):
    """Reads x1 (B, M, K) or (M, B, K), and x2 (B, K, N) or (B, N, K), for a result (M, B, N).

    A result (S, M, B N / S) is split into S parts.
    """
    row.expect_inputs(2)
    x1, x2, y = row.shape(0), row.shape(1), row.output_shape()
    row.expect(len(x1) == len(x2) == len(y) == 3, INPUT_SHAPES, "both operands and the result must have three axes")
    for perm_x1, perm_x2 in product(([0, 1, 2], [1, 0, 2]), ([0, 1, 2], [0, 2, 1])):
        (batch, m, k), (b, length, n) = ([x[axis] for axis in perm] for x, perm in ((x1, perm_x1), (x2, perm_x2)))
        if (batch, k) != (b, length):
            continue
        if y != (m, batch, n) and (y[1] != m or y[0] * y[2] != batch * n):
            continue
        row.expect(not k % 128 and not n % 128, INPUT_SHAPES, f"K ({k}) and N ({n}) must be multiples of 128")
        split = 1 if y == (m, batch, n) else y[0]
        replay(
            impl.transpose_batch_matmul,
            row.tensor(0),
            row.tensor(1),
            perm_x1=perm_x1,
            perm_x2=perm_x2,
            perm_y=[1, 0, 2],
            batch_split_factor=split,
            expected=formulas.transpose_batch_matmul,
        )
        return
    raise row.refuse(
        INPUT_SHAPES,
        f"no batch of products, with the batch first or in the middle, has the shape {y}",
        "correct one of the three shapes",
    )


def _factors(row, a, b, *, transposed_b_first, rank=None):
    if not a.is_floating_point():
        raise Unsupported(f"torch's product of integers does not widen them, as {row.kernel_type} does")
    return factors(row, a, b, transposed_b_first=transposed_b_first, rank=rank)


def _output_slots(row, a):
    """Returns output slots; a product in FRACTAL_NZ is compared as matrices, whose shape `factors` has checked."""
    if len(row.output_shape()) <= a.dim():
        return None
    if row.output_dtype() != a.dtype:
        raise Unsupported(f"a product in FRACTAL_NZ is replayed in the dtype of its factors, {a.dtype}, without a Cast")
    return [None]
