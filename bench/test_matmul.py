"""Replays of matrix products, of quantization and of products of quantized matrices."""

from __future__ import annotations

from itertools import product

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_DTYPES
from opatlas.row.errors import Unsupported
from opatlas.row.slots import FP8
from opatlas.run.inputs.shape_rules import (
    LARGEST,
    NPU_E8M0,
    NPU_FP4,
    SCALE_BLOCK,
    are_by_columns,
    bias,
    blocks,
    expect_real_product,
    factors,
    is_fp8,
    scale_of_blocks,
    scale_of_groups,
    scale_range,
)
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: Numbers along K that share a scale, by the dtype of the scales: MX and NVFP4.
_SCALES_OF_GROUPS = {"FLOAT8_E8M0": 32, "FLOAT8_E4M3FN": 16}


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


@replays("batch_matmul_transpose_0", "batch_matmul_transpose", npu="torch.ops._C_ascend.batch_matmul_transpose")
def test_batch_matmul_transpose(row, replay, custom_opp):
    """Reads the slots x (tokens, heads, K), weight (heads, K, N), perhaps the result (tokens, heads, N)."""
    row.expect_inputs(2, 3)
    row.sizes("tokens,heads,k; heads,k,n; ?tokens,heads,n -> tokens,heads,n")
    expected, operands = formulas.batch_matmul_transpose, (row.tensor(0), row.tensor(1), row.destination())
    replay(impl.batch_matmul_transpose, *operands, overwrites=[2], expected=expected)


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
    raise row.refuse(INPUT_SHAPES, f"no product, batch first or in the middle, has the shape {y}", "correct a shape")


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


@replays("QuantBatchMatmulV3", npu="torch_npu.npu_quant_matmul")
def test_quant_matmul(row, replay):
    """Reads the slots x1 (M, K), x2 (K, N) or (N, K), scale (1) or (N), then the slots of `_added`.

    x1 and x2 are INT8 or FP8. FP8 may have a scale for each 128 x 128 block of x2, in the order of x2, and then a scale
    for each 128 columns of a token.
    """
    row.expect_inputs(2, 3, 4, 5, 6)
    if row.has(2) and row.input_slots[2].dtype in _SCALES_OF_GROUPS:
        _replay_groups(row, replay)
        return
    fp8 = is_fp8(row, 0, 1)
    of_blocks = fp8 and row.has(2) and len(row.shape(2)) == 2
    rank = 2 if len(row.shape(0)) == 2 else None
    a, b = row.matrices(0, largest=LARGEST), row.matrices(1, rank=rank, largest=LARGEST)
    x1, x2 = factors(row, a, b, transposed_b_first=False)
    (m, k), n = x1.shape[-2:], x2.shape[-1]
    if of_blocks:
        row.expect(x1.dim() == x2.dim() == 2, INPUT_SHAPES, "matrices with scales of blocks have two axes")
        scale = scale_of_blocks(row, 2, x2, stored_by_columns=x2 is not b)
    elif row.has(2):
        row.expect_shape(2, (1,), (n,), meaning="the scale")
        scale = row.scale(2, *scale_range(k))
    else:
        row.assume("no scale slot: the scale is ones")
        scale = row.ones(n)
    slots = _added(row, (m, blocks(k)) if of_blocks else (m,), n, fp8)
    row.expect(
        not of_blocks or "pertoken_scale" in slots, INPUT_SHAPES, f"the scales ({m}, {blocks(k)}) of x1 are missing"
    )
    if fp8:
        expect_real_product(row, slots.get("bias"))
    ranges = {"offset": (-8.0, 8.0), "pertoken_scale": (0.5, 1.5)}
    added = {
        name: bias(row, slot, k) if name == "bias" else row.tensor(slot, *ranges[name]) for name, slot in slots.items()
    }
    if of_blocks:
        added["group_sizes"] = [1, SCALE_BLOCK, SCALE_BLOCK]
    replay(impl.quant_matmul, x1, x2, scale, **added, output_dtype=row.output_dtype(), expected=formulas.quant_matmul)


def _replay_groups(row, replay):
    """Replays a product in FP8 or FP4 with a scale for each 32 (MX) or 16 numbers (NVFP4) along K.

    Slots: x1 (M, K), x2 (N, K) or (K, N), scale (N, K / 64, 2) or (K / 64, N, 2), or without pairs for NVFP4.
    """
    size = _SCALES_OF_GROUPS[row.input_slots[2].dtype]
    m, k, n = row.sizes("m,k; ; -> m,n")
    by_columns, pair = row.shape(1) == (n, k) and (k != n or row.shape(2)[0] == n), [2] if size == 32 else []
    fits = (by_columns or row.shape(1) == (k, n)) and k % 64 == 0
    row.expect(fits, INPUT_SHAPES, f"slot 1 must be ({n}, {k}) or ({k}, {n}), and K a multiple of 64")
    groups = k // 64 if pair else k // size
    row.expect_shape(2, (n, groups, *pair) if by_columns else (groups, n, *pair))
    slots = _added(row, (m, groups, *pair), n, True)
    row.expect("pertoken_scale" in slots, INPUT_SHAPES, "the scales of x1 are missing", "restore them")
    if row.on_npu and not pair:
        raise Unsupported("CANN has no scales of 16 numbers (NVFP4)")
    x1, x2, scale = row.data(0), row.data(1), row.tensor(2, 0.5, 2.0)
    operands = (x1, x2.mT, scale.transpose(0, 1)) if by_columns else (x1, x2, scale)
    added = {name: row.tensor(slot, 0.5, 2.0) for name, slot in slots.items()}
    added |= {f"x{i + 1}_dtype": NPU_FP4 for i in range(2) if row.input_slots[i].dtype == "FLOAT4_E2M1"}
    added |= {"scale_dtype": NPU_E8M0, "pertoken_scale_dtype": NPU_E8M0, "group_sizes": [1, 1, size]}
    replay(impl.quant_matmul, *operands, **added, output_dtype=row.output_dtype(), expected=formulas.quant_matmul)


@replays("WeightQuantBatchMatmulV2", npu="torch_npu.npu_weight_quant_batchmatmul")
def test_weight_quant_batchmatmul(row, replay):
    """Reads the slots x (M, K), weight (K, N) or (N, K), its scale, perhaps its offset, and in slot 6 a bias (N).

    The weight is INT8, INT4, FP8 or FP4; scale and offset are (1), (N), or (K / size, N) in the order of the weight.
    """
    row.expect_slots([0, 1, 2], [3, 6])
    _, k, n = row.sizes("m,k; ; -> m,n")
    by_columns = row.shape(1) == (n, k) != (k, n) or (k == n and are_by_columns(row.shape(2), n))
    row.expect(by_columns or row.shape(1) == (k, n), INPUT_SHAPES, f"slot 1 must be ({k}, {n}) or ({n}, {k})")
    row.expect_shapes({3: row.shape(2), 6: (n,)})
    scales = [scale_of_groups(row, slot, (k, n), by_columns) for slot in (2, 3) if row.has(slot)]
    groups, weight = len(scales[0]) if scales[0].dim() == 2 else 1, row.data(1)
    more = {"antiquant_group_size": k // groups if groups > 1 else 0}
    more |= {"bias": row.tensor(6, -8.0, 8.0)} if row.has(6) else {}
    more |= {"weight_dtype": NPU_FP4} if row.input_slots[1].dtype == "FLOAT4_E2M1" else {}
    operands = row.tensor(0), weight.mT if by_columns else weight, *scales
    replay(impl.weight_quant_batchmatmul, *operands, **more, expected=formulas.weight_quant_batchmatmul)


def _added(row, token, n, fp8):
    """Returns the slots of bias, offset and scale per token by argument.

    A row of up to four slots lacks absent slots: dtype and size decide the role of the fourth slot. A longer row has
    the order of the kernel. An offset is added to INT8 results, so products in FP8 have none.

    Args:
        token: the shape of the scale per token.
    """
    if len(row.input_slots) > 4:
        added = {name: slot for name, slot in (("offset", 3), ("bias", 4), ("pertoken_scale", 5)) if row.has(slot)}
        for name, slot in added.items():
            # A bias may have the axes of a batch before its own axis.
            shapes = {"offset": [(1,), (n,)], "bias": [(*row.shape(slot)[:-1], n)], "pertoken_scale": [token]}
            row.expect_shape(slot, *shapes[name], meaning=f"the {name.replace('_', ' ')}")
        row.expect(
            not fp8 or "offset" not in added, INPUT_SHAPES, "products in FP8 have no offset (slot 3)", "remove it"
        )
        return added
    if not row.has(3):
        return {}
    shape, dtype = row.shape(3), row.input_slots[3].dtype
    if dtype in ("FLOAT", *_SCALES_OF_GROUPS) and shape == token:
        return {"pertoken_scale": 3}
    if dtype == "FLOAT" and shape in ((1,), (n,)) and not fp8:
        return {"offset": 3}
    if dtype in ("INT32", "BF16", "FLOAT16", "FLOAT") and shape[-1:] == (n,):
        return {"bias": 3}
    of_token = ",".join(map(str, token))
    raise row.refuse(
        INPUT_SHAPES,
        f"slot 3 is neither a scale per token (FLOAT, {of_token}), nor an offset (FLOAT, 1 or {n}), nor a bias ({n})",
        "correct its shape or its dtype",
    )


@replays("AscendQuantV2", "AscendQuantV2AiCore", "AscendQuantV2Aicore", npu="torch_npu.npu_quantize")
def test_quantize(row, replay):
    """Reads the slots x, scales and perhaps zero points of its last axis."""
    row.expect_inputs(2, 3)
    x, name = row.tensor(0, -4.0, 4.0), row.output_slots[0].dtype if row.output_slots else ""
    if name == "INT32" and row.output_shape() == (*x.shape[:-1], x.shape[-1] // 8):
        name = "INT4"
    row.expect(name in ("INT8", "UINT8", "INT4"), OUTPUT_DTYPES, "the kernel quantizes to INT8, UINT8 or INT4")
    row.expect(name != "INT4" or not x.shape[-1] % 8, INPUT_SHAPES, "the last axis must be a multiple of 8 for INT4")
    for slot in range(1, len(row.input_slots)):
        row.expect_shape(slot, x.shape[-1:], (1,), meaning="the scales" if slot == 1 else "the zero points")
    # x is divided by the scales for UINT8, else multiplied. Most results are within the range of the dtype.
    reach = {"INT8": 127, "UINT8": 127, "INT4": 7}[name] / 4.0
    divides = name == "UINT8"
    scales = row.tensor(1, 1 / reach, 3 / reach) if divides else row.tensor(1, reach / 3, 1.1 * reach)
    zero_points = row.tensor(2, -4.0, 4.0) if len(row.input_slots) == 3 else None
    replay(impl.quantize, x, scales, zero_points, impl.quantized_dtype(name), -1, divides, expected=formulas.quantize)


@replays("DynamicQuant", "DynamicQuantAiCore", npu="torch_npu.npu_dynamic_quant")
def test_dynamic_quant(row, replay):
    """Reads the slots x, perhaps smooth scales of its last axis."""
    row.expect_inputs(1, 2)
    x = row.tensor(0, -4.0, 4.0)
    row.expect(x.dim() >= 2 and x.shape[-1], INPUT_SHAPES, "slot 0 must have two axes or more")
    smooth = {}
    if len(row.input_slots) == 2:
        row.expect_shape(1, x.shape[-1:], (1,), meaning="the smooth scales")
        smooth = {"smooth_scales": row.tensor(1, 0.5, 1.5)}
    name = row.output_slots[0].dtype if row.output_slots else ""
    if name == "INT4":
        smooth["dst_type"] = impl.quantized_dtype("INT4")
    elif name in FP8:
        smooth["dst_type"] = row.output_dtype()
    replay(impl.dynamic_quant, x, **smooth, expected=formulas.dynamic_quant)


@replays("DynamicBlockQuant", npu="torch_npu.npu_dynamic_block_quant")
def test_dynamic_block_quant(row, replay):
    """Reads the slot x (..., N). Output 1 has the scale of each 128 columns of a row, as activations are quantized."""
    row.expect_inputs(1)
    x = row.tensor(0, -4.0, 4.0)
    row.expect(x.dim() >= 2 and x.shape[-1], INPUT_SHAPES, "slot 0 must have two axes or more")
    scales = (*x.shape[:-1], blocks(x.shape[-1]))
    if len(row.output_slots) < 2 or row.output_shape(1) != scales:
        raise Unsupported(f"{row.kernel_type} is replayed for blocks of 1 x {SCALE_BLOCK}: output 1 is {scales} then")
    row.expect(row.output_slots[0].dtype in FP8 | {"INT8"}, OUTPUT_DTYPES, "the kernel quantizes to INT8 or FP8")
    replay(
        impl.dynamic_block_quant,
        x,
        dst_type=row.output_dtype(),
        row_block_size=1,
        col_block_size=SCALE_BLOCK,
        output_slots=(0, 1),
        expected=formulas.dynamic_block_quant,
    )


@replays("AddRmsNormDynamicQuant", "AddRmsNormDynamicQuantAiCore", npu="torch_npu.npu_add_rms_norm_dynamic_quant")
def test_add_rms_norm_dynamic_quant(row, replay):
    """Reads the slots x1, x2, gamma, and optional ones: two smooth scales, beta.

    Outputs: y1, y2, x, scales of y1, scales of y2. Without a second smooth scale, y2 and its scales mean nothing.
    """
    row.expect_inputs(3, 4, 5, 6)
    x1, x2 = row.tensor(0), row.tensor(1)
    row.expect(x1.shape == x2.shape and x1.dim() and x1.shape[-1], INPUT_SHAPES, "slots 0 and 1 must have one shape")
    names = ("gamma", "smooth_scale1", "smooth_scale2", "beta")
    row.shape(2)  # gamma must be there
    present = {name: slot for slot, name in enumerate(names, start=2) if row.has(slot)}
    for name, slot in present.items():
        row.expect_shape(slot, x1.shape[-1:], (1,), meaning=name)
    missing = "smooth_scale2" in present and "smooth_scale1" not in present
    row.expect(not missing, INPUT_SHAPES, "slot 4 needs slot 3, the first smooth scale, which is missing", "restore it")
    vectors = {name: row.tensor(slot, 0.5, 1.5) for name, slot in present.items()}
    both = "smooth_scale2" in present
    replay(
        impl.add_rms_norm_dynamic_quant,
        x1,
        x2,
        vectors.pop("gamma"),
        **vectors,
        epsilon=1e-6,
        output_slots=range(5) if both else (0, None, 2, 3, None),
        expected=formulas.add_rms_norm_dynamic_quant,
    )
