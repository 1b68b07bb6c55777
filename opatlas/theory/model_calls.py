"""The kernel calls of one step of a model, as rows of a database.

A step is one forward pass of an engine: the next token of each sequence (decode), or all tokens of each sequence
(prefill). The shapes of a call come from the catalog, and the sizes of the model's parts from its facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from opatlas.errors import UsageError
from opatlas.row.attention import Sequences
from opatlas.row.columns import EXPERT_LOAD
from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER
from opatlas.theory import model_step
from opatlas.theory.model_parts import BlockIndexer, Indexer, Latent, LinearAttention, RoutedExperts
from opatlas.theory.model_step import ModelCall
from opatlas.theory.models import ModelFacts
from opatlas.theory.step_calls import StepCalls

#: The pattern of each kind of gate.
_GATES = {"SwiGlu": "swiglu", "GeGluV2": "geglu", "ClippedSwiglu": "swiglu"}
#: Of each rule of linear attention the kernel types of decoded tokens, and of prompts.
_RULES = {
    "delta": ("RecurrentGatedDeltaRule", "ChunkGatedDeltaRule"),
    "kimi": ("RecurrentGatedDeltaRule", "ChunkKdaFwd"),
    "mamba": ("_selective_scan_update_kernel", "mamba_chunk_scan_combined_varlen"),
}


def model_calls(model: ModelFacts, *, nz_weights: bool = False, tier: int = 1, **step: Any) -> list[ModelCall]:
    """Returns the calls of one device in a step, in the order of their first launch. With stages, those of all.

    Attention and dense layers are divided among `tp` devices. With `ep` 1 the experts are divided like dense layers,
    among all replicas of the attention. Each replica has a batch of its own, and tokens travel between all of them.

    Args:
        model: see `opatlas.theory.sources.resolve_model`.
        nz_weights: whether weights are stored in FRACTAL_NZ, where the catalog has calls with it. Only NPUs have them.
        tier: the topology tier of the collectives.
        step: the fields of `opatlas.Step`.

    Raises:
        UsageError: the model cannot be divided so, a number or the dtype is impossible, or no row has the dtype of
            the weights.
    """
    return list(step_calls(model, model_step.Step(model.name, **step), nz_weights=nz_weights, tier=tier))


@lru_cache(maxsize=2)
def step_calls(
    model: ModelFacts, step: model_step.Step, *, nz_weights: bool = False, tier: int = 1
) -> tuple[ModelCall, ...]:
    """Returns the calls of a step, as `model_calls`. Those of the last step are kept: several stacks ask for them."""
    for name in ("tp", "ep", "pp"):
        if getattr(step, name) < 1:
            raise UsageError(f"{name} is {getattr(step, name)}: give a whole number above 0")
    if step.pp > model.layers:
        raise UsageError(f"pp {step.pp}: {model.name} has {model.layers} layers: give fewer stages")
    model.expect_division(step.tp, step.ep, step.replicas)
    return tuple(_ModelStep(model, step, model_step.step_dtype(model, step.dtype), nz_weights, tier).calls())


class _ModelStep(StepCalls):
    """The parts of one step of a model."""

    def calls(self) -> Iterator[ModelCall]:
        model = self.model
        layers = model.layers
        yield self.call("embedding", "GatherV2", "gather", vocab=-(-model.vocab // self.tp))
        yield from self.all_reduce("embedding_all_reduce", 0)
        if model.post_norms:
            yield self.call("embedding_scale", "Muls", "unary")
        # The first layer has nothing to add to its input.
        yield self.call("attention_norm", "RmsNorm", "rms_norm", 1)
        if model.mixers > 1:
            yield self.call("attention_norm", "AddRmsNorm", "add_rms_norm", model.mixers - 1)
        yield from self.attention() if model.latent is None else self.latent_attention(model.latent)
        yield from self.products("o_proj")
        if model.linear_attention is not None:
            yield from self.linear_attention(model.linear_attention)
        yield from self.all_reduce("attention_all_reduce", model.mixers)
        if model.post_norms:
            yield self.call("attention_post_norm", "RmsNorm", "rms_norm", layers)
        yield self.call("ffn_norm", "AddRmsNorm", "add_rms_norm", model.feed_forwards or layers)
        if dense := model.dense_layers:
            yield from self.feed_forward("", model.intermediate // self.tp, dense)
            yield from self.all_reduce("ffn_all_reduce", dense)
        if model.experts is not None:
            yield from self.experts(model.experts)
        if model.post_norms:
            yield self.call("ffn_post_norm", "RmsNorm", "rms_norm", layers)
        if self.step.pp > 1:
            # A broadcast among two devices.
            sent = self.collective("stage_send", BROADCAST, 2, self.tokens * model.hidden, 0)
            yield replace(sent, calls=self.step.pp - 1)
        yield self.call("final_norm", "AddRmsNorm", "add_rms_norm")
        lines = {"p": self.tokens, "m": self.outputs, "d": model.hidden}
        gathered = self.call("last_tokens", "GatherV3", "gather_angles", **lines)
        yield replace(self.call("last_tokens", "Index", "index_rows"), instead=gathered)
        for linear in self.linears("lm_head"):
            yield from self.product(linear, self.outputs, in_layers=False)
            if self.tp > 1:
                yield self.collective("logits_all_gather", ALL_GATHER, self.tp, self.outputs * linear.n, 0)
        yield self.call("logits_cast", "Cast", "unary", m=self.outputs, h=model.vocab)
        # The most probable token.
        yield self.call("sample", "ArgMaxV2", "argmax")

    def attention(self) -> Iterator[ModelCall]:
        """Yields the calls from the input of the attention to the input of its output projection."""
        model, layers = self.model, self.model.attention_layers
        yield from self.products("qkv")
        if model.head_norms:
            pattern = "rms_norm" if model.joint_norms else "head_rms_norm"
            for part, heads in (("query_norm", self.sizes["q"]), ("key_norm", self.sizes["kv"])):
                yield self.call(part, "RmsNorm", pattern, layers, g=heads, h=heads * model.head_dim)
            if model.joint_norms and self.tp > 1:
                # The sums of squares in float32, which each device has of its heads.
                yield self.collective("norm_all_reduce", ALL_REDUCE, self.tp, 4 * self.tokens, layers)
        yield from self.rope("rope", layers)
        yield self.call("cache", "ReshapeAndCacheNdKernel", "reshape_and_cache", layers)
        sliding, window = model.sliding
        full = layers - sliding - (model.blocks.layers if model.blocks is not None else 0)
        for group in model_step.alike_sequences(self.decoded):
            if full:
                yield self.attend("attention", "paged", full, group)
            if sliding:
                seen = [each._replace(keys=min(each.keys, window + each.queries - 1)) for each in group]
                yield self.attend("window_attention", "paged", sliding, seen)
        for group in model_step.alike_sequences(self.prompts):
            stem = "packed" if all(each.queries == each.keys for each in group) else "paged"
            if full:
                yield self.attend("attention", stem, full, group)
            if sliding:
                yield self.attend("window_attention", f"{stem}_window", sliding, group, before=window - 1)
        if model.blocks is not None:
            yield from self.block_attention(model.blocks)
        if model.gated_attention:
            for kernel_type, pattern in (("Sigmoid", "unary"), ("Mul", "binary")):
                yield self.call("attention_gate", kernel_type, pattern, layers, h=self.sizes["q"] * model.head_dim)

    def rope(self, part: str, layers: int, **heads: int) -> Iterator[ModelCall]:
        """Yields a rotary embedding. Engines for GPUs have a kernel that reads a table of all positions."""
        if not self.model.rotated:
            return
        rotated = {"d": self.model.rotated, **heads}
        from_table = self.call(part, "_triton_rope", "rope_from_table", layers, p=self.model.positions, **rotated)
        rope = self.call(part, "ApplyRotaryPosEmb", "apply_rotary_pos_emb", layers, **rotated)
        yield replace(rope, instead=from_table)

    def block_attention(self, own: BlockIndexer) -> Iterator[ModelCall]:
        """Yields the scores of blocks of keys for each query, the choice of the best, and the attention to these."""
        layers, heads, width = own.layers, max(own.index_n_heads // self.tp, 1), own.index_head_dim
        yield from self.products("indexer_qk")
        for part, g in (("indexer_query_norm", heads), ("indexer_key_norm", 1)):
            yield self.call(part, "RmsNorm", "head_rms_norm", layers, g=g, d=width)
        yield from self.rope("indexer_rope", layers, q=heads, kv=1)
        top = own.index_topk_blocks
        for group in model_step.alike_sequences(self.groups):
            scores, choice = "_decode_index_score_kernel", "_topk_index_kernel"
            yield self.of_sequences("indexer", scores, "index_scores", layers, group, q=heads, d=width)
            yield self.of_sequences("block_choice", choice, "chosen_blocks", layers, group, q=heads, top=top)
            yield self.of_sequences("block_attention", "SparseAttentionScore", "sparse_blocks", layers, group, top=top)

    def attend(self, part: str, pattern: str, layers: int, group: Sequence[Sequences], **sizes: int) -> ModelCall:
        """Returns the call of attention, with sinks if the model has them. Where no row has, one without answers."""

        def call(pattern: str) -> ModelCall:
            return self.of_sequences(part, "FusedInferAttentionScore", pattern, layers, group, **sizes)

        plain = call(pattern if "_" in pattern else f"{pattern}_attention")
        return replace(call(f"{pattern}_sinks"), instead=plain) if self.model.sinks else plain

    def latent_attention(self, latent: Latent) -> Iterator[ModelCall]:
        layers, indexer = self.model.attention_layers, self.model.indexer
        yield from self.products(*(("q_kv_a",) if self.linears("q_kv_a") else ("q_a", "kv_a")))
        if latent.q_lora_rank:
            yield self.call("query_norm", "RmsNorm", "rms_norm", layers, h=latent.q_lora_rank)
        yield from self.products("q_b", "q")
        if self.model.rotated:
            yield self.call("rope", "InterleaveRope", "interleave_rope", layers)
        # Sparse attention has absorbed products for prompts, too.
        prompts = [] if indexer is not None else self.prompts
        absorbed = self.decoded if indexer is None else self.groups
        pattern = "kv_rms_norm_rope_cache_prefill" if prompts else "kv_rms_norm_rope_cache"
        yield self.call("cache", "KvRmsNormRopeCache", pattern, layers)
        if absorbed:
            tokens = self.tokens - model_step.count_queries(prompts)
            yield self.call("query_absorb", "BatchMatMulV2", "batch_matmul", layers, m=tokens)
            if indexer is None:
                for group in model_step.alike_sequences(absorbed):
                    yield self.of_sequences("attention", "FusedInferAttentionScore", "latent_attention", layers, group)
            else:
                yield from self.indexed_attention(indexer, absorbed)
            yield self.call("value_up", "TransposeBatchMatMul", "transpose_batch_matmul", layers, m=tokens)
        if prompts:
            yield from self.products("kv_b", tokens=sum(group.n * group.keys for group in prompts))
        # A row of this kernel has one sequence.
        for count, queries, keys in prompts:
            ring = "RINGMLAPrefillBF16Kernel"
            yield self.call("attention", ring, "ring_first", layers, calls=count, t=queries)
            if before := keys - queries:
                load = "PagedCacheLoadNdKernel"
                yield self.call("prefix_load", load, "paged_cache_load", layers, s=count, length=before)
                yield self.call("prefix_attention", ring, "ring_later", layers, calls=count, t=queries, k=before)

    def indexed_attention(self, indexer: Indexer, groups: Sequence[Sequences]) -> Iterator[ModelCall]:
        """Yields the cache of the indexer, the selection of keys for each query, and the attention to them."""
        layers, top = self.model.attention_layers, indexer.index_topk
        heads = {"q": indexer.index_n_heads, "d": indexer.index_head_dim, "top": top}
        yield from self.products("indexer_q", "indexer_k", "indexer_weights")
        yield self.call("indexer_cache", "ScatterNdUpdate", "scatter_rows", indexer.layers, **heads)
        for group in model_step.alike_sequences(groups):
            yield self.of_sequences("indexer", "LightningIndexer", "lightning_indexer", indexer.layers, group, **heads)
            yield self.of_sequences("attention", "SparseFlashAttention", "sparse_attention", layers, group, top=top)

    def linear_attention(self, own: LinearAttention) -> Iterator[ModelCall]:
        """Yields the calls of layers whose state takes the place of a cache."""
        sizes = dict(zip(("q", "r", "d", "dv", "taps"), own.sizes(self.tp), strict=True))
        name, kinds = "mamba" if own.rule == "mamba" else "delta", ("", "_prefill")

        def call(part: str, kernel_type: str, pattern: str, **others: int) -> ModelCall:
            return self.call(part, kernel_type, pattern, own.layers, **{**sizes, **others})

        yield from self.products(*(role for role, _, _ in own.products))
        # Whether a group of sequences has prompts, their number, the queries of each.
        parts = [
            (number, sum(each.n for each in group), group[0].queries)
            for number, sequences in enumerate((self.decoded, self.prompts))
            for group in model_step.alike_sequences(sequences)
        ]
        for is_prompt, s, t in parts:
            yield call("convolution", "CausalConv1d", f"causal_conv1d{kinds[is_prompt]}", s=s, t=t)
        if own.rule == "kimi":
            yield call("delta_gates", "kda_gate_fwd_kernel", "kda_gate")
            yield call("delta_shares", "Sigmoid", "unary", h=sizes["q"])
        elif own.rule == "delta":
            yield call("delta_gates", "fused_gdn_gating_kernel", "gdn_gating")
        for is_prompt, s, t in parts:
            # Mamba2 reads drafted tokens one after the other.
            s, t = (s * t, 1) if own.rule == "mamba" and not is_prompt else (s, t)
            drafts = "_drafts" if own.rule == "delta" and t > 1 and not is_prompt else ""
            pattern = f"{('recurrent', 'chunk')[is_prompt]}_{own.rule}_rule{drafts}"
            yield call(f"{name}_rule", _RULES[own.rule][is_prompt], pattern, s=s, t=t)
        rows, width = own.norm(self.tp)
        yield call(f"{name}_norm", "_layer_norm_fwd_1pass_kernel_npu", "gated_rms_norm", q=rows, dv=width)
        yield from self.products("out_proj")

    def feed_forward(self, prefix: str, width: int, layers: int) -> Iterator[ModelCall]:
        """Yields the calls of a feed-forward network that all tokens pass."""
        yield from self.products(f"{prefix}gate_up", f"{prefix}up")
        yield from self.gate(f"{prefix}act", layers, w=width)
        yield from self.products(f"{prefix}down")

    def experts(self, experts: RoutedExperts) -> Iterator[ModelCall]:
        """Yields the calls of mixtures of experts."""
        hidden, tokens, layers, ep = self.model.hidden, self.tokens, experts.layers, self.step.ep
        travels = ep > self.tp
        # Where the width is divided among replicas, each device has the tokens of all of them.
        replicas = 1 if ep > 1 else self.step.replicas
        # Where tokens travel, each of `tp` devices sends its share of them.
        own = -(-tokens // self.tp) if travels else tokens * replicas
        width = experts.width if ep > 1 else experts.width // (self.tp * replicas)
        # All wait for the device whose experts are chosen most.
        rows, chosen = experts.of_busiest(tokens * self.step.replicas, ep)
        is_random = self.step.routing == "random"
        rows = rows if is_random else -(-tokens * self.step.replicas * experts.top_k // ep)
        inner = experts.latent or hidden
        router = {"m": own, "e": experts.count, "top": experts.top_k, "h": inner}
        if replicas > 1:
            yield self.collective("tokens_all_gather", ALL_GATHER, replicas, tokens * hidden, layers)
        yield from self.products("router", tokens=own)
        gating = "moe_gating_plain" if experts.by_softmax else "moe_gating"
        yield self.call("gating", "MoeGatingTopK", gating, layers, **router)
        yield from self.products("experts_in", tokens=own)
        yield self.call("permute", "MoeTokenPermute", "moe_permute", layers, **router)
        if travels:
            yield self.collective("dispatch", ALL_TO_ALL, ep, own * experts.top_k * inner, layers)
        # Without a gate the first product has the pattern of the second one.
        first = ("gate_up", "gate_up", width, inner) if self.model.gates else ("up", "down", inner, width)
        for part, stem, w, h in (first, ("down", "down", width, inner)):
            # Tokens are quantized before they are copied.
            of_rows = (rows, width) if part == "down" else (own, inner)
            yield from self.quantization(f"experts_{part}", *of_rows, layers)
            scaled = "_blocks" if self.scales == "blocks" else "_quantized"
            patterns = [f"grouped_{stem}{scaled if self.quantized else ''}"]
            if f"experts_{part}" in self.model.biases and not self.quantized:
                patterns.append(f"grouped_{stem}_bias")
            grouped: ModelCall | None = None
            for pattern in patterns:
                of = partial(self.call, f"experts_{part}", "GroupedMatmul", pattern, layers, m=rows, w=w, h=h)
                found = replace(of(e=experts.count // ep), instead=grouped)
                if is_random:
                    # Weights of experts without rows are not read.
                    found = replace(found, cells={**found.cells, EXPERT_LOAD: "random"}, nearest=of(e=chosen).cells)
                grouped = found
            assert grouped is not None
            yield grouped
            if part != "down":
                yield from self.gate("experts_act", layers, m=rows, w=width)
        if travels:
            yield self.collective("combine", ALL_TO_ALL, ep, own * experts.top_k * inner, layers)
        yield self.call("unpermute", "MoeTokenUnpermute", "moe_unpermute", layers, **router)
        yield from self.products("experts_out", tokens=own)
        if travels and self.tp > 1:
            yield self.collective("experts_all_gather", ALL_GATHER, self.tp, own * hidden, layers)
        if replicas > 1:
            yield self.collective("tokens_reduce_scatter", REDUCE_SCATTER, replicas, tokens * hidden, layers)
        if experts.shared:
            yield from self.feed_forward("shared_", experts.shared // self.tp, layers)
            yield from self.products("shared_expert_gate")
            if travels:
                yield from self.all_reduce("shared_all_reduce", layers)
            yield self.call("experts_add", "Add", "binary", layers)
        if not travels:
            yield from self.all_reduce("experts_all_reduce", layers)

    def gate(self, part: str, layers: int, **sizes: int) -> Iterator[ModelCall]:
        """Yields the activation of a feed-forward network. SwiGlu answers where its own kernel type has no rows."""
        if not self.model.gates:
            for kernel_type in ("Relu", "Square"):
                yield self.call(part, kernel_type, "unary", layers, **sizes, h=sizes["w"])
            return
        found, swiglu = (
            self.call(part, kernel_type, pattern, layers, **sizes)
            for kernel_type, pattern in ((self.model.activation, _GATES[self.model.activation]), ("SwiGlu", "swiglu"))
        )
        yield found if found.kernel_type == "SwiGlu" else replace(found, instead=swiglu)
