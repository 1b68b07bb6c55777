"""Replays of linear attention: the gated delta rule, the kernels around it, and Mamba2.

The lengths of sequences are on the device: they are assumed to be equal. The Triton kernels are functions of
vllm-ascend that register no operator: an NPU is given torch's own.
"""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: The slots of both kernels of the delta rule: queries, keys, values, beta, and, after the states, lengths.
_TOKENS = "tokens,key_heads,key_width; tokens,key_heads,key_width; tokens,heads,width; tokens,heads"


def _tensors(row, key_width):
    """Returns queries, keys and values; the first two of length 1, as models normalize them."""
    unit = math.sqrt(3 / key_width)
    return *(row.tensor(slot, -unit, unit) for slot in (0, 1)), row.tensor(2)


def _expect_sequences(row, tokens, sequences, key_heads=1, heads=1):
    fits = sequences > 0 and not tokens % sequences and key_heads and not heads % key_heads
    row.expect(fits, INPUT_SHAPES, f"the {tokens} tokens are not sequences of one length, or heads do not match")
    row.assume("the sequences are of one length")


@replays("RecurrentGatedDeltaRule", npu="torch_npu.npu_recurrent_gated_delta_rule")
def test_recurrent_gated_delta_rule(row, replay):
    """Reads the slots of tokens, states, lengths, place of each token, g, gk (T, Nv, Dk), accepted tokens.

    The lengths may stand behind a 0. A token stores its state in a place of its own.
    """
    row.expect_slots(range(7), (7, 8, 9))
    sizes = (
        f"{_TOKENS}; places,heads,width,key_width; lengths; tokens; ?tokens,heads; ?tokens,heads,key_width; ?accepted"
    )
    tokens, key_heads, key_width, heads, _, places, lengths = row.sizes(sizes)[:7]
    first = [0] if lengths and tokens % lengths else []
    sequences = lengths - len(first)
    _expect_sequences(row, tokens, sequences, key_heads, heads)
    given = {name: row.tensor(slot, -1.0, 0.0) for slot, name in ((7, "g"), (8, "gk")) if row.has(slot)}
    if row.has(9):
        row.expect_shape(9, (sequences,))
        given["num_accepted_tokens"] = row.integers(9, 1, tokens // sequences)
    replay(
        impl.recurrent_gated_delta_rule,
        *_tensors(row, key_width),
        state=row.tensor(4),
        beta=row.tensor(3, 0.1, 1.0),
        scale=1 / math.sqrt(key_width),
        actual_seq_lengths=row.numbers(5, first + [tokens // sequences] * sequences),
        ssm_state_indices=row.indices(6, places, distinct=True),
        **given,
        mutates=["state"],
        output_slots={0: 0, "state": 1} if len(row.output_slots) > 1 else [0],
        expected=formulas.recurrent_gated_delta_rule,
    )


@replays("ChunkGatedDeltaRule", npu="torch_npu.npu_chunk_gated_delta_rule")
def test_chunk_gated_delta_rule(row, replay):
    """Reads the slots of tokens, a state of each sequence, lengths, g."""
    row.expect_slots(range(7))
    sizes = f"{_TOKENS}; sequences,heads,width,key_width; sequences; tokens,heads"
    tokens, key_heads, key_width, heads, _, sequences = row.sizes(sizes)
    _expect_sequences(row, tokens, sequences, key_heads, heads)
    replay(
        impl.chunk_gated_delta_rule,
        *_tensors(row, key_width),
        beta=row.tensor(3, 0.1, 1.0),
        initial_state=row.tensor(4),
        actual_seq_lengths=row.numbers(5, [tokens // sequences] * sequences),
        scale=1 / math.sqrt(key_width),
        g=row.tensor(6, -0.1, 0.0),
        expected=formulas.chunk_gated_delta_rule,
    )


@replays("ChunkKdaFwd", npu="fla_npu.ops.ascendc.chunk_kda_fwd")
def test_chunk_kda(row, replay):
    """Reads the slots of tokens, whose first axis is heads, with decays before beta; a state of each sequence, starts.

    Source: flash-linear-attention-npu, chunk_kda_fwd_def.cpp. The last slot has the numbers of chunks.
    """
    row.expect_slots((*range(5), 7, 8), [9])
    layout = "of_keys,tokens,depth; of_keys,tokens,depth; heads,tokens,width; heads,tokens,depth; heads,tokens; ; ; "
    sizes = row.sizes(f"{layout}sequences,heads,width,depth; starts")
    key_heads, tokens, key_width, heads, _, sequences, starts = sizes
    _expect_sequences(row, tokens, sequences, key_heads, heads)
    row.expect(starts == sequences + 1, INPUT_SHAPES, f"slot 8 must have {sequences + 1} starts")
    given = *_tensors(row, key_width), row.tensor(3, -0.1, 0.0), row.tensor(4, 0.1, 1.0), key_width**-0.5, 64
    how = {"layout": "NTD", "output_final_state": True, "state_v_first": True, "output_slots": range(2)}
    how |= {"initial_state": row.tensor(7), "cu_seqlens": list(range(0, tokens + 1, tokens // sequences))}
    replay(impl.chunk_kda_fwd, *given, **how, expected=formulas.chunk_kda_fwd)


@replays("CausalConv1d", npu="torch.ops._C_ascend.npu_causal_conv1d_custom")
def test_causal_conv1d(row, replay, custom_opp):
    """Reads the slots x (T, C), weight (K, C), bias (C), states, starts of sequences, their places, initial states.

    Without the last one the tokens continue all sequences, as in decoding.
    """
    if row.has(7):
        raise Unsupported("CausalConv1d is replayed without accepted tokens (slot 7)")
    row.expect_slots((0, 1, 3, 4, 5), (2, 6))
    sizes = "tokens,features; taps,features; ?features; places,kept,features; ends; sequences; ?sequences"
    tokens, _, taps, places, kept, ends, sequences = row.sizes(sizes)
    row.expect(kept == taps - 1 and ends == sequences + 1, INPUT_SHAPES, "states or starts do not fit")
    _expect_sequences(row, tokens, sequences)
    replay(
        impl.causal_conv1d,
        row.destination(),
        row.tensor(0, -2.0, 2.0),
        row.tensor(1),
        row.tensor(3, -2.0, 2.0),
        row.tensor(2) if row.has(2) else None,
        row.numbers(4, range(0, tokens + 1, tokens // sequences)),
        row.indices(5, places, distinct=True),
        row.integers(6, 0, 1) if row.has(6) else None,
        None,
        1,
        -1,
        0 if row.has(6) else 1,
        mutates=[3],
        overwrites=[0],
        expected=formulas.causal_conv1d,
    )


@replays("_layer_norm_fwd_1pass_kernel_npu", npu="opatlas.bench.implementations.torch.gated_rms_norm")
def test_gated_rms_norm(row, replay):
    """Reads the slots x (..., N), weight (N), gate (..., N), as for a delta net."""
    row.expect_inputs(3)
    row.sizes("*all,width; width; *all,width -> *all,width")
    row.assume("RMSNorm, then the gate")
    x, weight, z = row.tensor(0, -2.0, 2.0), row.tensor(1), row.tensor(2, -4.0, 4.0)
    replay(impl.gated_rms_norm, x, weight, z, eps=1e-6, expected=formulas.gated_rms_norm)


@replays("fused_gdn_gating_kernel", npu="opatlas.bench.implementations.torch.gdn_gating")
def test_gdn_gating(row, replay):
    """Reads the slots A (heads), a and b (T, heads), bias (heads); writes decays and shares."""
    row.expect_inputs(4)
    row.sizes("heads; tokens,heads; tokens,heads; heads -> tokens,heads; tokens,heads")
    tensors = (row.tensor(slot, low, high) for slot, (low, high) in enumerate(((-1, 2), (-4, 4), (-4, 4), (-1, 1))))
    replay(impl.gdn_gating, *tensors, expected=formulas.gdn_gating)


@replays("kda_gate_fwd_kernel", npu="opatlas.bench.implementations.torch.kda_gate")
def test_kda_gate(row, replay):
    """Reads the slots A (heads), tokens (T, heads x features), bias; writes the decay of each feature."""
    row.expect_inputs(3)
    heads, _, features = row.sizes("heads; tokens,features; features -> tokens,features")
    row.expect(heads and not features % heads, INPUT_SHAPES, f"{heads} heads do not divide {features} features")
    tensors = (row.tensor(slot, low, high) for slot, (low, high) in enumerate(((-1, 2), (-4, 4), (-1, 1))))
    replay(impl.kda_gate, *tensors, expected=formulas.kda_gate)


@replays("_selective_scan_update_kernel", npu="opatlas.bench.implementations.torch.selective_state_update")
def test_selective_state_update(row, replay):
    """Reads the slots states (places, heads, P, N), x (B, heads, P), dt, A, B and C (B, groups, N), D, bias, places."""
    row.expect_inputs(9)
    places, heads, _, _, _, groups = row.sizes(
        "places,heads,features,width; batch,heads,features; batch,heads; heads; batch,groups,width; batch,groups,width"
        "; heads; heads; batch"
    )
    row.expect(groups and not heads % groups, INPUT_SHAPES, f"{groups} groups do not divide {heads} heads")
    replay(
        impl.selective_state_update,
        row.tensor(1),
        row.tensor(2, -4.0, 1.0),
        row.tensor(3, -4.0, -0.5),
        *(row.tensor(slot) for slot in range(4, 8)),
        state_batch_indices=row.indices(8, places, distinct=True),
        state=row.tensor(0),
        mutates=["state"],
        output_slots={0: 0, "state": 1},
        expected=formulas.selective_state_update,
    )


@replays("mamba_chunk_scan_combined_varlen", npu="opatlas.bench.implementations.torch.mamba_chunk_scan")
def test_mamba_chunk_scan(row, replay):
    """Reads the slots x (T, heads, P), dt, A, B and C (T, groups, N), starts, D, bias, a state of each sequence.

    The call of vLLM of this name launches five Triton kernels, which a profiler tells one by one.
    """
    row.expect_inputs(9)
    layout = (
        "tokens,heads,features; tokens,heads; heads; tokens,groups,width; tokens,groups,width; starts; heads; heads"
    )
    tokens, heads, _, groups, _, starts, sequences = row.sizes(f"{layout}; sequences,heads,features,width")
    _expect_sequences(row, tokens, sequences, groups, heads)
    row.expect(starts == sequences + 1, INPUT_SHAPES, f"slot 5 must have {sequences + 1} starts")
    x, dt, decay = row.tensor(0), row.tensor(1, -4.0, 1.0), row.tensor(2, -4.0, -0.5)
    others = (row.tensor(slot) for slot in (3, 4, 6, 7, 8))
    replay(impl.mamba_chunk_scan, x, dt, decay, *others, expected=formulas.mamba_chunk_scan)
