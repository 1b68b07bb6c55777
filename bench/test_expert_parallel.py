"""Replays of kernels that the ranks of an expert-parallel group run together."""

from __future__ import annotations

import math
from functools import lru_cache, partial

from opatlas.row.columns import EP_SIZE, INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.devices.npu_operators import load_npu_call
from opatlas.run.inputs import experts as expert_rows, shape_rules
from opatlas.run.inputs.shape_rules import LARGEST, scale_range
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: Larger than any row, so that no token is left out. Only the workspace grows with this size.
_MAX_OUTPUT_SIZE = 65536
_EQUAL_LOAD = "all experts chosen equally often"
#: On A2 these variables choose whether nodes add up first; then weights are dispatched, too.
_ALGORITHM = "HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE as they are here"
#: Slots of later versions that are not replayed: failed ranks, results of shared experts, constant experts.
#: Source: ops-transformer, moe_distribute_dispatch_v{2,3}_def.cpp and moe_distribute_combine_v{2,3}_def.cpp.
_MORE_SLOTS = {"MoeDistributeDispatchV2": range(5, 7), "MoeDistributeCombineV2": range(11, 18)}
_MORE_SLOTS |= {"MoeDistributeDispatchV3": range(6, 8), "MoeDistributeCombineV3": range(12, 19)}
_DISPATCH_V3 = "torch.ops.npu_ops_transformer.npu_moe_distribute_dispatch_v3"
_COMBINE_V3 = "torch.ops.npu_ops_transformer.npu_moe_distribute_combine_v3"


@replays(
    "DispatchFFNCombine",
    "DispatchFFNCombineBF16",
    npu="torch.ops._C_ascend.dispatch_ffn_combine",
    group=expert_rows.group_of_layer,
)
def test_dispatch_ffn_combine(row, replay, group, npu, custom_opp):
    """Reads a layer of experts.

    Slots: x (M, H), w1 (E, H, N), w2 (E, N / 2, H), the experts (M, k), two scales, the weights (M, k) and perhaps
    a mask (M); weights and scales may have a slot for each expert.

    Outputs: (M, H), and perhaps the number of tokens of each expert, (E) or (1, E). All ranks have these sizes. Each
    rank has E experts.
    """
    slots = expert_rows.layer_slots(len(row.input_slots))
    if not slots.fits:
        row.expect_inputs(7, 8)
    x, chosen, (up, down) = row.shape(0), row.shape(slots.experts), (_weight_shape(row, own) for own in slots.weights)
    _expect_layer(row, slots, x, chosen, up, down)
    experts, counted = up[0], len(row.output_slots) > 1
    integers = row.input_slots[slots.weights[0][0]].dtype == "INT8"
    stacked = len(slots.weights[0]) == 1 and experts == row.shape(slots.weights[0][0])[0]
    for own, width in zip(slots.scales, (up[2], x[1]), strict=True):
        for slot in own if integers else ():
            row.expect_shape(slot, (experts, width) if stacked else (width,))
    if expert_rows.ep_size(row.cells) not in (None, group.size):
        raise Unsupported(f"{row.kernel_type} of this row runs on {row.cells[EP_SIZE]} devices at once")
    if npu:
        expert_rows.expect_hccl_buffer(expert_rows.needed_bytes(row.cells))
    if not row.expert_load:
        row.assume(_EQUAL_LOAD)
    if slots.has_mask:
        row.expect_shape(slots.probabilities + 1, x[:1], meaning="a mask")
        row.assume("all tokens are active")
    scales = [
        [row.float_bits(slot, *scale_range(depth)) for slot in own if row.has(slot)]
        for own, depth in zip(slots.scales, (up[1], down[1]), strict=True)
    ]

    def matrices_of(drawn):
        rank, whole = (3 if stacked else 2), (LARGEST if integers else None)
        return [[drawn.matrices(slot, rank=rank, largest=whole) for slot in own] for own in slots.weights]

    def by_expert(tensors):
        return tensors[0] if stacked else tensors

    @lru_cache(maxsize=1)
    def weights_of(rank):
        return [by_expert(one) for one in (own if rank == group.rank else matrices_of(row.for_rank(rank)))]

    def ids_of(rank):
        return row.expert_ids(slots.experts, experts * group.size, rank)

    def weight_of(which):
        return lambda expert: weights_of(expert // experts)[which][expert % experts]

    drawn = row.for_rank(group.rank)
    own = matrices_of(drawn)
    bound: dict[str, list[object]] = {
        f"weight{i + 1}": [expert_rows.Computed(weight_of(i), experts * group.size)] for i in range(2)
    }
    bound |= {f"scale{i}": [[*by_expert(one)] * group.size] for i, one in enumerate(scales, 1) if integers}
    replay(
        impl.dispatch_ffn_combine,
        x=drawn.tensor(0),
        weight1=own[0],
        weight2=own[1],
        expert_idx=ids_of(group.rank),
        scale1=scales[0],
        scale2=scales[1],
        bias1=[],
        bias2=[],
        probs=drawn.tensor(slots.probabilities, 0.1, 1.0),
        group=group.name,
        # By an Expert Load all choices may be those of one rank.
        max_output_size=max(_MAX_OUTPUT_SIZE, group.size * math.prod(chosen) if row.expert_load else 0),
        out=row.destination(),
        expert_token_nums=row.destination(1) if counted else row.filled((experts,), "INT32", 0),
        x_active_mask=row.filled(x[:1], "BOOL", True) if slots.has_mask else None,
        overwrites=["out", "expert_token_nums"],
        output_slots=range(2 if counted else 1),
        expected=formulas.dispatch_ffn_combine.bind(
            **bound, arriving=[ids_of(rank) - group.rank * experts for rank in range(group.size)]
        ),
    )


def _expect_layer(row, slots, x, chosen, up, down):
    """Checks the shapes and dtypes of a layer of experts."""
    fits = len(x) == len(chosen) == 2 and len(up) == len(down) == 3 and not up[2] % 2
    row.expect(fits, INPUT_SHAPES, "the kernel takes x (M, H), w1 (E, H, N), w2 (E, N / 2, H) and experts (M, k)")
    experts, probs = up[0], row.shape(slots.probabilities) if row.has(slots.probabilities) else ()
    fits = up[1] == x[1] and down == (experts, up[2] // 2, x[1]) and chosen[0] == x[0] and probs == chosen
    problem = f"x {x}, w1 {up}, w2 {down}, the experts {chosen} and their weights {probs} do not match"
    row.expect(fits, INPUT_SHAPES, problem)
    counted = len(row.output_slots) > 1
    fits = not counted or row.output_shape(1) in ((experts,), (1, experts))
    row.expect(fits, OUTPUT_SHAPES, f"output 1 must have a count for each of {experts} experts")
    dtypes = {row.input_slots[slot].dtype for own in slots.weights for slot in own}
    row.expect(len(dtypes) == 1 or "INT8" not in dtypes, INPUT_DTYPES, "w1 and w2 must have one dtype")


@replays("MoeDistributeDispatch", npu="torch_npu.npu_moe_distribute_dispatch", group=expert_rows.group_of_dispatch)
def test_moe_distribute_dispatch(row, replay, group):
    """Reads the slots x (BS, H), experts (BS, k), and perhaps scales (R E, H), a mask (BS) and weights (BS, k).

    Outputs: the arriving tokens (A, H), their scales (A), and tensors for a combine.
    """
    _dispatch(row, replay, group, impl.moe_distribute_dispatch)


@replays("MoeDistributeDispatchV2", npu="torch_npu.npu_moe_distribute_dispatch_v2", group=expert_rows.group_of_dispatch)
def test_moe_distribute_dispatch_v2(row, replay, group):
    """Replays the second version like MoeDistributeDispatch."""
    _dispatch(row, replay, group, impl.moe_distribute_dispatch_v2)


@replays("MoeDistributeDispatchV3", npu=_DISPATCH_V3, group=partial(expert_rows.group_of_dispatch, first=1))
def test_moe_distribute_dispatch_v3(row, replay, group):
    """Replays the third version like the second, before whose slots it has the addresses of the ranks' memory."""
    _dispatch(row, replay, group, impl.moe_distribute_dispatch_v2, first=1)


@replays("MoeDistributeCombine", npu="torch_npu.npu_moe_distribute_combine", group=expert_rows.group_of_combine)
def test_moe_distribute_combine(row, replay, group):
    """Reads the slots results (A, H), experts (BS, k), two outputs of a dispatch (2 and 3), weights (BS, k).

    Optional slots: counts of another group (5), a mask (6), dispatched weights (10). A dispatch of the same version
    runs before the combine.
    """
    dispatch = "torch_npu.npu_moe_distribute_dispatch", impl.moe_distribute_dispatch
    _combine(row, replay, group, impl.moe_distribute_combine, dispatch, "expand_idx")


@replays("MoeDistributeCombineV2", npu="torch_npu.npu_moe_distribute_combine_v2", group=expert_rows.group_of_combine)
def test_moe_distribute_combine_v2(row, replay, group):
    """Replays the second version like MoeDistributeCombine."""
    dispatch = "torch_npu.npu_moe_distribute_dispatch_v2", impl.moe_distribute_dispatch_v2
    _combine(row, replay, group, impl.moe_distribute_combine_v2, dispatch, "assist_info_for_combine")


@replays("MoeDistributeCombineV3", npu=_COMBINE_V3, group=partial(expert_rows.group_of_combine, first=1))
def test_moe_distribute_combine_v3(row, replay, group):
    """Replays the third version like the second, before whose slots it has the addresses of the ranks' memory."""
    dispatch = _DISPATCH_V3, impl.moe_distribute_dispatch_v2
    _combine(row, replay, group, impl.moe_distribute_combine_v2, dispatch, "assist_info_for_combine", first=1)


def _dispatch(row, replay, group, kernel, first=0):
    """Replays a dispatch of tokens to the experts of all ranks; `first`: the slot of the tokens."""
    _expect_inputs(row, range(2 + first, 6 + first))
    found = expert_rows.dispatched(row, first)
    x, ids, scales, mask, weights = range(first, first + 5)
    _expect_group(row, group, found)
    of_tp = row.output_slots[5].shape if len(row.output_slots) > 5 else ()
    tp = of_tp[0] if of_tp else 0
    quantized = row.output_slots[0].dtype == "INT8"
    if tp > 1 or row.input_slots[x].dtype == "INT8":
        raise Unsupported(f"{row.kernel_type} is replayed without tensor parallelism, and for tokens of real numbers")
    row.expect_shapes({scales: (found.all_experts, found.width), weights: (found.tokens, found.top_k)})
    row.expect(quantized or not row.has(scales), INPUT_SHAPES, f"slot {scales} scales what is not quantized (output 0)")
    own = _tokens_and_experts(row, found, group.rank, x)
    optional = {"scales": row.tensor(scales, 0.5, 1.5)} if row.has(scales) else {}
    optional |= _mask(row, mask, found)
    if row.has(weights):
        row.assume(_ALGORITHM)
        optional["expert_scales"] = row.for_rank(group.rank).tensor(weights, 0.1, 1.0)
    formula = formulas.moe_distribute_dispatch_quant if quantized else formulas.moe_distribute_dispatch
    replay(
        kernel,
        x=own[0],
        expert_ids=own[1],
        **_group_arguments(row, group, found, tp, first),
        **optional,
        quant_mode=2 if quantized else 0,
        output_slots={0: 0, 1: 1, 3: 3} if quantized else {0: 0, 3: 3},
        expected=formula.bind(
            chosen=[row.expert_ids(ids, found.all_experts, rank) for rank in range(group.size)],
            first=group.rank * found.experts,
            experts=found.experts,
            tokens=expert_rows.Computed(lambda rank: row.for_rank(rank).tensor(x), group.size),
        ),
    )


def _combine(row, replay, group, kernel, dispatch, info_argument, first=0):
    """Replays a combine of dispatched tokens, each multiplied by a factor of its expert.

    `dispatch`: the NPU call, and the function of other devices; `info_argument`: the argument for the third output of
    the dispatch; `first`: the slot of the results.
    """
    _expect_inputs(row, range(5 + first, 12 + first))
    results, _, info_slot, ends_slot, weights_slot, tp_slot, mask_slot, *quant, sent_slot = range(first, first + 11)
    if any(map(row.has, quant)) or row.input_slots[results].dtype == "INT32":
        raise Unsupported(f"{row.kernel_type} is replayed for real results (no slots {quant[0]} to {quant[-1]})")
    if row.has(tp_slot) and row.shape(tp_slot) not in ((), (0,), (1,)):
        raise Unsupported(f"{row.kernel_type} is replayed without a group of tensor parallelism (slot {tp_slot})")
    possible = expert_rows.combined(row, first)
    found = next((one for one in possible if one.ranks == group.size), possible[0])
    _expect_group(row, group, found)
    if len(possible) > 1 and expert_rows.ep_size(row.cells) is None:
        row.assume(f"{found.ranks} ranks, as --ep-size says")
    row.expect_shapes({weights_slot: (found.tokens, found.top_k)})
    tp = row.shape(tp_slot)[0] if row.has(tp_slot) and row.shape(tp_slot) else 0
    x, chosen = _tokens_and_experts(row, found, group.rank, results)
    weights = row.for_rank(group.rank).tensor(weights_slot, 0.1, 1.0)
    mask, of_group = _mask(row, mask_slot, found), _group_arguments(row, group, found, tp, first)
    sent = {}
    if row.has(sent_slot):
        row.assume(_ALGORITHM)
        sent["expert_scales"] = weights
    arrived, _, info, counts, ends, of_tp, sent_weights = row.call_of(*dispatch)(
        x=x, expert_ids=chosen, **of_group, **mask, **sent
    )
    row.expect_shapes({info_slot: tuple(info.shape), ends_slot: tuple(ends.shape)})
    factors = impl.expert_factors(found.all_experts, x.device)
    own = factors.narrow(0, group.rank * found.experts, found.experts)
    replay(
        kernel,
        expand_x=impl.scale_by_experts(arrived, own, counts),
        expert_ids=chosen,
        **{info_argument: info},
        ep_send_counts=ends,
        expert_scales=weights,
        **of_group,
        **mask,
        tp_send_counts=of_tp if row.has(tp_slot) else None,
        expand_scales=sent_weights if row.has(sent_slot) else None,
        expected=formulas.moe_distribute_combine.bind(tokens=x, factors=factors),
    )


def _expect_group(row, group, found):
    """Refuses a row of another group than this one, and a row that exceeds HCCL's buffer."""
    if found.ranks != group.size or expert_rows.ep_size(row.cells) not in (None, group.size):
        raise Unsupported(f"{row.kernel_type} of this row runs on {found.ranks} devices at once")
    if row.device.type == "npu":
        expert_rows.expect_hccl_buffer(found.needed_bytes)
    load = "" if row.expert_load else f"{_EQUAL_LOAD}, "
    row.assume(f"as many tokens and experts on each rank, {load}none shared")


def _tokens_and_experts(row, found, rank, first):
    """Returns the tokens of a rank and their experts; `first`: the slot of the tokens or results."""
    tokens = row.for_rank(rank).tensor(first, shape=(found.tokens, found.width))
    return tokens, row.expert_ids(first + 1, found.all_experts, rank)


def _group_arguments(row, group, found, tp, first):
    """Returns the arguments that describe the group."""
    shared = {
        "ep_world_size": group.size,
        "ep_rank_id": group.rank,
        "moe_expert_num": found.all_experts,
        "tp_world_size": tp,
        "shared_expert_rank_num": 0,
        "global_bs": found.global_bs,
    }
    if first and row.device.type == "npu":
        memory = _memory_of_ranks()
        return {**shared, "context": memory.context, "ccl_buffer_size": memory.ccl_buffer_size}
    third = {"context": row.tensor(0), "ccl_buffer_size": 0} if first else {}
    named = {} if first and row.on_npu else {"group_ep": group.name, "group_tp": group.name if tp else ""}
    return {**shared, **third, **named}


@lru_cache(maxsize=1)
def _memory_of_ranks():
    """Returns what npu_ops_transformer knows of the memory in which ranks exchange tokens, with its addresses."""
    from torch import distributed

    # As other versions, with a communicator that nobody else uses.
    return load_npu_call("npu_ops_transformer.ops.MoeDistributeBuffer")(distributed.new_group(backend="hccl"))


def _expect_inputs(row, counts):
    """Refuses a row with another number of slots, or with a slot that is not replayed."""
    more = _MORE_SLOTS.get(row.kernel_type, ())
    if there := [str(slot) for slot in more if slot < len(row.input_slots) and row.has(slot)]:
        slots = f"slot{'s' * (len(there) > 1)} {', '.join(there)}"
        raise Unsupported(f"{row.kernel_type} is replayed without failed ranks, shared and constant experts ({slots})")
    row.expect_inputs(*counts)


def _mask(row, slot, found):
    """Returns the argument for an optional mask of tokens or of their choices; all are active."""
    if not row.has(slot):
        return {}
    row.expect_shape(slot, (found.tokens,), (found.tokens, found.top_k), meaning="a mask")
    row.assume("all tokens are active")
    return {"x_active_mask": row.filled(row.shape(slot), "BOOL", True)}


def _weight_shape(row, slots):
    """Returns the shape (E, rows, columns) of a weight in one slot or a slot for each expert; () if none fits."""
    shapes = {row.shape(slot) for slot in slots}
    shape = shapes.pop()
    if shapes:
        return ()
    plain = shape_rules.nz_shape(shape) if len(shape) > 3 else shape
    return (len(slots), *plain) if len(plain) == 2 else plain if len(slots) == 1 else ()
