"""What libraries share: the arguments of replays with many of them, calls of one interface, and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor
from typing_extensions import dataclass_transform

from opatlas import Prepared, Unsupported
from opatlas.run.implementation import Support

HALF = (torch.bfloat16, torch.float16)
REAL = (*HALF, torch.float32)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass_transform(frozen_default=True)
class _ReplayCall:
    """The arguments of a replay, as a frozen dataclass; `of_npu` are further ones, which only an NPU reads."""

    of_npu: ClassVar[Sequence[str]]

    def __init_subclass__(cls, *, kw_only: bool = False, of_npu: str = "") -> None:
        cls.of_npu = of_npu.split()
        dataclass(frozen=True, kw_only=kw_only)(cls)


def takes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a function take the arguments of a replay as its last one, of the class that it is annotated with.

    A formula gets another one before. A missing argument, or one that the class does not have, is a TypeError.
    """
    *others, call = (kind for name, kind in get_type_hints(function).items() if name != "return")
    first = len(others)

    @wraps(function)
    def taking(*positional: Any, **named: Any) -> Any:
        read = {name: value for name, value in named.items() if name not in call.of_npu}
        return function(*positional[:first], call(*positional[first:], **read))

    # `inspect.signature` would tell the parameters of `function`.
    del taking.__wrapped__
    return taking


def launched(launch: Callable[[], object], outputs: Any, **how: Any) -> Prepared:
    """Returns the call of a kernel that writes into `outputs`; `how` are further attributes of Prepared."""

    def call() -> Any:
        launch()
        return outputs

    return Prepared(call, **how)


class _OfKeys(_ReplayCall):
    """What calls of attention have in common."""

    query: Tensor
    key: Tensor
    value: Tensor


class Attention(_OfKeys, of_npu="atten_mask next_tokens"):
    """The arguments of FusedInferAttentionScore; see `fused_infer_attention_score` of torch."""

    num_heads: int
    scale: float
    input_layout: str
    num_key_value_heads: int
    actual_seq_lengths_kv: Sequence[int]
    actual_seq_lengths: Sequence[int] | None = None
    block_table: Tensor | None = None
    query_rope: Tensor | None = None
    key_rope: Tensor | None = None
    sparse_mode: int = 0
    block_size: int = 0
    softmax_lse_flag: bool = False
    pre_tokens: int = 0
    learnable_sink: Tensor | None = None

    @property
    def causal(self) -> bool:
        return self.sparse_mode > 0

    @property
    def window(self) -> int:
        """Returns how many keys before its own a query sees; -1 for all."""
        return self.pre_tokens if self.sparse_mode == 4 else -1


class RingMla(_ReplayCall, of_npu="kernel_type input_layout calc_type"):
    """The arguments of RINGMLAPrefillBF16Kernel; see `ring_mla` of torch."""

    q_nope: Tensor
    q_rope: Tensor
    k_nope: Tensor
    k_rope: Tensor
    value: Tensor
    mask: Tensor
    seqlen: Tensor
    head_num: int
    kv_head_num: int
    pre_out: Tensor | None
    prev_lse: Tensor | None
    qk_scale: float
    mask_type: str


class _Dense(_OfKeys, kw_only=True):
    """What calls of attention over sequences of one length have in common."""

    input_layout: str
    atten_mask: Tensor | None = None


class DenseAttention(_Dense, kw_only=True, of_npu="num_key_value_heads sparse_mode"):
    """The arguments of PromptFlashAttention and IncreFlashAttention; see `dense_attention` of torch."""

    num_heads: int
    scale_value: float


class FlashAttention(_Dense, kw_only=True, of_npu="sparse_mode"):
    """The arguments of FlashAttentionScore; see `flash_attention_score` of torch."""

    head_num: int
    scale: float


class FlashAttentionGrad(_Dense, of_npu="sparse_mode"):
    """The arguments of FlashAttentionScoreGrad; see `flash_attention_grad` of torch."""

    dy: Tensor
    head_num: int
    softmax_max: Tensor
    softmax_sum: Tensor
    attention_in: Tensor
    scale_value: float


class LightningIndexer(_ReplayCall, of_npu="layout_query layout_key sparse_mode"):
    """The arguments of LightningIndexer; see `lightning_indexer` of torch."""

    query: Tensor
    key: Tensor
    weights: Tensor
    actual_seq_lengths_query: Tensor
    actual_seq_lengths_key: Tensor
    block_table: Tensor
    sparse_count: int
    return_value: bool = False


class SparseFlashAttention(
    _OfKeys, of_npu="actual_seq_lengths_kv sparse_block_size layout_query layout_kv sparse_mode attention_mode"
):
    """The arguments of SparseFlashAttention; see `sparse_flash_attention` of torch."""

    sparse_indices: Tensor
    scale_value: float
    block_table: Tensor
    actual_seq_lengths_query: Tensor
    query_rope: Tensor
    key_rope: Tensor


class SparseAttentionScore(_OfKeys, of_npu="select_num_idx num_key_value_heads top_k inner_precise"):
    """The arguments of SparseAttentionScore; see `sparse_attention_score` of torch."""

    select_idx: Tensor
    block_table: Tensor
    actual_seq_lengths: Tensor
    actual_seq_lengths_kv: Tensor
    scale_value: float
    block_size: int


class NsaSelected(_OfKeys):
    """The arguments of NsaSelectedAttention; see `nsa_train_attention` of torch."""

    topk_indices: Tensor
    scale_value: float
    head_num: int
    select_block_size: int
    select_block_count: int
    actual_seq_qlen: Sequence[int]
    actual_seq_kvlen: Sequence[int]


class NsaSelectedInfer(NsaSelected, kw_only=True, of_npu="page_block_size layout"):
    """The arguments of NsaSelectedAttentionInfer; see `nsa_select_attention` of torch."""

    key_value_head_num: int
    block_table: Tensor


class NsaCompressAttention(_OfKeys):
    """The arguments of NsaCompressAttentionInfer; see `nsa_compress_attention` of torch."""

    scale_value: float
    head_num: int
    key_value_head_num: int
    select_block_size: int
    select_block_count: int
    page_block_size: int
    compress_block_size: int
    compress_stride: int
    block_table: Tensor
    actual_cmp_seq_kvlen: Sequence[int]


class NsaCompressInfer(_ReplayCall):
    """The arguments of NsaCompressWithCache; see `nsa_compress_infer` of torch."""

    input: Tensor
    weight: Tensor
    slot_mapping: Tensor
    compress_block_size: int
    compress_stride: int
    page_block_size: int
    block_table: Tensor
    actual_seq_len: Sequence[int]
    cache: Tensor


class _DeltaRule(_OfKeys):
    """What calls of the gated delta rule have in common."""

    beta: Tensor
    scale: float
    actual_seq_lengths: Tensor


class RecurrentDeltaRule(_DeltaRule, kw_only=True):
    """The arguments of RecurrentGatedDeltaRule; see `recurrent_gated_delta_rule` of torch."""

    state: Tensor
    ssm_state_indices: Tensor
    num_accepted_tokens: Tensor | None = None
    g: Tensor | None = None
    gk: Tensor | None = None


class ChunkDeltaRule(_DeltaRule, kw_only=True):
    """The arguments of ChunkGatedDeltaRule; see `chunk_gated_delta_rule` of torch."""

    initial_state: Tensor
    g: Tensor


class ChunkKda(_ReplayCall, of_npu="cu_seqlens layout output_final_state state_v_first"):
    """The arguments of ChunkKdaFwd; see `chunk_kda_fwd` of torch."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    scale: float
    chunk_size: int
    initial_state: Tensor


class ChunkScan(_ReplayCall):
    """The arguments of `mamba_chunk_scan` of torch, of Mamba2: B are keys, C queries."""

    x: Tensor
    dt: Tensor
    decay: Tensor
    keys: Tensor
    queries: Tensor
    skip: Tensor
    dt_bias: Tensor
    state: Tensor


class SelectiveUpdate(ChunkScan, kw_only=True):
    """The arguments of `selective_state_update` of torch."""

    state_batch_indices: Tensor


class CausalConv1d(_ReplayCall):
    """The arguments of CausalConv1d; see `causal_conv1d` of torch."""

    output: Tensor
    x: Tensor
    weight: Tensor
    conv_state: Tensor
    bias_opt: Tensor | None
    query_start_loc_opt: Tensor
    cache_indices_opt: Tensor
    initial_state_mode_opt: Tensor | None
    num_accepted_tokens_opt: Tensor | None
    activation_mode: int
    pad_slot_id: int
    run_mode: int


class ApplyAdamW(_ReplayCall):
    """The arguments of ApplyAdamW; see `apply_adamw` of torch."""

    beta1_power: float
    beta2_power: float
    lr: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    gradient: Tensor
    max_grad_norm: Tensor | None
    amsgrad: bool
    maximize: bool
    out: Sequence[Tensor]


class QuantizedProduct(_ReplayCall, of_npu="x1_dtype x2_dtype scale_dtype pertoken_scale_dtype"):
    """The arguments of QuantBatchMatmulV3; see `quant_matmul` of torch."""

    x1: Tensor
    x2: Tensor
    scale: Tensor
    output_dtype: torch.dtype = torch.int8
    offset: Tensor | None = None
    bias: Tensor | None = None
    pertoken_scale: Tensor | None = None
    group_sizes: Sequence[int] | None = None


class GroupedProduct(_ReplayCall, of_npu="weight_dtype split_item group_type group_list_type"):
    """The arguments of GroupedMatmul; see `grouped_matmul` of torch."""

    x: Sequence[Tensor]
    weight: Sequence[Tensor]
    group_list: Tensor
    bias: Sequence[Tensor] | None = None
    scale: Sequence[Tensor] | None = None
    per_token_scale: Sequence[Tensor] | None = None
    antiquant_scale: Sequence[Tensor] | None = None
    antiquant_offset: Sequence[Tensor] | None = None
    output_dtype: torch.dtype | None = None


class Gating(_ReplayCall):
    """The arguments of MoeGatingTopK; see `moe_gating_top_k` of torch."""

    x: Tensor
    k: int
    bias: Tensor | None = None
    k_group: int = 1
    group_count: int = 1
    group_select_mode: int = 0
    norm_type: int = 0
    out_flag: bool = False

    @property
    def converted(self) -> Sequence[str]:
        return () if self.x.dtype is torch.float32 else ("weights to the dtype of the logits",)

    def results(self, found: Any) -> tuple[Tensor, Tensor, None]:
        """Returns weights in the dtype of the logits and experts, without the normalized logits."""
        return found[0].to(self.x.dtype), found[1], None

    def expect_groups_by_best_two(self, support: Support) -> None:
        best_two = self.group_count == 1 or self.group_select_mode == 1
        support.expect(best_two, "groups by their best expert", "groups by their best two")


def without_beta(add_rms_norm: Callable[..., Any], support: Support) -> Callable[..., Any]:
    """Returns the function of AddRmsNormBias of a library that has no beta."""

    def add_rms_norm_bias(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> Any:
        support.expect(beta is None, "a beta", "norms of a sum without beta")
        return add_rms_norm(x1, x2, gamma, epsilon)

    return add_rms_norm_bias


#: The axis of the heads in the layouts of ApplyRotaryPosEmb.
HEADS = {"TND": 1, "BSND": 2, "BNSD": 1}


def axis_of_heads(x: Tensor, cos: Tensor, support: Support) -> int:
    """Returns the axis of x along which all heads of a token have one angle: the last but one, or one before.

    Raises:
        Unsupported: no axis of this kind has two heads or more.
    """
    for axis in range(x.dim() - 2, 0, -1):
        if cos.shape[axis] == 1 < x.shape[axis]:
            return axis
    raise Unsupported(f"angles {tuple(cos.shape)} for {tuple(x.shape)}: {support.library} needs two heads or more")


def tokens_by_heads(x: Tensor, heads: int, support: Support) -> Tensor:
    """Returns a view (tokens, heads, D) of x, whose heads are the axis `heads`.

    Raises:
        Unsupported: the tokens of x have no single stride.
    """
    by_heads = x.movedim(heads, -2)
    try:
        return by_heads.view(-1, *by_heads.shape[-2:])
    except RuntimeError:
        raise Unsupported(f"shape {tuple(x.shape)}: {support.library} has one stride between tokens") from None


def rows_of_tokens(x: Tensor, cos: Tensor, heads: int, support: Support, dtype: torch.dtype = torch.int64) -> Tensor:
    """Returns for each token of x the number of its angles, as a row of cos (rows, D).

    Args:
        cos: x's shape with size 1 along the heads, and along other axes on which the angles do not depend.
        heads: the axis of the heads.

    Raises:
        Unsupported: the heads of a token have angles of their own.
    """
    support.expect(cos.shape[heads] == 1, f"angles {tuple(cos.shape)}", "angles for all heads of a token")
    rows = torch.arange(cos.shape[:-1].numel(), dtype=dtype, device=x.device).view(cos.shape[:-1])
    tokens = [1 if axis == heads else size for axis, size in enumerate(x.shape[:-1])]
    return rows.expand(tokens).reshape(-1)


def table_of_pairs(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a table (rows, D): the cosines of the D / 2 pairs of features, then their sines."""
    pairs = cos.shape[-1] // 2
    return torch.cat([angles[..., :pairs].reshape(-1, pairs).to(dtype) for angles in (cos, sin)], dim=-1)


def pairs_in_halves(x: Tensor) -> Tensor:
    """Returns x with the two features of each pair half a head apart, which are side by side in x."""
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)


def int32(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32, device=device)


def differences(ends: Sequence[int]) -> list[int]:
    """Returns the lengths of sequences that end at `ends`."""
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
