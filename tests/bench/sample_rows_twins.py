"""Rows of kernel types that a profiler also names after the function that launches them."""

from sample_rows import ROWS as ALL

#: The names, as captures have them, and the types whose rows they have.
TWINS = {
    "AdaptiveAvgPool3dAiCore": "AdaptiveAvgPool3d",
    "AdaptiveAvgPool3dGradAiCore": "AdaptiveAvgPool3dGrad",
    "ArangeAiCore": "Range",
    "ArgMaxV2AiCore": "ArgMaxV2",
    "AsStridedAiCore": "AsStrided",
    "BatchMatMulNd": "BatchMatMulV2",
    "BroadcastToAiCore": "BroadcastTo",
    "CastAiCore": "Cast",
    "DropoutDoMaskAiCore": "DropOutDoMask",
    "ClipByValueV2AiCore": "ClipByValueV2",
    "ExpAiCore": "Exp",
    "FillAiCore": "Fill",
    "PackAiCore": "Pack",
    "ReciprocalAiCore": "Reciprocal",
    "ReduceMeanAiCore": "ReduceMean",
    "RsqrtAiCore": "Rsqrt",
    "SquareAiCore": "Square",
    "StridedSliceAiCore": "StridedSlice",
    "GatherV2AiCore": "GatherV2",
    "GatherV3AiCore": "GatherV3",
    "IndexAiCore": "Index",
    "LayerNormV3WithImplMode": "LayerNormV3",
    "LogSoftmaxAiCore": "LogSoftmaxV2",
    "MaskedFillAiCore": "MaskedFill",
    "MaxPoolGradWithArgmaxV1AiCore": "MaxPoolGradWithArgmaxV1",
    "MaxPoolWithArgmaxV1AiCore": "MaxPoolWithArgmaxV1",
    "NLLLossAiCore": "NLLLoss",
    "NLLLossGradAiCore": "NLLLossGrad",
    "NonzeroAiCore": "NonZero",
    "OnesLikeAiCore": "OnesLike",
    "ReduceSumOpAiCore": "ReduceSum",
    "SoftmaxAiCore": "SoftmaxV2",
    "SortAiCore": "Sort",
    "TensorMoveAiCore": "TensorMove",
    "TileAiCore": "Tile",
    "ZerosLikeAiCore": "ZerosLike",
}

# The other families' rows are there: this file's name comes after theirs.
ROWS: dict[str, tuple[str, ...]] = {twin: ALL[kernel_type][:1] for twin, kernel_type in TWINS.items()}
