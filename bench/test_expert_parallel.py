"""Replays of kernels that the ranks of an expert-parallel group run together."""

from __future__ import annotations

import math
from functools import lru_cache

from bench import expected, impl
from bench.dispatch_ffn_combine.experts import Experts
from bench.dispatch_ffn_combine.layer import LayerSlots, group_of_layer, needed_bytes
from bench.errors import Unsupported
from bench.groups.expert_parallel import ep_size
from bench.groups.hccl_buffer import expect_buffer
from bench.registry import replays
from bench.rows import resolve
from bench.rows.int8_operands import LARGEST, scale_range
from database.schema import EP_SIZE, INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES

#: More than any row has, so that no token is left out. Only the workspace grows with it.
_MAX_OUTPUT_SIZE = 65536


@replays(
    "DispatchFFNCombine",
    "DispatchFFNCombineBF16",
    npu="torch.ops._C_ascend.dispatch_ffn_combine",
    group=group_of_layer,
)
def test_dispatch_ffn_combine(row, replay, group, custom_opp):
    """Slots: x (M, H), w1 (E, H, N), w2 (E, N / 2, H), the experts (M, k), two scales, the weights (M, k) and perhaps
    a mask (M); a weight or scale may be a slot for each expert.

    Outputs: (M, H), and perhaps the number of tokens of each expert, (E) or (1, E). These are of one rank, and alike
    on all of them; each has E experts of its own, and tokens go to those of all ranks, equally often.
    """
    slots = LayerSlots(len(row.input_slots))
    if not slots.fits:
        row.expect_inputs(7, 8)
    x, chosen, (up, down) = row.shape(0), row.shape(slots.experts), (_of_experts(row, own) for own in slots.weights)
    if not len(x) == len(chosen) == 2 or not len(up) == len(down) == 3 or up[2] % 2:
        raise row.refuse(
            INPUT_SHAPES, "it takes x (M, H), w1 (E, H, N), w2 (E, N / 2, H) and experts (M, k)", "correct the shapes"
        )
    experts, probs = up[0], row.shape(slots.probabilities) if row.has(slots.probabilities) else ()
    if up[1] != x[1] or down != (experts, up[2] // 2, x[1]) or chosen[0] != x[0] or probs != chosen:
        raise row.refuse(
            INPUT_SHAPES,
            f"x {x}, w1 {up}, w2 {down}, the experts {chosen} and their weights {probs} do not belong together",
            "correct the shape that does not fit",
        )
    counted = len(row.output_slots) > 1
    if counted and row.output_shape(1) not in ((experts,), (1, experts)):
        raise row.refuse(OUTPUT_SHAPES, f"output 1 counts the tokens of {experts} experts", "correct one of the shapes")
    integers = row.input_slots[slots.weights[0][0]].dtype == "INT8"
    if any((row.input_slots[slot].dtype == "INT8") != integers for own in slots.weights for slot in own):
        raise row.refuse(INPUT_DTYPES, "w1 and w2 must have one dtype", "correct one of them")
    stacked = slots.listed == 1 and experts == row.shape(slots.weights[0][0])[0]
    for own, width in zip(slots.scales, (up[2], x[1]), strict=True):
        for slot in own if integers else ():
            row.expect_shape(slot, (experts, width) if stacked else (width,))
    if ep_size(row.cells) not in (None, group.size):
        raise Unsupported(f"{row.kernel_type} of this row runs on {row.cells[EP_SIZE]} devices at once")
    if row.device.type == "npu":
        expect_buffer(needed_bytes(row.cells))
    if slots.has_mask:
        row.assume("all tokens are active")
    scales = [
        [row.float_bits(slot, *scale_range(depth)) for slot in own if row.has(slot)]
        for own, depth in zip(slots.scales, (up[1], down[1]), strict=True)
    ]

    def matrices_of(drawn):
        rank, whole = (3 if stacked else 2), (LARGEST if integers else None)
        return [[drawn.matrices(slot, rank=rank, whole=whole) for slot in own] for own in slots.weights]

    def by_expert(tensors):
        return tensors[0] if stacked else tensors

    @lru_cache(maxsize=1)
    def weights_of(rank):
        return [by_expert(one) for one in (own if rank == group.rank else matrices_of(row.of_rank(rank)))]

    def ids_of(rank):
        return row.of_rank(rank).expert_ids(slots.experts, experts * group.size, first=rank * math.prod(chosen))

    drawn = row.of_rank(group.rank)
    own = matrices_of(drawn)
    of_all = {
        f"weight{which + 1}": [Experts(weights_of, which, per_rank=experts, ranks=group.size)] for which in range(2)
    } | {f"scale{i}": [[*by_expert(one)] * group.size] for i, one in enumerate(scales, 1) if integers}
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
        max_output_size=_MAX_OUTPUT_SIZE,
        out=row.destination(),
        expert_token_nums=row.destination(1) if counted else row.filled((experts,), "INT32", 0),
        x_active_mask=row.filled(x[:1], "BOOL", True) if slots.has_mask else None,
        overwrites=["out", "expert_token_nums"],
        output_slots=range(2 if counted else 1),
        expected=expected.dispatch_ffn_combine.given(
            **of_all, arriving=[ids_of(rank) - group.rank * experts for rank in range(group.size)]
        ),
    )


def _of_experts(row, slots):
    """The shape (E, rows, columns) of a weight of a rank's experts, which may be a slot for each; () for another."""
    shapes = {row.shape(slot) for slot in slots}
    shape = shapes.pop()
    if shapes:
        return ()
    plain = resolve.nz_shape(shape) if len(shape) > 3 else shape
    return (len(slots), *plain) if len(plain) == 2 else plain if len(slots) == 1 else ()
