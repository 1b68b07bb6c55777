"""The kernel calls of one step of a model, as rows of a database.

A step is one forward pass of an engine: the next token of each sequence (decode), or all tokens of each sequence
(prefill). The shapes of a call come from the catalog, and the sizes of the model's parts from its facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from statistics import mean
from typing import Any

from opatlas.errors import UsageError
from opatlas.row.attention import Sequences, keys_of
from opatlas.row.columns import EXPERT_LOAD, INPUT_DTYPES, MESSAGE, RUNTIME_PREFIX
from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, Collective
from opatlas.row.slots import FP8, known_dtype
from opatlas.theory import model_step
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.model_step import ModelCall
from opatlas.theory.models import ACTIVATIONS, DeltaNet, Indexer, Latent, Linear, ModelFacts, RoutedExperts
from opatlas.theory.patterns import NZ, Form, Pattern
from opatlas.theory.sources import NOT_QUANTIZED
from opatlas.theory.space import pattern_row

#: Kernel types of one computation with equal rows; a device runs one of them.
_TWINS = (("MatMulV2", "MatMulV3", "MatMulCommon"), ("AddRmsNorm", "AddRmsNormBias"))
#: The pattern of each kind of gate.
_GATES = {"SwiGlu": "swiglu", "GeGluV2": "geglu", "ClippedSwiglu": "swiglu"}
#: Tokens of a page of the cache, as in the catalog's patterns of caches.
_PAGE = 128
#: Patterns with keys and values in a cache: input slots 1 and 2.
_IN_CACHE = ("paged_", "latent_attention", "sparse_attention")


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


@dataclass(frozen=True)
class _ModelStep:
    """One step of a model on one of its devices."""

    model: ModelFacts
    step: model_step.Step
    dtype: str
    nz_weights: bool
    tier: int

    @property
    def tp(self) -> int:
        return self.step.tp

    @cached_property
    def groups(self) -> list[Sequences]:
        return self.step.groups()

    @cached_property
    def decoded(self) -> list[Sequences]:
        return [group for group in self.groups if not group.is_prompt]

    @cached_property
    def prompts(self) -> list[Sequences]:
        return [group for group in self.groups if group.is_prompt]

    @cached_property
    def tokens(self) -> int:
        """The tokens of the step, with those that fill the next captured graph."""
        tokens = model_step.count_queries(self.groups)
        return self.step.graph_size(tokens) or tokens

    @cached_property
    def outputs(self) -> int:
        """The tokens whose logits are computed: the last one of each prompt, all others."""
        return model_step.count_queries(self.decoded) + sum(group.n for group in self.prompts)

    @property
    def activation(self) -> str:
        """The dtype of activations."""
        return self.dtype if self.dtype in ACTIVATIONS else "BF16"

    @property
    def quantized(self) -> bool:
        return self.dtype in model_step.QUANTIZED

    @property
    def scales(self) -> str:
        """The scales of quantized products, as the catalog's patterns name them."""
        return (self.dtype in FP8 and self.model.scales) or "per_token"

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the step by the catalog's variables, for all calls that name no others."""
        model, latent = self.model, self.model.latent
        # Tokens of the step and of its output, and pages of the cache.
        sizes = {"m": self.tokens, "b": self.outputs, "h": model.hidden, "vocab": model.vocab}
        sizes |= {"blocks": sum(group.n * -(-group.keys // _PAGE) for group in self.groups)}
        sizes |= {"q": model.heads // self.tp, "kv": model.kv_heads_on_device(self.tp), "d": model.head_dim}
        if latent is not None:
            sizes |= {"lora": latent.kv_lora_rank, "v": latent.v_head_dim}
            sizes |= {"nope": latent.qk_nope_head_dim, "rope": latent.qk_rope_head_dim}
        return sizes

    def calls(self) -> Iterator[ModelCall]:
        model = self.model
        layers = model.layers
        yield self.call("embedding", "GatherV2", "gather", vocab=-(-model.vocab // self.tp))
        yield from self.all_reduce("embedding_all_reduce", 0)
        if model.post_norms:
            yield self.call("embedding_scale", "Muls", "unary")
        # The first layer has nothing to add to its input.
        yield self.call("attention_norm", "RmsNorm", "rms_norm", 1)
        if layers > 1:
            yield self.call("attention_norm", "AddRmsNorm", "add_rms_norm", layers - 1)
        yield from self.attention() if model.latent is None else self.latent_attention(model.latent)
        yield from self.products("o_proj")
        if model.delta is not None:
            yield from self.delta_net(model.delta)
        yield from self.all_reduce("attention_all_reduce", layers)
        if model.post_norms:
            yield self.call("attention_post_norm", "RmsNorm", "rms_norm", layers)
        yield self.call("ffn_norm", "AddRmsNorm", "add_rms_norm", layers)
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
        # Engines for GPUs have a kernel that reads a table of all positions.
        rotated = {"d": model.rotated or model.head_dim}
        from_table = self.call("rope", "_triton_rope", "rope_from_table", layers, p=model.positions, **rotated)
        rope = self.call("rope", "ApplyRotaryPosEmb", "apply_rotary_pos_emb", layers, **rotated)
        yield replace(rope, instead=from_table)
        yield self.call("cache", "ReshapeAndCacheNdKernel", "reshape_and_cache", layers)
        sliding, window = model.sliding
        for group in model_step.alike_sequences(self.decoded):
            if layers > sliding:
                yield self.attend("attention", "paged", layers - sliding, group)
            if sliding:
                seen = [each._replace(keys=min(each.keys, window + each.queries - 1)) for each in group]
                yield self.attend("window_attention", "paged", sliding, seen)
        for group in model_step.alike_sequences(self.prompts):
            stem = "packed" if all(each.queries == each.keys for each in group) else "paged"
            if layers > sliding:
                yield self.attend("attention", stem, layers - sliding, group)
            if sliding:
                yield self.attend("window_attention", f"{stem}_window", sliding, group, before=window - 1)
        if model.gated_attention:
            for kernel_type, pattern in (("Sigmoid", "unary"), ("Mul", "binary")):
                yield self.call("attention_gate", kernel_type, pattern, layers, h=self.sizes["q"] * model.head_dim)

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
        """Yields the selection of keys for each query, and the attention to them."""
        layers, top = self.model.attention_layers, indexer.index_topk
        heads = {"q": indexer.index_n_heads, "d": indexer.index_head_dim, "top": top}
        yield from self.products("indexer_q", "indexer_k", "indexer_weights")
        for group in model_step.alike_sequences(groups):
            yield self.of_sequences("indexer", "LightningIndexer", "lightning_indexer", indexer.layers, group, **heads)
            yield self.of_sequences("attention", "SparseFlashAttention", "sparse_attention", layers, group, top=top)

    def delta_net(self, delta: DeltaNet) -> Iterator[ModelCall]:
        """Yields the calls of layers with a gated delta net."""
        keys, values = delta.linear_num_key_heads // self.tp, delta.linear_num_value_heads // self.tp
        sizes = {"q": keys, "r": values // keys, "d": delta.linear_key_head_dim, "dv": delta.linear_value_head_dim}
        sizes |= {"taps": delta.linear_conv_kernel_dim}

        def call(part: str, kernel_type: str, pattern: str, **others: int) -> ModelCall:
            return self.call(part, kernel_type, pattern, delta.layers, **sizes, **others)

        yield from self.products("in_proj_qkvz", "in_proj_ba")
        parts = [(group, "", "RecurrentGatedDeltaRule") for group in model_step.alike_sequences(self.decoded)]
        parts += [(group, "_prefill", "ChunkGatedDeltaRule") for group in model_step.alike_sequences(self.prompts)]
        lengths = [{"s": sum(each.n for each in group), "t": group[0].queries} for group, *_ in parts]
        for (_, phase, _), of_group in zip(parts, lengths, strict=True):
            yield call("convolution", "CausalConv1d", f"causal_conv1d{phase}", **of_group)
        yield call("delta_gates", "fused_gdn_gating_kernel", "gdn_gating")
        for (_, phase, kernel_type), of_group in zip(parts, lengths, strict=True):
            drafts = "_drafts" if of_group["t"] > 1 else ""
            pattern = "chunk_gated_delta_rule" if phase else f"recurrent_gated_delta_rule{drafts}"
            yield call("delta_rule", kernel_type, pattern, **of_group)
        yield call("delta_norm", "_layer_norm_fwd_1pass_kernel_npu", "gated_rms_norm")
        yield from self.products("out_proj")

    def feed_forward(self, prefix: str, width: int, layers: int) -> Iterator[ModelCall]:
        """Yields the calls of a feed-forward network that all tokens pass."""
        yield from self.products(f"{prefix}gate_up")
        yield self.gate(f"{prefix}act", layers, w=width)
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
        router = {"m": own, "e": experts.count, "top": experts.top_k}
        if replicas > 1:
            yield self.collective("tokens_all_gather", ALL_GATHER, replicas, tokens * hidden, layers)
        yield from self.products("router", tokens=own)
        gating = "moe_gating_plain" if experts.by_softmax else "moe_gating"
        yield self.call("gating", "MoeGatingTopK", gating, layers, **router)
        yield self.call("permute", "MoeTokenPermute", "moe_permute", layers, **router)
        if travels:
            yield self.collective("dispatch", ALL_TO_ALL, ep, own * experts.top_k * hidden, layers)
        for part, size in (("gate_up", hidden), ("down", width)):
            # Tokens are quantized before they are copied.
            yield from self.quantization(f"experts_{part}", own if part == "gate_up" else rows, size, layers)
            scaled = "_blocks" if self.scales == "blocks" else "_quantized"
            patterns = [f"grouped_{part}{scaled if self.quantized else ''}"]
            if f"experts_{part}" in self.model.biases and not self.quantized:
                patterns.append(f"grouped_{part}_bias")
            grouped: ModelCall | None = None
            for pattern in patterns:
                of = partial(self.call, f"experts_{part}", "GroupedMatmul", pattern, layers, m=rows, w=width)
                found = replace(of(e=experts.count // ep), instead=grouped)
                if is_random:
                    # Weights of experts without rows are not read.
                    found = replace(found, cells={**found.cells, EXPERT_LOAD: "random"}, nearest=of(e=chosen).cells)
                grouped = found
            assert grouped is not None
            yield grouped
            if part == "gate_up":
                yield self.gate("experts_act", layers, m=rows, w=width)
        if travels:
            yield self.collective("combine", ALL_TO_ALL, ep, own * experts.top_k * hidden, layers)
        yield self.call("unpermute", "MoeTokenUnpermute", "moe_unpermute", layers, **router)
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

    def gate(self, part: str, layers: int, **sizes: int) -> ModelCall:
        """Returns the activation of a feed-forward network. SwiGlu answers where its own kernel type has no rows."""
        found, swiglu = (
            self.call(part, kernel_type, pattern, layers, **sizes)
            for kernel_type, pattern in ((self.model.activation, _GATES[self.model.activation]), ("SwiGlu", "swiglu"))
        )
        return found if found.kernel_type == "SwiGlu" else replace(found, instead=swiglu)

    def linears(self, role: str) -> list[Linear]:
        return [linear for linear in self.model.linears(self.tp) if linear.name == role]

    def products(self, *roles: str, tokens: int = 0) -> Iterator[ModelCall]:
        """Yields the products with the model's weights of some roles."""
        for role in roles:
            for linear in self.linears(role):
                yield from self.product(linear, tokens or self.tokens)

    def product(self, linear: Linear, tokens: int, in_layers: bool = True) -> Iterator[ModelCall]:
        name, layers, calls = linear.name, *((linear.calls, 1) if in_layers else (0, linear.calls))
        kernel_type, pattern = "MatMulV2", "matmul"
        if self.quantized and name not in NOT_QUANTIZED:
            kernel_type, pattern = "QuantBatchMatmulV3", f"quant_matmul_{self.scales}"
            yield from self.quantization(name, tokens, linear.k, layers, calls)
        found = self.call(name, kernel_type, pattern, layers, calls, m=tokens, n=linear.n, k=linear.k)
        if name in self.model.biases and pattern == "matmul":
            # Where no row has a bias, the product without it answers.
            biased = self.call(name, kernel_type, "matmul_bias", layers, calls, m=tokens, n=linear.n, k=linear.k)
            found = replace(biased, instead=found)
        yield found

    def quantization(self, name: str, tokens: int, size: int, layers: int, calls: int = 1) -> Iterator[ModelCall]:
        """Yields the quantization of a product's input. With one scale, known before, the kernel before does it."""
        if self.quantized and self.scales != "per_tensor":
            by_token = ("DynamicQuant", "dynamic_quant")
            kernel = ("DynamicBlockQuant", "dynamic_block_quant") if self.scales == "blocks" else by_token
            yield self.call(f"{name}_quant", *kernel, layers, calls, m=tokens, h=size)

    def all_reduce(self, part: str, layers: int) -> Iterator[ModelCall]:
        """Yields the sum of a layer's results over the devices that share the layer."""
        if self.tp > 1:
            yield self.collective(part, ALL_REDUCE, self.tp, self.tokens * self.model.hidden, layers)

    def collective(self, part: str, collective: Collective, devices: int, elements: int, layers: int) -> ModelCall:
        known = known_dtype(self.activation)
        assert known is not None
        message = collective.message_bytes(elements * known.bytes, devices, known.bytes)
        cells = dict(zip(MESSAGE, (str(message), str(devices), f"DT_{known.name}", str(self.tier)), strict=True))
        return ModelCall(part, collective.kernel_type, cells, 1, layers)

    def call(
        self, part: str, kernel_type: str, pattern: str, layers: int = 0, calls: int = 1, **others: int
    ) -> ModelCall:
        """Returns a call by a pattern of the catalog; `others` are sizes that differ from those of the step."""
        found = _pattern(kernel_type, pattern)
        sizes = {**self.sizes, **others}
        for axis in found.axes:
            if axis.name == "blocks":
                # The pages of the cache: the least number of the catalog that holds all sequences.
                sizes["blocks"] = next((size for size in axis.grid if size >= sizes["blocks"]), sizes["blocks"])
        row = pattern_row(kernel_type, found, self.form(found.forms), sizes)
        twins = next((names for names in _TWINS if kernel_type in names), ())
        return ModelCall(
            part, kernel_type, row.cells, calls, layers, tuple(name for name in twins if name != kernel_type)
        )

    def of_sequences(
        self, part: str, kernel_type: str, pattern: str, layers: int, group: Sequence[Sequences], **others: int
    ) -> ModelCall:
        """Returns the call for sequences with equally many queries; their numbers of keys may differ."""
        keys = keys_of(group)
        found = self.call(part, kernel_type, pattern, layers, s=len(keys), t=group[0].queries, k=max(keys), **others)
        cells = dict(found.cells)
        if min(keys) != max(keys):
            cells[RUNTIME_PREFIX + "avg_seq_len"] = str(round(mean(keys)))
            if (lengths := RUNTIME_PREFIX + "actual_seq_lengths_kv_values") in cells:
                cells[lengths] = ",".join(map(str, keys))
        cached = model_step.cache_dtype(self.model, self.step, self.activation)
        if not pattern.startswith(_IN_CACHE) or cached == self.activation:
            return replace(found, cells=cells)
        dtypes = cells[INPUT_DTYPES].split(";")
        dtypes[1:3] = cached, cached
        return replace(found, cells={**cells, INPUT_DTYPES: ";".join(dtypes)}, nearest=cells)

    def form(self, forms: Sequence[Form]) -> Form:
        """Returns the form with the step's dtypes, and with weights in FRACTAL_NZ if they are stored so."""
        if self.quantized:
            own = [form for form in forms if self.dtype in (*form.input_dtypes, *form.output_dtypes)]
            other = {*model_step.QUANTIZED, *FP8}
            forms = own or [form for form in forms if not other & {*form.input_dtypes, *form.output_dtypes}] or forms
        in_nz = [form for form in forms if NZ in form.input_formats]
        form = in_nz[0] if self.nz_weights and in_nz else forms[0].in_nd()
        return form.with_activations(self.activation)


def _pattern(kernel_type: str, name: str) -> Pattern:
    return built_in_catalog().kernel(kernel_type).pattern(name)
