"""Every required and every captured kernel type has a replay, or a reason why it has none."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from opatlas.row.slots import EMPTY_WORDS, base_type, siblings
from opatlas.run.registry import WITHOUT_REPLAY, replays_of_bench

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "data" / "ascend_profiler"

#: Kernel types that users expect: of LLM inference on NPUs, of earlier tools, of captures of training and inference.
REQUIRED = """
    MatMulV2 MatMulV3 MatMulCommon QuantBatchMatmulV3 AscendQuantV2 DynamicQuant FusedInferAttentionScore
    RmsNorm AddRmsNormBias InterleaveRope split_qkv_rmsnorm_rope_kernel ReshapeAndCacheNdKernel
    KvRmsNormRopeCache SwiGlu SoftmaxV2 TensorMove Slice PadV3 Index GatherV2 MaskedFill Transpose Sort
    ArgMaxV2 Add DispatchFFNCombine RINGMLAPrefillBF16Kernel

    BatchMatMulV2 TransposeBatchMatMul GroupedMatmul GroupedMatmulSwigluQuant MoeTokenPermute
    MoeTokenUnpermute MoeGatingTopK ScatterNdUpdate LightningIndexer SparseFlashAttention

    AddAiCore Mul MulAiCore Muls Sub SubAiCore RealDiv FloorDiv FloorMod Equal NotEqual Greater
    GreaterEqual Less LogicalAnd LogicalNot LogicalOr SelectV2 Neg Abs Log Cos Sin Pows Cast Fill ZerosLike
    OnesLike Range ReduceSum Cumsum ConcatD BroadcastTo Tile AsStrided Gather GatherElements GatherV3
    IndexPutV2 ScatterElementsV2 NonZero LpNormV2 RmsNormGrad SwiGluGrad RotaryPositionEmbedding
    RotaryPositionEmbeddingGrad FlashAttentionScore FlashAttentionScoreGrad EmbeddingDenseGradV2
    ApplyAdamWV2 ApplyRotaryPosEmb AddRmsNorm AddRmsNormDynamicQuant SliceAiCore TransposeAiCore PadV3AiCore
    Relu ReluGrad LogSoftmaxV2 LogSoftmaxGrad NLLLoss NLLLossGrad Conv2D Conv2DBackpropFilter
    Conv2DBackpropInput DepthwiseConv2D MaxPoolWithArgmaxV1 MaxPoolGradWithArgmaxV1 AdaptiveAvgPool3d
    AdaptiveAvgPool3dGrad TopKV2 Tril TransData ApplyTopKTopPCustom _triton_rope PagedCacheLoadNdKernel
    DropOutDoMask ForeachAddList ForeachMulScalar

    MemSet DSAGenBitMask DSAStatelessGenBitMask _narrow_copy_flat_kernel main_kernel
    matmul_bias_activation_kernel
"""


def test_every_required_kernel_type_is_replayed_or_has_a_reason():
    assert sorted(set(REQUIRED.split()) - set(replays_of_bench()) - set(WITHOUT_REPLAY)) == []


def test_no_kernel_type_has_both_a_replay_and_a_reason_for_none():
    assert sorted(set(replays_of_bench()) & set(WITHOUT_REPLAY)) == []


def test_a_kernel_named_after_its_function_is_the_sibling_of_one_with_the_same_replay():
    """An NPU launches the kernel under its type: a row named after the function needs its sibling."""
    replays = replays_of_bench()
    named = [name for name in replays if base_type(name) != name]
    assert named
    assert [name for name in named if replays.get(base_type(name)) is not replays[name]] == []
    assert all(base_type(name) in siblings(name) and name in siblings(base_type(name)) for name in named)


def captured_types():
    found = set()
    for path in CAPTURES.rglob("*.csv"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                if "Task ID" in row:
                    found.add(row.get("Type") or row.get("OP Type") or "")
    return found - EMPTY_WORDS


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures next to the checkout")
def test_every_captured_type_is_replayed_or_has_a_reason():
    assert len(captured_types()) > 60
    assert sorted(captured_types() - set(replays_of_bench()) - set(WITHOUT_REPLAY)) == []


#: Kernel types without a capture here: of msmodeling's databases of an A3, under both names.
KNOWN_ELSEWHERE = {"mla_preprocess_0_mix_aic", "mla_preprocess"}


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures next to the checkout")
def test_types_without_a_capture_have_no_reason():
    assert sorted(set(WITHOUT_REPLAY) - captured_types() - KNOWN_ELSEWHERE) == []
