"""The kernel calls of one step of a model, as rows of a database.

A step is one forward pass of an engine: the next token of each sequence (decode), or all tokens of each sequence
(prefill). The shapes of a call come from the catalog, and the sizes of the model's parts from its facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from opatlas.errors import OpAtlasError, UsageError
from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, Collective
from opatlas.row.signature import signature
from opatlas.row.slots import FP8, known_dtype
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.models import DeltaNet, Indexer, Latent, Linear, ModelFacts, RoutedExperts
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
    def queries(self) -> int:
        """The tokens of each sequence."""
        return self.context if self.prefill else 1

    @property
    def heads(self) -> int:
        return self.model.heads // self.tp

    @property
    def activation(self) -> str:
        """The dtype of activations."""
        return self.dtype if self.dtype in _ACTIVATIONS else "BF16"

    @property
    def quantized(self) -> bool:
        return self.dtype in _QUANTIZED

    def calls(self) -> Iterator[ModelCall]:
        model, m = self.model, self.tokens
        layers = model.layers
        hidden = model.hidden
        yield self.call("embedding", "GatherV2", "gather", m=m, vocab=-(-model.vocab // self.tp), h=hidden)
        yield from self.all_reduce("embedding_all_reduce", 0)
        # The first layer has nothing to add to its input.
        yield self.call("attention_norm", "RmsNorm", "rms_norm", layers=1, m=m, h=hidden)
        if layers > 1:
            yield self.add_norm("attention_norm", layers - 1)
        yield from self.attention()
        yield from self.products("o_proj")
        if model.delta is not None:
            yield from self.delta_net(model.delta)
        yield from self.all_reduce("attention_all_reduce", layers)
        yield self.add_norm("ffn_norm", layers)
        yield from self.feed_forward()
        yield self.add_norm("final_norm", 0)
        yield from self.head()

    def attention(self) -> Iterator[ModelCall]:
        """Yields the calls from the input of the attention to the input of its output projection."""
        if self.model.latent is not None:
            yield from self.latent_attention(self.model.latent)
            return
        model, m, layers = self.model, self.tokens, self.model.attention_layers
        sizes = {"q": self.heads, "kv": model.kv_heads_on_device(self.tp), "d": model.head_dim}
        yield from self.products("qkv")
        if model.head_norms:
            for part, heads in (("query_norm", sizes["q"]), ("key_norm", sizes["kv"])):
                yield self.call(part, "RmsNorm", "head_rms_norm", layers=layers, m=m, g=heads, d=model.head_dim)
        yield self.call("rope", "ApplyRotaryPosEmb", "apply_rotary_pos_emb", layers=layers, m=m, **sizes)
        blocks = self.blocks("ReshapeAndCacheNdKernel", "reshape_and_cache")
        yield self.call(
            "cache", "ReshapeAndCacheNdKernel", "reshape_and_cache", layers=layers, m=m, blocks=blocks, **sizes
        )
        pattern = "packed_attention" if self.prefill else "paged_attention"
        lengths = {"s": self.batch, "t": self.queries, "k": self.context}
        yield self.call("attention", "FusedInferAttentionScore", pattern, layers=layers, **lengths, **sizes)
        if model.gated_attention:
            features = self.heads * model.head_dim
            yield self.unknown("attention_gate", "SigmoidMul", layers, [(m, features)] * 2, (m, features))

    def delta_net(self, delta: DeltaNet) -> Iterator[ModelCall]:
        """Yields the calls of layers with a gated delta net: its products, and calls without rows."""
        m, layers = self.tokens, delta.layers
        features, heads = delta.features(self.tp), delta.value_heads // self.tp
        values = heads * delta.value_dim
        yield from self.products("in_proj_qkvz", "in_proj_ba")
        window = self.batch, features, delta.kernel - 1
        yield self.unknown(
            "convolution", "CausalConvolution", layers, [(m, features), (features, delta.kernel), window], (m, features)
        )
        state = self.batch, heads, delta.key_dim, delta.value_dim
        yield self.unknown("delta_rule", "GatedDeltaRule", layers, [(m, features), (m, 2 * heads), state], (m, values))
        yield self.unknown("delta_norm", "GatedRmsNorm", layers, [(m, values)] * 2, (m, values))
        yield from self.products("out_proj")

    def latent_attention(self, latent: Latent) -> Iterator[ModelCall]:
        m, layers, indexer = self.tokens, self.model.attention_layers, self.model.indexer
        sizes = {"q": self.heads, "lora": latent.kv_lora, "nope": latent.nope, "rope": latent.rope, "v": latent.value}
        down = ("q_kv_a",) if self.linears("q_kv_a") else ("q_a", "kv_a")
        yield from self.products(*down)
        if latent.q_lora:
            yield self.call("query_norm", "RmsNorm", "rms_norm", layers=layers, m=m, h=latent.q_lora)
        yield from self.products("q_b", "q")
        yield self.call("rope", "InterleaveRope", "interleave_rope", layers=layers, m=m, **sizes)
        # Sparse attention has absorbed products in both phases.
        absorbed = not self.prefill or indexer is not None
        pattern = "kv_rms_norm_rope_cache" if absorbed else "kv_rms_norm_rope_cache_prefill"
        cache = {"m": m, "blocks": self.blocks("KvRmsNormRopeCache", pattern)}
        yield self.call("cache", "KvRmsNormRopeCache", pattern, layers=layers, **cache, **sizes)
        if not absorbed:
            yield from self.products("kv_b")
            # A row of this kernel has one sequence.
            ring = {"calls": self.batch, "t": self.context}
            yield self.call("attention", "RINGMLAPrefillBF16Kernel", "ring_first", layers=layers, **ring, **sizes)
            return
        yield self.call("query_absorb", "BatchMatMulV2", "batch_matmul", layers=layers, m=m, **sizes)
        lengths = {"s": self.batch, "t": self.queries, "k": self.context}
        if indexer is None:
            yield self.call(
                "attention", "FusedInferAttentionScore", "latent_attention", layers=layers, **lengths, **sizes
            )
        else:
            yield from self.indexer(indexer, lengths)
            chosen = {**lengths, **sizes, "top": indexer.top_k}
            yield self.call("attention", "SparseFlashAttention", "sparse_attention", layers=layers, **chosen)
        yield self.call("value_up", "TransposeBatchMatMul", "transpose_batch_matmul", layers=layers, m=m, **sizes)

    def indexer(self, indexer: Indexer, lengths: Mapping[str, int]) -> Iterator[ModelCall]:
        yield from self.products("indexer_q", "indexer_k", "indexer_weights")
        sizes = {"q": indexer.heads, "d": indexer.head_dim, "top": indexer.top_k}
        layers = indexer.layers
        yield self.call("indexer", "LightningIndexer", "lightning_indexer", layers=layers, **lengths, **sizes)

    def feed_forward(self) -> Iterator[ModelCall]:
        dense = self.model.layers_with("down")
        if dense:
            yield from self.gated("", self.model.intermediate // self.tp, dense)
            yield from self.all_reduce("ffn_all_reduce", dense)
        if self.model.experts is not None:
            yield from self.experts(self.model.experts, self.model.layers_with("router"))

    def gated(self, prefix: str, width: int, layers: int) -> Iterator[ModelCall]:
        """Yields the calls of a feed-forward network that all tokens pass."""
        yield from self.products(f"{prefix}gate_up")
        yield self.call(f"{prefix}act", "SwiGlu", "swiglu", layers=layers, m=self.tokens, w=width)
        yield from self.products(f"{prefix}down")

    def experts(self, experts: RoutedExperts, layers: int) -> Iterator[ModelCall]:
        """Yields the calls of mixtures of experts. Tokens are spread evenly over the experts."""
        hidden, tokens = self.model.hidden, self.tokens
        travels = self.ep > self.tp
        # Where tokens travel, each of `tp` devices sends its share of them.
        own = -(-tokens // self.tp) if travels else tokens
        on_device = experts.count // self.ep
        width = experts.width if self.ep > 1 else experts.width // self.tp
        rows = -(-tokens * experts.top_k // self.tp) if self.ep > 1 else tokens * experts.top_k
        router = {"m": own, "e": experts.count, "top": experts.top_k, "h": hidden}
        grouped = {"m": rows, "e": on_device, "w": width, "h": hidden}
        yield from self.products("router", tokens=own)
        yield self.call("gating", "MoeGatingTopK", "moe_gating", layers=layers, **router)
        yield self.call("permute", "MoeTokenPermute", "moe_permute", layers=layers, **router)
        if travels:
            message = own * experts.top_k * hidden
            yield self.collective("dispatch", ALL_TO_ALL, self.ep, message, layers)
        for part, product, size in (("gate_up", "grouped_gate_up", hidden), ("down", "grouped_down", width)):
            if self.quantized:
                product += "_quantized"
                yield self.call(f"experts_{part}_quant", "DynamicQuant", "dynamic_quant", layers=layers, m=rows, h=size)
            yield self.call(f"experts_{part}", "GroupedMatmul", product, layers=layers, **grouped)
            if part == "gate_up":
                yield self.call("experts_act", "SwiGlu", "swiglu", layers=layers, m=rows, w=width)
        if travels:
            yield self.collective("combine", ALL_TO_ALL, self.ep, message, layers)
        yield self.call("unpermute", "MoeTokenUnpermute", "moe_unpermute", layers=layers, **router)
        if travels and self.tp > 1:
            yield self.collective("experts_all_gather", ALL_GATHER, self.tp, own * hidden, layers)
        if experts.shared:
            yield from self.gated("shared_", experts.shared // self.tp, layers)
            yield from self.products("shared_expert_gate")
            if travels:
                yield from self.all_reduce("shared_all_reduce", layers)
            yield self.call("experts_add", "Add", "binary", layers=layers, m=tokens, h=hidden)
        if not travels:
            yield from self.all_reduce("experts_all_reduce", layers)

    def head(self) -> Iterator[ModelCall]:
        """Yields the calls from the last layer to the next token of each sequence, the most probable one."""
        model, logits = self.model, {"b": self.batch, "vocab": self.model.vocab}
        yield self.call("last_tokens", "Index", "index_rows", m=self.tokens, b=self.batch, h=model.hidden)
        for linear in self.linears("lm_head"):
            yield from self.product(linear, self.batch, in_layers=False)
            if self.tp > 1:
                yield self.collective("logits_all_gather", ALL_GATHER, self.tp, self.batch * linear.n, 0)
        yield self.call("logits_cast", "Cast", "unary", m=self.batch, h=model.vocab)
        yield self.call("sample", "ArgMaxV2", "argmax", **logits)

    def linears(self, role: str) -> list[Linear]:
        return [linear for linear in self.model.linears(self.tp) if linear.name == role]

    def products(self, *roles: str, tokens: int = 0) -> Iterator[ModelCall]:
        """Yields the products with the model's weights of some roles."""
        for role in roles:
            for linear in self.linears(role):
                yield from self.product(linear, tokens or self.tokens)

    def product(self, linear: Linear, tokens: int, in_layers: bool = True) -> Iterator[ModelCall]:
        layers, calls = (linear.calls, 1) if in_layers else (0, linear.calls)
        sizes = {"m": tokens, "n": linear.n, "k": linear.k}
        if not self.quantized or linear.name in NOT_QUANTIZED:
            yield self.call(linear.name, "MatMulV2", "matmul", layers=layers, calls=calls, **sizes)
            return
        quant = {"m": tokens, "h": linear.k}
        yield self.call(f"{linear.name}_quant", "DynamicQuant", "dynamic_quant", layers=layers, calls=calls, **quant)
        pattern = "quant_matmul_per_token"
        yield self.call(linear.name, "QuantBatchMatmulV3", pattern, layers=layers, calls=calls, **sizes)

    def add_norm(self, part: str, layers: int) -> ModelCall:
        return self.call(part, "AddRmsNorm", "add_rms_norm", layers=layers, m=self.tokens, h=self.model.hidden)

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
        self, part: str, kernel_type: str, pattern: str, *, layers: int = 0, calls: int = 1, **sizes: int
    ) -> ModelCall:
        """Returns a call by a pattern of the catalog."""
        found = _pattern(kernel_type, pattern)
        row = pattern_row(kernel_type, found, self.form(found.forms), sizes)
        twins = next((names for names in _TWINS if kernel_type in names), ())
        others = tuple(name for name in twins if name != kernel_type)
        return ModelCall(part, kernel_type, row.cells, calls, layers, others)

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
        return self.with_activation(in_nz[0] if self.nz_weights and in_nz else forms[0].in_nd())

    def with_activation(self, form: Form) -> Form:
        inputs, outputs = (
            tuple(self.activation if name == "BF16" else name for name in names)
            for names in (form.input_dtypes, form.output_dtypes)
        )
        return Form(inputs, form.input_formats, outputs, form.output_formats, form.op_state, form.core)

    def blocks(self, kernel_type: str, pattern: str) -> int:
        """Returns the pages of the cache: the least number of the catalog that holds all sequences."""
        needed = self.batch * -(-self.context // _PAGE)
        sizes = next(axis.grid for axis in _pattern(kernel_type, pattern).axes if axis.name == "blocks")
        return next((size for size in sizes if size >= needed), needed)


def _pattern(kernel_type: str, name: str) -> Pattern:
    return built_in_catalog().kernel(kernel_type).pattern(name)
