"""A step of an engine: which sequences it computes, how devices share the model, its calls, whether memory suffices."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from opatlas.errors import UsageError
from opatlas.formats import size
from opatlas.row.attention import Sequences, read_sequences
from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.row.signature import signature
from opatlas.row.slots import FP8, known_dtype
from opatlas.theory.models import ACTIVATIONS, ModelFacts
from opatlas.theory.sources import NOT_QUANTIZED

Phase = Literal["prefill", "decode"]
#: dtypes of quantized products, whose activations are BF16.
QUANTIZED = ("INT8", "FLOAT8_E4M3FN")
#: Batches that engines capture in CUDA graphs by default: vLLM 0.11 (vllm/config/compilation.py).
_CAPTURED = {"vllm": (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))}
#: Parts of the layers of a kind; all others are in each layer.
_DENSE = ("gate_up", "gate_up_quant", "act", "down", "down_quant", "ffn_all_reduce")
_OF_EXPERTS = ("router", "gating", "permute", "experts_", "unpermute", "shared_")
_Count = Annotated[int, msgspec.Meta(ge=1)]
_CountOrNone = Annotated[int, msgspec.Meta(ge=0)]


def count_queries(groups: Iterable[Sequences]) -> int:
    return sum(group.n * group.queries for group in groups)


def alike_sequences(groups: Iterable[Sequences]) -> list[list[Sequences]]:
    """Returns sequences with equally many queries together."""
    found: dict[int, list[Sequences]] = {}
    for group in groups:
        found.setdefault(group.queries, []).append(group)
    return [*found.values()]


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of a model on devices of one kind.

    Attributes:
        model: its name, a config.json or the folder of that.
        batch, context: the sequences of a step of `tp` devices, and the tokens of each, with those that are computed.
        tp, ep: the devices that share a layer, and the experts: 1, or all of tp x dp.
        phase: one token of each sequence is computed in decode, all of them in prefill.
        dtype: of products; "" for that of the model's weights.
        sequences: in place of batch, context and phase: `63x1@4096+1x2048@6144`.
        dp: replicas of the attention, each with sequences as above, which share the experts; 0 for as many as tp and ep
            tell. With ep 1 the width of the experts is divided among all devices.
        pp: stages of the layers, each with `tp` devices.
        cache_dtype: of keys and values in the cache; "" for that of the model, BF16 or FLOAT8_E4M3FN.
        captured: the numbers of tokens that CUDA graphs exist for, to the next of which a step is padded: `1+2+4+8`, or
            `vllm`; "" for no padding.
        launch: by a graph, where one is captured for so many tokens, or kernel by kernel: eager.
        routing: how tokens choose experts: at random, so that few tokens leave some without rows, or equally often.
        collectives: of the engine, which has an all_reduce of its own for the devices of a host, or of the library that
            the rows of collectives are of: NCCL, HCCL.
    """

    model: str
    batch: _CountOrNone = 0
    context: _CountOrNone = 0
    tp: _Count = 1
    ep: _Count = 1
    phase: Phase = "decode"
    dtype: str = ""
    sequences: str = ""
    dp: _CountOrNone = 0
    pp: _Count = 1
    cache_dtype: str = ""
    captured: str = ""
    launch: Literal["graph", "eager"] = "graph"
    routing: Literal["random", "equal"] = "random"
    collectives: Literal["engine", "library"] = "engine"

    @classmethod
    def read(cls, text: str) -> Step:
        """Reads `MODEL,batch=64,context=4096,tp=8`, as a reader of `opatlas.options`."""
        model, *settings = [word.strip() for word in text.split(",")]
        pairs = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
        try:
            return msgspec.convert({"model": model, **pairs}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}: give MODEL,batch=N,context=N,tp=N") from None

    def __str__(self) -> str:
        """Returns the text that `read` reads, without the settings that have their default."""
        plain = msgspec.structs.asdict(Step(self.model))
        settings = {name: value for name, value in msgspec.structs.asdict(self).items() if value != plain[name]}
        return ",".join([self.model, *(f"{name}={value}" for name, value in settings.items())])

    @property
    def replicas(self) -> int:
        """The replicas of the attention."""
        return self.dp or max(self.ep // self.tp, 1)

    @property
    def group_size(self) -> int:
        """The devices that a measured step runs on: one, unless it has the collectives of the library."""
        return self.tp * self.replicas if self.collectives == "library" else 1

    def groups(self) -> list[Sequences]:
        """Returns the sequences of a step, those together that are alike.

        Raises:
            UsageError: the text has another form, or a number is impossible.
        """
        if not self.sequences:
            for name, number in (("batch", self.batch), ("context", self.context)):
                if number < 1:
                    raise UsageError(f"{name} is {number}: give batch and context, whole numbers above 0, or sequences")
            if self.phase not in ("prefill", "decode"):
                raise UsageError(f"{self.phase!r} is not a phase: give 'prefill' or 'decode'")
            return read_sequences(f"{self.batch}x{self.context if self.phase == 'prefill' else 1}@{self.context}")
        if self.batch or self.context:
            raise UsageError("sequences have lengths of their own: leave out batch and context")
        return read_sequences(self.sequences)

    def graph_size(self, tokens: int) -> int | None:
        """Returns the tokens of the graph that launches so many; None for more than the largest. Raises UsageError."""
        if not self.captured or self.launch == "eager":
            return tokens
        words = self.captured.split("+")
        sizes = _CAPTURED.get(self.captured) or [int(word) for word in words if word.strip().isdigit()]
        if len(sizes) < len(words):
            raise UsageError(f"{self.captured!r} are no numbers of tokens: give some as in 1+2+4+8, or vllm")
        return min((size for size in sizes if size >= tokens), default=None)

    @property
    def is_eager(self) -> bool:
        """Whether the host launches kernel by kernel."""
        return self.launch == "eager" or self.graph_size(count_queries(self.groups())) is None


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
        nearest: the cells that answer where no row has the dtypes or the load of `cells`: those of a cache that is not
            quantized, or equally many rows of each expert that has any.
        instead: another call that does this work, or most of it: by the kernel type of some devices, or without a bias.
            It answers where this one has no rows with its dtypes.
    """

    part: str
    kernel_type: str
    cells: Mapping[str, str]
    calls: int
    layers: int
    twins: tuple[str, ...] = ()
    nearest: Mapping[str, str] = field(default_factory=dict)
    instead: ModelCall | None = None

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


def kind_of_layer(part: str) -> str:
    """Returns the kind of the layers with a part: "dense", "moe", or "" for a part of each layer."""
    return "dense" if part in _DENSE else "moe" if part.startswith(_OF_EXPERTS) else ""


def calls_of_layers(
    calls: Sequence[ModelCall], layers: str, *, with_collectives: bool = False
) -> Iterator[list[ModelCall]]:
    """Yields the calls of each layer of a cell of Step Layers, such as `4` or `1 dense + 3 moe`.

    The norm before a layer is that of all layers but the first one.
    """
    for text in layers.split("+"):
        count, _, kind = text.strip().partition(" ")
        chosen = [call for call in calls if call.layers]
        if not with_collectives:
            chosen = [call for call in chosen if call.kernel_type not in BY_KERNEL_TYPE]
        if any((call.part, call.kernel_type) == ("attention_norm", "AddRmsNorm") for call in chosen):
            chosen = [call for call in chosen if (call.part, call.kernel_type) != ("attention_norm", "RmsNorm")]
        of_kind = [call for call in chosen if kind_of_layer(call.part) in ("", kind or kind_of_layer(call.part))]
        for _ in range(int(count)):
            yield [call for each in of_kind for call in [each] * each.calls]


def step_dtype(model: ModelFacts, asked: str = "") -> str:
    """Returns the dtype of a step: the one that is asked for, else that of the model's weights.

    Raises:
        UsageError: the dtype is none of a step, or none is asked for and no row has that of the weights.
    """
    dtypes = ", ".join((*ACTIVATIONS, *QUANTIZED))
    if not (asked or model.dtype):
        raise UsageError(
            f"{model.name} has {model.stored}, which no row has: give the dtype to answer them as, by --dtype, "
            f"dtype=NAME of --step, or dtype in Python: one of {dtypes}"
        )
    known = known_dtype(asked or model.dtype)
    if known is None or known.name not in (*ACTIVATIONS, *QUANTIZED):
        raise UsageError(f"{asked!r} is not a dtype of a model's step: give one of {dtypes}")
    return known.name


def cache_dtype(model: ModelFacts, step: Step, activation: str) -> str:
    """Returns the dtype of the cache: asked for, else that of the model, else of activations. Raises UsageError."""
    known = known_dtype(step.cache_dtype or model.cache_dtype or activation)
    if known is None or known.name not in (*ACTIVATIONS, *FP8):
        raise UsageError(f"{step.cache_dtype!r} is not a dtype of a cache: give BF16, FLOAT16 or FLOAT8_E4M3FN")
    return known.name


@dataclass(frozen=True)
class StepMemory:
    """The memory of the device that needs most, in bytes: without graphs, buffers of collectives, and fragments.

    Attributes:
        weights: as they are published, or in the step's dtype if that is narrower.
        cache: of all tokens of the step's sequences; with stages those of as many batches in flight.
        activations: at the peak.
        of_token: of the cache, for a token more.
        device: that of the device; 0 if unknown.
    """

    weights: int
    cache: int
    activations: int
    of_token: int
    device: int = 0

    @property
    def needed(self) -> int:
        return self.weights + self.cache + self.activations

    @property
    def fits(self) -> bool:
        """Whether the device has as much memory, or it is unknown."""
        return not 0 < self.device < self.needed

    @property
    def tokens_left(self) -> int | None:
        """How many tokens more the cache may have; below 0 if the step does not fit; None if unknown."""
        return (self.device - self.needed) // self.of_token if self.device and self.of_token else None

    def __str__(self) -> str:
        parts = [f"{name} {size(getattr(self, name))}" for name in ("weights", "cache", "activations")]
        return f"{size(self.needed)}{f' of {size(self.device)}' if self.device else ''}: {', '.join(parts)}"


def step_memory(model: ModelFacts, step: Step, device: int = 0) -> StepMemory:
    """Returns the memory of a step that `opatlas.theory.model_calls.step_calls` has accepted.

    Args:
        device: the bytes of its memory; 0 if unknown.
    """
    dtype, groups = step_dtype(model, step.dtype), step.groups()
    activation = dtype if dtype in ACTIVATIONS else "BF16"
    # The layers of the largest stage.
    stage = -(-model.layers // step.pp) / model.layers
    weights = _weight_bytes(model, step, 8 if dtype in QUANTIZED else 16, stage)
    known = known_dtype(cache_dtype(model, step, activation))
    assert known is not None
    latent, indexer, own, (sliding, window) = model.latent, model.indexer, model.linear_attention, model.sliding
    if latent is not None:
        features = latent.kv_lora_rank + latent.qk_rope_head_dim
    else:
        features = 2 * model.kv_heads_on_device(step.tp) * model.head_dim
    of_token = features * (model.attention_layers - sliding) * known.bytes
    for each in (indexer, model.blocks):
        of_token += each.index_head_dim * each.layers * known.bytes if each is not None else 0
    tokens = sum(group.n * group.keys for group in groups)
    cache = of_token * tokens
    cache += features * sliding * known.bytes * sum(group.n * min(group.keys, window) for group in groups)
    if own is not None:
        # The state in float32, and the inputs of the convolution.
        of_layer = 4 * own.values * own.linear_key_head_dim
        of_layer += 2 * (2 * own.keys + own.values) * (own.linear_conv_kernel_dim - 1)
        cache += of_layer // step.tp * own.layers * sum(group.n for group in groups)
    in_flight = stage * step.pp
    return StepMemory(
        weights,
        round(cache * in_flight),
        _activation_bytes(model, step, count_queries(groups)),
        round(of_token * in_flight),
        device,
    )


def _weight_bytes(model: ModelFacts, step: Step, bits: float, stage: float) -> int:
    """Returns the bytes of the weights of a device, of which a quantized one has so many bits at most."""
    stored, of_experts_alone = model.stored_bits
    of_experts, of_others = min(stored, bits), bits if of_experts_alone else min(stored, bits)
    in_layers = outside = 0.0
    for weight in model.weights:
        linear = weight.on_device(step.tp)
        # The product of both compressions is that of two other weights.
        if linear is None or weight.role == "q_kv_a":
            continue
        found = linear.n * linear.k * (16 if weight.role in NOT_QUANTIZED else of_others) / 8
        if weight.role == "lm_head":
            outside = found
        else:
            in_layers += found * linear.calls
    if (experts := model.experts) is not None:
        devices = step.ep if step.ep > 1 else step.tp * step.replicas
        of_expert = (2 + model.gates) * (experts.latent or model.hidden) * experts.width
        in_layers += of_expert * experts.count / devices * experts.layers * of_experts / 8
    # The first stage has the embedding, the last one the head.
    embedding = 0 if model.tied else 2 * model.vocab * model.hidden // step.tp
    return round(in_layers * stage + (outside + embedding if step.pp == 1 else max(outside, embedding)))


def _activation_bytes(model: ModelFacts, step: Step, tokens: int) -> int:
    """Returns the bytes of activations at their peak: the stream, its norm, and the largest part of a layer."""
    heads = model.heads + 2 * model.kv_heads if model.latent is None else 3 * model.heads
    parts = [heads * model.head_dim // step.tp, (2 + model.gates) * model.intermediate // step.tp]
    if (experts := model.experts) is not None:
        width = experts.width if step.ep > 1 else experts.width // step.tp
        parts.append(experts.top_k * (2 * model.hidden + 3 * width) // (step.tp if step.ep > 1 else 1))
    outputs = sum(group.n * (1 if group.is_prompt else group.queries) for group in step.groups())
    # Logits in 16 and in 32 bits.
    return 2 * tokens * 2 * model.hidden + max(2 * tokens * max(parts), 6 * outputs * model.vocab)
