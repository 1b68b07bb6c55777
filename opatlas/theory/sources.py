"""The sizes that models give to the axes of patterns, for each way to divide a model among devices.

Also finds the models that a user names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from opatlas.text import suggest
from opatlas.theory.config_json import load_config_file
from opatlas.theory.models import EP_SIZES, TP_SIZES, ModelFacts, TargetError, built_in_models, models_by_name
from opatlas.theory.patterns import Axis, Pattern


@dataclass(frozen=True)
class Targets:
    """The models whose shapes are wanted.

    Attributes:
        models: the architectures.
        tp_sizes, ep_sizes: sizes of tensor and expert parallelism; each model uses those that divide its parts.
        generic: whether sizes of no particular model are wanted too.
        lm_head: whether of the linear layers the LM head alone is wanted, or all but it; None: all.
    """

    models: Sequence[ModelFacts]
    tp_sizes: Sequence[int] = TP_SIZES
    ep_sizes: Sequence[int] = EP_SIZES
    generic: bool = False
    lm_head: bool | None = None


@dataclass(frozen=True)
class Shape:
    """A combination of sizes.

    Attributes:
        values: the size of each variable.
        models: the names of the models with this combination; empty for generic sizes.
    """

    values: Mapping[str, int]
    models: tuple[str, ...]


def model_shapes(pattern: Pattern, targets: Targets) -> list[Shape]:
    """Returns the shapes of a pattern, generic shapes last; one empty shape where no axis has a source."""
    by_axis = [_axis_shapes(axis, targets) for axis in pattern.axes if axis.source]
    return sorted((_combine(parts) for parts in product(*by_axis)), key=lambda shape: not shape.models)


def interleave_models(shapes: Sequence[Shape]) -> list[int]:
    """Orders shapes so that the models take turns; generic shapes come last.

    Returns:
        Positions in `shapes`. A shape of several models takes the turn of the first of them.
    """
    of_models: dict[str, list[int]] = {}
    for number, shape in enumerate(shapes):
        for model in shape.models:
            of_models.setdefault(model, []).append(number)
    found: dict[int, None] = {}
    queues = [iter(numbers) for numbers in of_models.values()]
    while queues:
        for queue in list(queues):
            new = next((number for number in queue if number not in found), None)
            if new is None:
                queues.remove(queue)
            else:
                found[new] = None
    return [*found, *(number for number in range(len(shapes)) if number not in found)]


def missing_source(pattern: Pattern, targets: Targets) -> str:
    """Returns a source of the pattern that none of the models has; "" if each has one."""
    return next((axis.source for axis in pattern.axes if axis.source and not _axis_shapes(axis, targets)), "")


def _axis_shapes(axis: Axis, targets: Targets) -> list[Shape]:
    names = SOURCES[axis.source]
    found: dict[tuple[int, ...], dict[str, None]] = {}
    for model in targets.models:
        for sizes in _sizes(axis.source, model, targets):
            found.setdefault(sizes, {})[model.name] = None
    if targets.generic and axis.generic:
        for values in product(*(axis.generic[name] for name in names)):
            found.setdefault(values, {})
    return [Shape(dict(zip(names, values, strict=True)), tuple(models)) for values, models in found.items()]


def _combine(parts: Sequence[Shape]) -> Shape:
    """Combines sizes of several sources, of the models that give all of them."""
    values = {name: value for part in parts for name, value in part.values.items()}
    shared = [model for model in parts[0].models if all(model in part.models for part in parts)] if parts else []
    return Shape(values, tuple(shared))


#: Linear layers that engines do not quantize.
NOT_QUANTIZED = frozenset(
    {"lm_head", "router", "indexer_weights", "indexer_k", "shared_expert_gate", "in_proj_ba", "in_proj_b"}
)


def _parts(model: ModelFacts, tp: int, lm_head: bool | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the parts of one of `tp` devices: the sources that have a part, and its sizes. See `Targets.lm_head`."""
    for linear in model.linears(tp):
        if lm_head in (None, linear.name == "lm_head"):
            kinds = f"linears{'' if linear.name in NOT_QUANTIZED else ' quantized_linears'}"
            yield f"{kinds}{' biased_linears' if linear.name in model.biases else ''}", (linear.n, linear.k)
    heads, kv_heads = model.heads // tp, model.kv_heads_on_device(tp)
    experts, latent, indexer = model.experts, model.latent, model.indexer
    yield "hidden widths norms", (model.hidden,)
    gated = "gated widths" if model.gates else "widths"
    if model.intermediate:
        yield gated, (model.intermediate // tp,)
    if experts is not None:
        if experts.shared:
            yield gated, (experts.shared // tp,)
        yield gated, (experts.width,)
        scores = "softmax_router" if experts.by_softmax else "sigmoid_router"
        yield f"router {scores}", (experts.count, experts.top_k, experts.latent or model.hidden)
    if model.head_norms and model.joint_norms:
        yield "norms", (heads * model.head_dim,)
        yield "norms", (kv_heads * model.head_dim,)
    elif model.head_norms:
        yield "head_norms", (heads, model.head_dim)
        yield "head_norms", (kv_heads, model.head_dim)
    if latent is None:
        yield f"attention{' sinks' if model.sinks else ''}", (heads, kv_heads, model.head_dim)
        if model.sliding[0]:
            windows = "sink_windows" if model.sinks else "windows"
            yield windows, (heads, kv_heads, model.head_dim, model.sliding[1] - 1)
        if model.rotated:
            yield "rotated", (heads, kv_heads, model.rotated)
            yield "angles", (model.rotated,)
        if model.gated_attention:
            yield "widths", (heads * model.head_dim,)
    else:
        lora, nope, rope = latent.kv_lora_rank, latent.qk_nope_head_dim, latent.qk_rope_head_dim
        if latent.q_lora_rank:
            yield "widths norms", (latent.q_lora_rank,)
        yield "widths", (lora,)
        yield "latent", (heads, lora, nope, rope, latent.v_head_dim)
        yield "latent_cache", (lora, rope)
        yield "angles", (rope,)
        if indexer is not None:
            yield "sparse", (heads, lora, rope, indexer.index_topk)
            yield "indexer", (indexer.index_n_heads, indexer.index_head_dim, indexer.index_topk)
    if (own := model.linear_attention) is not None:
        yield f"convolutions {own.rule}", own.sizes(tp)
        yield "gated_norms", own.norm(tp)
    if (blocks := model.blocks) is not None:
        of_index = max(blocks.index_n_heads // tp, 1)
        yield "sparse_blocks", (heads, kv_heads, model.head_dim, blocks.index_topk_blocks)
        yield "index_scores head_norms", (of_index, blocks.index_head_dim)
        yield "chosen_blocks", (of_index, blocks.index_topk_blocks)
    yield "vocab", (model.vocab,)
    yield "embedding", (-(-model.vocab // tp), model.hidden)


#: Routers of all models, and of those that choose experts by softmax, and by sigmoids with a bias.
_ROUTERS = ("router", "softmax_router", "sigmoid_router")
#: The variables of each source of sizes.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "linears": ("n", "k"),
    "quantized_linears": ("n", "k"),
    "biased_linears": ("n", "k"),
    "hidden": ("h",),
    "widths": ("h",),
    "norms": ("h",),
    "head_norms": ("g", "d"),
    "gated": ("w",),
    "attention": ("q", "kv", "d"),
    "sinks": ("q", "kv", "d"),
    "windows": ("q", "kv", "d", "before"),
    "sink_windows": ("q", "kv", "d", "before"),
    "rotated": ("q", "kv", "d"),
    "latent": ("q", "lora", "nope", "rope", "v"),
    "latent_cache": ("lora", "rope"),
    "angles": ("d",),
    "sparse": ("q", "lora", "rope", "top"),
    "indexer": ("q", "d", "top"),
    **dict.fromkeys(("convolutions", "delta", "kimi", "mamba"), ("q", "r", "d", "dv", "taps")),
    "gated_norms": ("q", "dv"),
    "sparse_blocks": ("q", "kv", "d", "top"),
    "index_scores": ("q", "d"),
    "chosen_blocks": ("q", "top"),
    "vocab": ("vocab",),
    "embedding": ("vocab", "h"),
    **dict.fromkeys(_ROUTERS, ("e", "top", "h")),
    #: Experts on a device, their width, hidden, top_k, ep.
    "experts": ("e", "w", "h", "top", "ep"),
    "biased_experts": ("e", "w", "h", "top", "ep"),
    "down_experts": ("e", "w", "h", "top", "ep"),
}
#: Sources whose parts every device has as a whole.
_WHOLE = frozenset({"hidden", "norms", "latent_cache", "angles", "indexer", "vocab", *_ROUTERS})


def _sizes(source: str, model: ModelFacts, targets: Targets) -> Iterator[tuple[int, ...]]:
    """Yields the sizes that a model gives to a source, for each way to divide the model."""
    if source.endswith("experts"):
        has = {"experts": model.gates, "biased_experts": "experts_gate_up" in model.biases, "down_experts": True}
        for count, width, ep in model.expert_shares(targets.tp_sizes, targets.ep_sizes) if has[source] else ():
            assert model.experts is not None
            inner, top = model.experts.latent or model.hidden, model.experts.top_k
            yield count, width, inner, top, ep
            if not model.gates:
                # The first product of an expert is the second one, turned round.
                yield count, inner, width, top, ep
        return
    for tp in (1,) if source in _WHOLE else model.tp_sizes(targets.tp_sizes):
        yield from (sizes for sources, sizes in _parts(model, tp, targets.lm_head) if source in sources.split())


def resolve_targets(names: Sequence[str]) -> Targets:
    """Returns the models of some names; without names the built-in models and generic shapes.

    Raises:
        TargetError: a model is unknown.
    """
    return Targets([resolve_model(name) for name in names] or list(built_in_models()), generic=not names)


def resolve_model(name: str) -> ModelFacts:
    """Returns a model by its name.

    Args:
        name: a built-in model's name or short name, a config.json or its folder.

    Raises:
        OpAtlasError: the name is none of these, or the config.json is of no known kind of model.
    """
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    # A file needs no models with names, which take 0.1 s to read.
    if path.is_file():
        return load_config_file(path)
    known = models_by_name().get(name.lower())
    if known is not None:
        return known
    if path.suffix == ".json":
        raise TargetError("model", name, "no such file: give the path of a model's config.json")
    names = ", ".join(dict.fromkeys(model.name for model in models_by_name().values()))
    raise TargetError(
        "model",
        name,
        f"unknown model{suggest(name, models_by_name())}: give a model's config.json or its folder, or one of {names}",
    )
