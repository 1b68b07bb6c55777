"""Slots that hold no scalar: an optional tensor that a call leaves out, whatever dtype a profiler gives the slot.

CANN 8.5 and later give an absent input the default dtype of the kernel's definition, older versions DT_UNDEFINED. Both
have no dimensions, and so has a scalar of an elementwise kernel. Which of the two a slot holds follows from the kernel.

Source: the definitions of the kernels (`*_def.cpp`, `*_proto.h`) in CANN's ops-nn and ops-transformer.
"""

from __future__ import annotations

import sys
from functools import cache

from opatlas.row.siblings import base_type

#: Numbers of slots.
SlotNumbers = range | frozenset[int]
NO_SLOTS = range(0)
ALL_SLOTS = range(sys.maxsize)

#: Kernel types with optional tensors and without scalars.
_WITHOUT_SCALARS = frozenset(
    {
        *("FlashAttentionScore", "FlashAttentionScoreGrad", "FusedInferAttentionScore", "IncreFlashAttention"),
        *("KvRmsNormRopeCache", "LightningIndexer", "LightningIndexerVllm", "MlaProlog", "MlaPrologV2", "MlaPrologV3"),
        *("PromptFlashAttention", "RINGMLAPrefillBF16Kernel", "RotaryPositionEmbeddingGrad", "ScaledMaskedSoftmaxV2"),
        *("SparseFlashAttention", "ApplyTopKTopPCustom"),
        *("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D", "Conv2DV2", "GroupedMatmul"),
        *("GroupedMatmulFinalizeRouting", "GroupedMatmulSwigluQuant", "GroupedMatmulSwigluQuantV2", "MatMul"),
        *("MatMulCommon", "MatMulV2", "MatMulV3", "QuantBatchMatmulV3", "QuantBatchMatmulV4", "TransposeBatchMatMul"),
        "WeightQuantBatchMatmulV2",
        *("DispatchFFNCombine", "DispatchFFNCombineBF16", "MoeDistributeCombine", "MoeDistributeCombineV2"),
        *("MoeDistributeDispatch", "MoeDistributeDispatchV2", "MoeFinalizeRoutingV2", "MoeGatingTopK"),
        *("MoeGatingTopKSoftmax", "MoeInitRoutingV3", "MoeReRouting", "MoeTokenUnpermute", "MoeTokenUnpermuteGrad"),
        *("AddLayerNorm", "AddRmsNormBias", "AddRmsNormDynamicQuant", "AddRmsNormQuant", "LayerNormV4"),
        *("AscendQuantV2", "DequantSwigluQuant", "DynamicQuant", "DynamicQuantV2", "SwiGluQuant"),
    }
)
#: The optional tensors among the inputs of kernel types that take scalars, too.
_OPTIONAL_INPUTS = {
    "ApplyAdamW": frozenset({11}),
    "ApplyAdamWV2": frozenset({5}),
    "NLLLoss": frozenset({2}),
}


@cache
def optional_inputs(kernel_type: str) -> SlotNumbers:
    """Returns the input slots that hold no scalar."""
    name = base_type(kernel_type)
    return ALL_SLOTS if name in _WITHOUT_SCALARS else _OPTIONAL_INPUTS.get(name, NO_SLOTS)


@cache
def optional_outputs(kernel_type: str) -> SlotNumbers:
    """Returns the output slots that hold no scalar."""
    return ALL_SLOTS if base_type(kernel_type) in _WITHOUT_SCALARS else NO_SLOTS
