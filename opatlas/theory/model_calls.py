"""The kernel calls of one step of a model, as rows of a database.

A step is one forward pass of an engine: the next token of each sequence (decode), or all tokens of each sequence
(prefill). The shapes of a call come from the catalog, and the sizes of the model's parts from its facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from opatlas.errors import OpAtlasError, UsageError
from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, Collective
from opatlas.row.signature import signature
from opatlas.row.slots import FP8, known_dtype
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.models import DeltaNet, Latent, Linear, ModelFacts, RoutedExperts
from opatlas.theory.patterns import NZ, Form, Pattern
from opatlas.theory.sources import NOT_QUANTIZED
from opatlas.theory.space import pattern_row

Phase = Literal["prefill", "decode"]

#: Kernel types of one computation with equal rows; a device runs one of them.
_TWINS = (("MatMulV2", "MatMulV3", "MatMulCommon"), ("AddRmsNorm", "AddRmsNormBias"))
#: Tokens of a page of the cache, as in the catalog's patterns of caches.
_PAGE = 128
#: dtypes of activations, and dtypes of quantized products, whose activations are BF16.
_ACTIVATIONS = ("BF16", "FLOAT16")
_QUANTIZED = ("INT8", "FLOAT8_E4M3FN")


@dataclass(frozen=True)
class ModelCall:
    """The calls of a step with equal shapes that do the same work.

    Attributes:
        part: the part of the model, such as "qkv", "attention", "gate_up" or "ffn_all_reduce".
        kernel_type: the kernel type, or the collective.
        cells: the cells of the row of a database that has the call's duration.
        calls: calls in each of these layers, or in the step for a part outside of layers.
        layers: the number of layers with this part; 0 for a part outside of layers.
        twins: further kernel types whose row may have these cells.
    """

    part: str
    kernel_type: str
    cells: Mapping[str, str]
    calls: int
    layers: int
    twins: tuple[str, ...] = ()

    @property
    def calls_per_layer(self) -> int:
        """The calls in a layer that has this part; 0 for a part outside of layers."""
        return self.calls if self.layers else 0

    @property
    def calls_per_step(self) -> int:
        """The calls in all layers, or those outside of layers."""
        return self.calls * (self.layers or 1)

    def signature(self) -> str:
        """Returns the signature of the call's row."""
        return signature(self.kernel_type, self.cells)


def model_calls(
    model: ModelFacts,
    *,
    tp: int = 1,
    ep: int = 1,
    batch: int,
    context: int,
    phase: Phase,
    dtype: str = "",
    nz_weights: bool = False,
    tier: int = 1,
) -> list[ModelCall]:
    """Returns the calls of one device in a step, in the order of their first launch.

    Attention and dense layers are divided among `tp` devices. With `ep` 1 the experts are divided like dense layers.
    An `ep` of several times `tp` means as many replicas of the attention, each with a batch of its own, and
    tokens travel between all `ep` devices.

    Args:
        model: see `opatlas.theory.sources.resolve_model`.
        tp: the number of devices that share a layer.
        ep: the number of devices that share the experts: 1, or a multiple of `tp`.
        batch: sequences of a step of `tp` devices.
        context: tokens of each sequence, in decode with the token that is computed.
        dtype: BF16 or FLOAT16; or INT8 or FLOAT8_E4M3FN for quantized products between activations in BF16. Default:
            that of the model's weights.
        nz_weights: whether weights are stored in FRACTAL_NZ, where the catalog has calls with it. Only NPUs have them.
        tier: the topology tier of the collectives.

    Raises:
        UsageError: the model cannot be divided so, a number or the dtype is impossible, or no row has the dtype of
            the weights.
    """
    _expect_possible(model, tp, ep, batch, context, phase)
    step = _ModelStep(model, tp, ep, batch, context, phase == "prefill", step_dtype(model, dtype), nz_weights, tier)
    return list(step.calls())


def step_dtype(model: ModelFacts, asked: str = "") -> str:
    """Returns the dtype of a step: the one that is asked for, else that of the model's weights.

    Raises:
        UsageError: the dtype is none of a step, or none is asked for and no row has that of the weights.
    """
    dtypes = ", ".join((*_ACTIVATIONS, *_QUANTIZED))
    if not (asked or model.dtype):
        raise UsageError(
            f"{model.name} has {model.stored}, which no row has: give the dtype to answer them as, by --dtype, "
            f"dtype=NAME of --step, or dtype in Python: one of {dtypes}"
        )
    known = known_dtype(asked or model.dtype)
    if known is None or known.name not in (*_ACTIVATIONS, *_QUANTIZED):
        raise UsageError(f"{asked!r} is not a dtype of a model's step: give one of {dtypes}")
    return known.name


def call_cells(
    kernel_type: str, pattern: str, sizes: Mapping[str, int], *, dtype: str, nz: bool = False
) -> Mapping[str, str]:
    """Returns the cells of the row of a call by a pattern of the catalog.

    Args:
        sizes: the axes of the pattern, such as `m`, `n` and `k`.
        dtype: of an input.
        nz: whether the weight is in FRACTAL_NZ, as only NPUs have it; else all tensors are in ND.

    Raises:
        OpAtlasError: the pattern has no form with this dtype.
    """
    found = _pattern(kernel_type, pattern)
    forms = [form for form in found.forms if dtype in form.input_dtypes and (not nz or NZ in form.input_formats)]
    if not forms:
        raise OpAtlasError(f"{kernel_type}: the catalog has no call with {dtype}{f' and {NZ}' if nz else ''}")
    return pattern_row(kernel_type, found, forms[0] if nz else forms[0].in_nd(), sizes).cells


def _expect_possible(model: ModelFacts, tp: int, ep: int, batch: int, context: int, phase: str) -> None:
    for name, number in (("tp", tp), ("ep", ep), ("batch", batch), ("context", context)):
        if number < 1:
            raise UsageError(f"{name} is {number}: give a whole number above 0")
    if phase not in ("prefill", "decode"):
        raise UsageError(f"{phase!r} is not a phase: give 'prefill' or 'decode'")
    model.expect_division(tp, ep)


@dataclass(frozen=True)
class _ModelStep:
    """One step of a model on one of its devices."""

    model: ModelFacts
    tp: int
    ep: int
    batch: int
    context: int
    prefill: bool
    dtype: str
    nz_weights: bool
    tier: int

    @property
    def tokens(self) -> int:
        """The tokens of the step."""
        return self.batch * self.context if self.prefill else self.batch

    @property
    def activation(self) -> str:
        """The dtype of activations."""
        return self.dtype if self.dtype in _ACTIVATIONS else "BF16"

    @property
    def quantized(self) -> bool:
        return self.dtype in _QUANTIZED

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the step by the catalog's variables, for all calls that name no others."""
        model, latent = self.model, self.model.latent
        # Sequences, tokens of each and keys of each; tokens of the step and of its output.
        sizes = {"s": self.batch, "t": self.context if self.prefill else 1, "k": self.context}
        sizes |= {"m": self.tokens, "b": self.batch, "h": model.hidden, "vocab": model.vocab}
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
        # The first layer has nothing to add to its input.
        yield self.call("attention_norm", "RmsNorm", "rms_norm", 1)
        if layers > 1:
            yield self.call("attention_norm", "AddRmsNorm", "add_rms_norm", layers - 1)
        yield from self.attention() if model.latent is None else self.latent_attention(model.latent)
        yield from self.products("o_proj")
        if model.delta is not None:
            yield from self.delta_net(model.delta)
        yield from self.all_reduce("attention_all_reduce", layers)
        yield self.call("ffn_norm", "AddRmsNorm", "add_rms_norm", layers)
        if dense := model.dense_layers:
            yield from self.feed_forward("", model.intermediate // self.tp, dense)
            yield from self.all_reduce("ffn_all_reduce", dense)
        if model.experts is not None:
            yield from self.experts(model.experts)
        yield self.call("final_norm", "AddRmsNorm", "add_rms_norm")
        yield self.call("last_tokens", "Index", "index_rows")
        for linear in self.linears("lm_head"):
            yield from self.product(linear, self.batch, in_layers=False)
            if self.tp > 1:
                yield self.collective("logits_all_gather", ALL_GATHER, self.tp, self.batch * linear.n, 0)
        yield self.call("logits_cast", "Cast", "unary", m=self.batch, h=model.vocab)
        # The most probable token.
        yield self.call("sample", "ArgMaxV2", "argmax")

    def attention(self) -> Iterator[ModelCall]:
        """Yields the calls from the input of the attention to the input of its output projection."""
        model, layers = self.model, self.model.attention_layers
        yield from self.products("qkv")
        if model.head_norms:
            for part, heads in (("query_norm", self.sizes["q"]), ("key_norm", self.sizes["kv"])):
                yield self.call(part, "RmsNorm", "head_rms_norm", layers, g=heads)
        yield self.call("rope", "ApplyRotaryPosEmb", "apply_rotary_pos_emb", layers)
        yield self.call("cache", "ReshapeAndCacheNdKernel", "reshape_and_cache", layers)
        pattern = "packed_attention" if self.prefill else "paged_attention"
        yield self.call("attention", "FusedInferAttentionScore", pattern, layers)
        if model.gated_attention:
            gated = (self.tokens, self.sizes["q"] * model.head_dim)
            yield self.unknown("attention_gate", "SigmoidMul", layers, [gated] * 2, gated)

    def latent_attention(self, latent: Latent) -> Iterator[ModelCall]:
        layers, indexer = self.model.attention_layers, self.model.indexer
        yield from self.products(*(("q_kv_a",) if self.linears("q_kv_a") else ("q_a", "kv_a")))
        if latent.q_lora_rank:
            yield self.call("query_norm", "RmsNorm", "rms_norm", layers, h=latent.q_lora_rank)
        yield from self.products("q_b", "q")
        yield self.call("rope", "InterleaveRope", "interleave_rope", layers)
        # Sparse attention has absorbed products in both phases.
        absorbed = not self.prefill or indexer is not None
        pattern = "kv_rms_norm_rope_cache" if absorbed else "kv_rms_norm_rope_cache_prefill"
        yield self.call("cache", "KvRmsNormRopeCache", pattern, layers)
        if not absorbed:
            yield from self.products("kv_b")
            # A row of this kernel has one sequence.
            yield self.call("attention", "RINGMLAPrefillBF16Kernel", "ring_first", layers, calls=self.batch)
            return
        yield self.call("query_absorb", "BatchMatMulV2", "batch_matmul", layers)
        if indexer is None:
            yield self.call("attention", "FusedInferAttentionScore", "latent_attention", layers)
        else:
            yield from self.products("indexer_q", "indexer_k", "indexer_weights")
            heads = {"q": indexer.index_n_heads, "d": indexer.index_head_dim, "top": indexer.index_topk}
            yield self.call("indexer", "LightningIndexer", "lightning_indexer", indexer.layers, **heads)
            yield self.call("attention", "SparseFlashAttention", "sparse_attention", layers, top=indexer.index_topk)
        yield self.call("value_up", "TransposeBatchMatMul", "transpose_batch_matmul", layers)

    def delta_net(self, delta: DeltaNet) -> Iterator[ModelCall]:
        """Yields the calls of layers with a gated delta net: its products, and calls without rows."""
        m, layers, heads = self.tokens, delta.layers, delta.linear_num_value_heads // self.tp
        features, kernel = (m, (2 * delta.keys + delta.values) // self.tp), delta.linear_conv_kernel_dim
        values = (m, delta.values // self.tp)
        yield from self.products("in_proj_qkvz", "in_proj_ba")
        inputs = [features, (features[1], kernel), (self.batch, features[1], kernel - 1)]
        yield self.unknown("convolution", "CausalConvolution", layers, inputs, features)
        state = (self.batch, heads, delta.linear_key_head_dim, delta.linear_value_head_dim)
        yield self.unknown("delta_rule", "GatedDeltaRule", layers, [features, (m, 2 * heads), state], values)
        yield self.unknown("delta_norm", "GatedRmsNorm", layers, [values] * 2, values)
        yield from self.products("out_proj")

    def feed_forward(self, prefix: str, width: int, layers: int) -> Iterator[ModelCall]:
        """Yields the calls of a feed-forward network that all tokens pass."""
        yield from self.products(f"{prefix}gate_up")
        yield self.call(f"{prefix}act", "SwiGlu", "swiglu", layers, w=width)
        yield from self.products(f"{prefix}down")

    def experts(self, experts: RoutedExperts) -> Iterator[ModelCall]:
        """Yields the calls of mixtures of experts. Tokens are spread evenly over the experts."""
        hidden, tokens, layers = self.model.hidden, self.tokens, experts.layers
        travels = self.ep > self.tp
        # Where tokens travel, each of `tp` devices sends its share of them.
        own = -(-tokens // self.tp) if travels else tokens
        width = experts.width if self.ep > 1 else experts.width // self.tp
        rows = -(-tokens * experts.top_k // self.tp) if self.ep > 1 else tokens * experts.top_k
        router = {"m": own, "e": experts.count, "top": experts.top_k}
        yield from self.products("router", tokens=own)
        yield self.call("gating", "MoeGatingTopK", "moe_gating", layers, **router)
        yield self.call("permute", "MoeTokenPermute", "moe_permute", layers, **router)
        if travels:
            yield self.collective("dispatch", ALL_TO_ALL, self.ep, own * experts.top_k * hidden, layers)
        for part, size in (("gate_up", hidden), ("down", width)):
            if self.quantized:
                yield self.call(f"experts_{part}_quant", "DynamicQuant", "dynamic_quant", layers, m=rows, h=size)
            product = f"grouped_{part}{'_quantized' if self.quantized else ''}"
            grouped = {"m": rows, "e": experts.count // self.ep, "w": width}
            yield self.call(f"experts_{part}", "GroupedMatmul", product, layers, **grouped)
            if part == "gate_up":
                yield self.call("experts_act", "SwiGlu", "swiglu", layers, m=rows, w=width)
        if travels:
            yield self.collective("combine", ALL_TO_ALL, self.ep, own * experts.top_k * hidden, layers)
        yield self.call("unpermute", "MoeTokenUnpermute", "moe_unpermute", layers, **router)
        if travels and self.tp > 1:
            yield self.collective("experts_all_gather", ALL_GATHER, self.tp, own * hidden, layers)
        if experts.shared:
            yield from self.feed_forward("shared_", experts.shared // self.tp, layers)
            yield from self.products("shared_expert_gate")
            if travels:
                yield from self.all_reduce("shared_all_reduce", layers)
            yield self.call("experts_add", "Add", "binary", layers)
        if not travels:
            yield from self.all_reduce("experts_all_reduce", layers)

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
            kernel_type, pattern = "QuantBatchMatmulV3", "quant_matmul_per_token"
            yield self.call(f"{name}_quant", "DynamicQuant", "dynamic_quant", layers, calls, m=tokens, h=linear.k)
        yield self.call(name, kernel_type, pattern, layers, calls, m=tokens, n=linear.n, k=linear.k)

    def all_reduce(self, part: str, layers: int) -> Iterator[ModelCall]:
        """Yields the sum of a layer's results over the devices that share the layer."""
        if self.tp > 1:
            yield self.collective(part, ALL_REDUCE, self.tp, self.tokens * self.model.hidden, layers)

    def collective(self, part: str, collective: Collective, devices: int, elements: int, layers: int) -> ModelCall:
        known = known_dtype(self.activation)
        assert known is not None
        message = collective.message_bytes(elements * known.bytes, devices, known.bytes)
        cells = {
            MESSAGE_BYTES: str(message),
            NUM_DEVICES: str(devices),
            DTYPE: f"DT_{known.name}",
            TOPOLOGY_TIER: str(self.tier),
        }
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
                needed = self.batch * -(-self.context // _PAGE)
                sizes["blocks"] = next((size for size in axis.grid if size >= needed), needed)
        row = pattern_row(kernel_type, found, self.form(found.forms), sizes)
        twins = next((names for names in _TWINS if kernel_type in names), ())
        return ModelCall(
            part, kernel_type, row.cells, calls, layers, tuple(name for name in twins if name != kernel_type)
        )

    def unknown(
        self, part: str, kernel_type: str, layers: int, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...]
    ) -> ModelCall:
        """Returns a call of which the catalog has no pattern. No row has its duration: a step lists it as missing."""
        shapes = [",".join(map(str, shape)) for shape in inputs]
        cells = {
            "Input Shapes": ";".join(shapes),
            "Input Data Types": ";".join([self.activation] * len(shapes)),
            "Output Shapes": ",".join(map(str, output)),
            "Output Data Types": self.activation,
        }
        return ModelCall(part, kernel_type, cells, 1, layers)

    def form(self, forms: Sequence[Form]) -> Form:
        """Returns the form with the step's dtypes, and with weights in FRACTAL_NZ if they are stored so."""
        if self.quantized:
            own = [form for form in forms if self.dtype in (*form.input_dtypes, *form.output_dtypes)]
            other = {*_QUANTIZED, *FP8}
            forms = own or [form for form in forms if not other & {*form.input_dtypes, *form.output_dtypes}] or forms
        in_nz = [form for form in forms if NZ in form.input_formats]
        form = in_nz[0] if self.nz_weights and in_nz else forms[0].in_nd()
        inputs, outputs = (
            tuple(self.activation if name == "BF16" else name for name in names)
            for names in (form.input_dtypes, form.output_dtypes)
        )
        return replace(form, input_dtypes=inputs, output_dtypes=outputs)


def _pattern(kernel_type: str, name: str) -> Pattern:
    return built_in_catalog().kernel(kernel_type).pattern(name)
