"""Replays of mixtures of experts: routing and grouped products."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.row.slots import FP8
from opatlas.run.inputs import shape_rules
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

_QUANTIZED = FP8 | {"INT8"}
#: A permutation does not record the number of experts.
_ASSUMED_EXPERTS = 64


@replays("MoeGatingTopK", npu="torch_npu.npu_moe_gating_top_k")
def test_moe_gating_top_k(row, replay):
    """Reads the slots logits (T, E), perhaps a bias (E). A capture does not record how experts are chosen.

    With a bias: as in DeepSeek-V3, by sigmoid, 256 experts in 8 groups, of which the best 4 count. Without a bias: by
    softmax.
    """
    row.expect_inputs(1, 2)
    tokens, experts, k = row.sizes("tokens,experts; ?experts -> tokens,k")
    row.expect(1 <= k <= experts, OUTPUT_SHAPES, f"output 0 must have 1 to {experts} experts for each token")
    gating = {"norm_type": 0}
    if row.has(1):
        # 0 or 1, and distinct logits: no two scores are so close that rounding decides.
        gating = {"norm_type": 1, "bias": row.integers(1, 0, 1)}
        if experts == 256 and k <= 128:
            gating |= {"k_group": 4, "group_count": 8, "group_select_mode": 1}
    row.assume("DeepSeek-V3's choice of experts" if "bias" in gating else "softmax over one group of experts")
    x = _distinct_logits(row)
    out_flag = len(row.output_slots) == 3 and row.output_slots[2].shape == (tokens, experts)
    replay(
        impl.moe_gating_top_k,
        x,
        k,
        **gating,
        out_flag=out_flag,
        output_slots=range(3 if out_flag else 2),
        expected=formulas.moe_gating_top_k,
    )


@replays("MoeGatingTopKSoftmax", npu="torch_npu.npu_moe_gating_top_k_softmax")
def test_moe_gating_top_k_softmax(row, replay):
    """Reads the slot logits (T, E), without a list of finished tokens. The last output numbers the copies of tokens."""
    row.expect_slots([0], [1])
    if row.has(1):
        raise Unsupported("MoeGatingTopKSoftmax is replayed without finished tokens (slot 1)")
    _, experts, k = row.sizes("tokens,experts -> tokens,k")
    row.expect(1 <= k <= experts, OUTPUT_SHAPES, f"output 0 must have 1 to {experts} experts for each token")
    replay(impl.moe_gating_top_k_softmax, _distinct_logits(row), None, k, expected=formulas.moe_gating_top_k_softmax)


def _distinct_logits(row):
    """Returns logits of which no two of a token are so close that rounding decides."""
    drawn = row.tensor(0)
    return (drawn.float().argsort(-1) * (8 / max(drawn.shape[-1] - 1, 1)) - 4).to(drawn.dtype)


@replays("MoeInitRoutingV3", "MoeInitRoutingV2", npu="torch_npu.npu_moe_init_routing_v2")
def test_moe_init_routing(row, replay):
    """Reads the slots tokens (T, H), their experts (T, k). An output of INT8 is quantized by the largest of a row.

    Outputs: copies by expert, position of each copy, tokens of each expert, scales. The call launches MoeInitRoutingV3.
    """
    row.expect_slots([0, 1], [2, 3])
    if row.has(2) or row.has(3):
        raise Unsupported(f"{row.kernel_type} is replayed without scales and offsets of the inputs (slots 2 and 3)")
    tokens, width, k, *_ = row.sizes("tokens,width; tokens,k -> copies,width; copies")
    fits = row.output_shape() == (tokens * k, width)
    row.expect(fits, OUTPUT_SHAPES, f"output 0 must have the {tokens * k} copies of all tokens")
    counts = row.output_shape(2) if len(row.output_slots) > 2 else ()
    experts, quantized = (counts or (_ASSUMED_EXPERTS,))[0], row.output_slots[0].dtype == "INT8"
    row.assume(f"{experts} experts, chosen equally often")
    replay(
        impl.moe_init_routing,
        row.tensor(0),
        row.expert_ids(1, experts),
        active_num=tokens * k,
        expert_num=experts,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=1 if quantized else -1,
        active_expert_range=[0, experts],
        output_slots=[0, 1, 2 if counts else None, *([3] if quantized else [])],
        expected=formulas.moe_init_routing,
    )


@replays("MoeTokenPermute", npu="torch_npu.npu_moe_token_permute")
def test_moe_token_permute(row, replay):
    """Reads the slots tokens (T, H), their experts (T, k) or (T)."""
    row.expect_inputs(2)
    tokens, _, chosen = row.sizes("tokens,width; tokens,*chosen")
    experts = max(_ASSUMED_EXPERTS, *chosen, 1)
    row.assume(f"{experts} experts, chosen equally often")
    copies, kept = tokens * max(chosen, default=1), row.output_shape()[0] if row.output_shape() else 0
    row.expect(kept <= copies, OUTPUT_SHAPES, f"output 0 has more rows than the {copies} copies of tokens")
    arguments = [row.tensor(0), row.expert_ids(1, experts), *([kept] if kept < copies else [])]
    replay(impl.moe_token_permute, *arguments, expected=formulas.moe_token_permute)


@replays("MoeTokenUnpermute", npu="torch_npu.npu_moe_token_unpermute")
def test_moe_token_unpermute(row, replay):
    """Reads the slots permuted tokens (T k, H), position of each copy (T k), perhaps weights (T, k)."""
    row.expect_inputs(2, 3)
    copies, _ = row.sizes("copies,width; copies")
    probs = [row.tensor(2, 0.1, 1.0)] if len(row.input_slots) == 3 else []
    fits = not probs or (probs[0].dim() == 2 and probs[0].numel() == copies)
    row.expect(fits, INPUT_SHAPES, f"slot 2 must have the shape (tokens, k), {copies} numbers in all")
    arguments = [row.tensor(0), row.indices(1, copies, distinct=True), *probs]
    replay(impl.moe_token_unpermute, *arguments, expected=formulas.moe_token_unpermute)


@replays("GroupedMatmul", npu="torch_npu.npu_grouped_matmul")
def test_grouped_matmul(row, replay):
    """Reads operands, scales and groups of rows.

    Slots: 0 x (M, K), 1 weight (E, K, N), (E, N, K) or FRACTAL_NZ, 2 bias and 3 scale (E, N), 7 group_list (E),
    8 scale per token (M). FP8 may have a scale for each 128 x 128 block of a matrix, in the order of the weight, and
    then a scale for each 128 columns of a row. Of weights that alone have few bits, slot 5 has the scales, and slot 6
    perhaps offsets: (E, N), or (E, K / size, N) in the order of the weight. Slot 4, an offset of x, is not replayed.
    """
    row.expect_inputs(*range(2, 10))
    transposed, (m, k), (experts, n) = _grouped(row)
    if row.has(4):
        raise Unsupported("GroupedMatmul is replayed without offsets of x (slot 4)")
    row.expect(
        row.has(7),
        INPUT_SHAPES,
        f"slot 7 (group_list) is missing: it says which rows are multiplied with which of the {experts} matrices; "
        "a row without it is a whole mixture of experts, which launches several kernels",
        "restore the slot from the capture, or record the row under the types of these kernels",
    )
    quantized = row.input_slots[0].dtype in _QUANTIZED
    weights_alone = row.has(5)
    transposed |= weights_alone and k == n and shape_rules.are_by_columns(row.shape(5), n)
    if weights_alone and (quantized or len(row.shape(1)) != 3):
        raise Unsupported("GroupedMatmul of weights alone in few bits is replayed for real x, weights (E, K, N) in ND")
    if not weights_alone and quantized != (row.input_slots[1].dtype in _QUANTIZED):
        raise Unsupported("GroupedMatmul is replayed for operands of one kind, both INT8 or both real numbers")
    of_blocks = False
    if quantized and shape_rules.is_fp8(row, 0, 1):
        of_blocks = row.has(3) and len(row.shape(3)) == 3
        shape_rules.expect_real_product(row, 2 if row.has(2) else None)
    token = (m, shape_rules.blocks(k)) if of_blocks else (m,)
    row.expect_shapes({2: (experts, n), 7: (experts,), 8: token} | ({} if of_blocks else {3: (experts, n)}))
    row.expect(not of_blocks or row.has(8), INPUT_SHAPES, f"slot 8, scales {token} of x, is missing", "restore it")
    whole = shape_rules.LARGEST if quantized else None
    weight = row.data(1) if weights_alone else row.matrices(1, rank=3, largest=whole)
    weight = weight.mT if transposed else weight
    given: dict[str, object] = {"bias": [shape_rules.bias(row, 2, k)]} if row.has(2) else {}
    for slot, name in ((5, "antiquant_scale"), (6, "antiquant_offset")):
        if row.has(slot):
            given[name] = [shape_rules.scale_of_groups(row, slot, (experts, k, n), transposed)]
    if row.input_slots[1].dtype == "FLOAT4_E2M1":
        given["weight_dtype"] = shape_rules.NPU_FP4
    if quantized:
        if of_blocks:
            given["scale"] = [shape_rules.scale_of_blocks(row, 3, weight, transposed)]
        elif row.has(3):
            given["scale"] = [row.scale(3, *shape_rules.scale_range(k))]
        elif row.output_slots[0].dtype != "INT32":
            row.assume("no scale slot: the scale is ones")
            given["scale"] = [row.ones(experts, n)]
        if row.has(8):
            given["per_token_scale"] = [row.tensor(8, 0.5, 1.5)]
        if row.output_slots[0].dtype != "INT8":
            # INT8 is the default of the call, which refuses it as an argument.
            given["output_dtype"] = row.output_dtype()
    replay(
        impl.grouped_matmul,
        [row.matrices(0, rank=2, largest=whole)],
        [weight],
        **given,
        group_list=row.group_list(7, m),
        split_item=2,
        group_type=0,
        group_list_type=0,
        expected=formulas.grouped_matmul,
    )


@replays("GroupedMatmulSwigluQuant", npu="torch_npu.npu_grouped_matmul_swiglu_quant")
def test_grouped_matmul_swiglu_quant(row, replay):
    """Reads operands, scales and groups of rows.

    Slots: x (M, K), weight (E, K, N), bias and offset, which must be absent; the last three are the
    weight's scale (E, N), the scale of x (M) and group_list (E). Outputs: (M, N / 2), and its scales (M).
    """
    row.expect_inputs(5, 6, 7)
    shape_rules.expect_int8(row, 0, 1)
    transposed, (m, k), (experts, n) = _grouped(row, halves=True)
    last = len(row.input_slots)
    if any(row.has(slot) for slot in range(2, last - 3)):
        raise Unsupported("GroupedMatmulSwigluQuant is replayed without a bias and an offset, as its call takes none")
    row.expect_shapes({last - 3: (experts, n), last - 2: (m,), last - 1: (experts,)})
    weight = row.matrices(1, rank=3, largest=shape_rules.LARGEST)
    replay(
        impl.grouped_matmul_swiglu_quant,
        row.matrices(0, rank=2, largest=shape_rules.LARGEST),
        weight.mT if transposed else weight,
        row.group_list(last - 1, m),
        row.tensor(last - 3, *shape_rules.scale_range(k)),
        row.tensor(last - 2, 0.02, 0.08),
        output_slots=(0, 1),
        expected=formulas.grouped_matmul_swiglu_quant,
    )


@replays("SwigluGroupQuant", npu="torch.ops._C_ascend.npu_swiglu_group_quant")
def test_swiglu_group_quant(row, replay, custom_opp):
    """Reads the slots x (..., 2 D), perhaps weights (...). Scales: FLOAT (..., D / 128), or MX (..., D / 64, 2)."""
    row.expect_slots([0], [1])
    tokens, width, half = row.sizes("*tokens,width; ?*tokens -> *tokens,half; ")
    of_mx = len(row.output_slots) > 1 and row.output_slots[1].dtype == "FLOAT8_E8M0"
    mode, size, scales = (2, 32, (half // 64, 2)) if of_mx else (1, 128, (half // 128,))
    fits = width == 2 * half and half % (64 if of_mx else 128) == 0 and row.output_shape(1) == (*tokens, *scales)
    row.expect(fits, OUTPUT_SHAPES, f"output 0 must be (..., {width // 2}), output 1 its scales (..., {scales})")
    row.assume("activations are not limited")
    operands = row.tensor(0, -4.0, 4.0), row.tensor(1, 0.1, 1.0) if row.has(1) else None, None, row.output_dtype()
    how = {"quant_mode": mode, "group_size": size, "output_slots": (0, 1), "expected": formulas.swiglu_group_quant}
    replay(impl.swiglu_group_quant, *operands, **how)


def _grouped(row, *, halves=False):
    """Returns whether the weights are stored as (E, N, K), the shape (M, K), and (E, N).

    With `halves` the output has N / 2 columns.
    """
    x, stored, y = row.shape(0), row.shape(1), row.output_shape()
    weight = shape_rules.nz_shape(stored) if len(stored) == 5 else stored
    fits = len(x) == len(y) == 2 and len(weight) == 3
    row.expect(fits, INPUT_SHAPES, "slots 0 and 1 must be (M, K) and (E, K, N) or FRACTAL_NZ")
    wanted = (y[0], y[1] * 2 if halves else y[1])
    fitting = shape_rules.matrix_product(x, weight[1:], wanted, transposed_b_first=False)
    if fitting is None or fitting[0]:
        whole_layer = x == y and x[1] in weight[1:]
        raise row.refuse(
            OUTPUT_SHAPES,
            f"no product of the rows of {x} with {weight[0]} matrices {weight[1:]} has this shape"
            + ("; a whole mixture of experts has it, which launches several kernels" if whole_layer else ""),
            "record the row under the types of these kernels" if whole_layer else "correct one of the three shapes",
        )
    return fitting[1], x, (weight[0], wanted[1])
