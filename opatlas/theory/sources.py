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
class ShapeOrigin:
    """Where sizes come from.

    Attributes:
        model: the model's name.
        part: the part of the model, such as "gate_up".
        division: how the part is divided, such as "tp 8"; "" for a part that every device has.
        calls: how often a step calls a kernel with these sizes, by the number of layers.
    """

    model: str
    part: str
    division: str = ""
    calls: int = 1


@dataclass(frozen=True)
class Shape:
    """A combination of sizes.

    Attributes:
        values: the size of each variable.
        origins: the models with this combination; empty for generic sizes.
    """

    values: Mapping[str, int]
    origins: tuple[ShapeOrigin, ...]


def model_shapes(pattern: Pattern, targets: Targets) -> list[Shape]:
    """Returns the shapes of a pattern, generic shapes last; one empty shape where no axis has a source."""
    by_axis = [_axis_shapes(axis, targets) for axis in pattern.axes if axis.source]
    return sorted((_combine(parts) for parts in product(*by_axis)), key=lambda shape: not shape.origins)


def interleave_models(shapes: Sequence[Shape]) -> list[int]:
    """Orders shapes so that the models take turns; generic shapes come last.

    Returns:
        Positions in `shapes`. A shape of several models takes the turn of the first of them.
    """
    of_models: dict[str, list[int]] = {}
    for number, shape in enumerate(shapes):
        for model in dict.fromkeys(origin.model for origin in shape.origins):
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
    found: dict[tuple[int, ...], list[ShapeOrigin]] = {}
    for model in targets.models:
        for sizes, origin in _origins(axis.source, model, targets):
            found.setdefault(sizes, []).append(origin)
    if targets.generic and axis.generic:
        for values in product(*(axis.generic[name] for name in names)):
            found.setdefault(values, [])
    return [Shape(dict(zip(names, values, strict=True)), tuple(origins)) for values, origins in found.items()]


def _combine(parts: Sequence[Shape]) -> Shape:
    """Combines sizes of several sources. Their origins are the models that give all of them."""
    values = {name: value for part in parts for name, value in part.values.items()}
    models = [{origin.model for origin in part.origins} for part in parts]
    shared = set.intersection(*models) if models else set()
    origins = [origin for part in parts for origin in part.origins if origin.model in shared]
    return Shape(values, tuple(dict.fromkeys(origins)))


#: Linear layers that engines do not quantize.
NOT_QUANTIZED = frozenset({"lm_head", "router", "indexer_weights", "indexer_k", "shared_expert_gate", "in_proj_ba"})


def _parts(model: ModelFacts, tp: int) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    """Yields the parts of one of `tp` devices: the sources that have a part, its name, its sizes and its calls."""
    for linear in model.linears(tp):
        quantized = "" if linear.name in NOT_QUANTIZED else " quantized_linears"
        yield f"linears{quantized}", linear.name, (linear.n, linear.k), linear.calls
    layers, heads, experts, latent, indexer = (
        *(model.attention_layers, model.heads // tp),
        *(model.experts, model.latent, model.indexer),
    )
    # Attention and the feed-forward network of each layer read the residual stream, and add to it.
    yield "hidden widths norms", "hidden", (model.hidden,), 2 * model.layers
    if model.intermediate:
        yield "gated widths", "feed-forward", (model.intermediate // tp,), model.dense_layers
    if experts is not None:
        if experts.shared:
            yield "gated widths", "shared experts", (experts.shared // tp,), experts.layers
        yield "gated widths", "expert", (experts.width,), experts.layers
        yield "router", "router", (experts.count, experts.top_k, model.hidden), experts.layers
    if model.head_norms:
        yield "head_norms", "query heads", (heads, model.head_dim), layers
        yield "head_norms", "key heads", (model.kv_heads_on_device(tp), model.head_dim), layers
    if latent is None:
        yield "attention", "attention", (heads, model.kv_heads_on_device(tp), model.head_dim), layers
        yield "angles", "rotary embedding", (model.head_dim,), layers
    else:
        if latent.q_lora_rank:
            yield "widths norms", "q_lora", (latent.q_lora_rank,), layers
        yield "widths", "kv_lora", (latent.kv_lora_rank,), layers
        yield (
            "latent",
            "attention",
            (heads, latent.kv_lora_rank, latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim),
            layers,
        )
        yield "latent_cache", "cache", (latent.kv_lora_rank, latent.qk_rope_head_dim), layers
        yield "angles", "rotary embedding", (latent.qk_rope_head_dim,), layers
    if indexer is not None and latent is not None:
        yield "sparse", "attention", (heads, latent.kv_lora_rank, latent.qk_rope_head_dim, indexer.index_topk), layers
        yield "indexer", "indexer", (indexer.index_n_heads, indexer.index_head_dim, indexer.index_topk), indexer.layers
    yield "vocab", "logits", (model.vocab,), 1
    yield "embedding", "embedding", (-(-model.vocab // tp), model.hidden), 1


#: The variables of each source of sizes.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "linears": ("n", "k"),
    "quantized_linears": ("n", "k"),
    "hidden": ("h",),
    "widths": ("h",),
    "norms": ("h",),
    "head_norms": ("g", "d"),
    "gated": ("w",),
    "attention": ("q", "kv", "d"),
    "latent": ("q", "lora", "nope", "rope", "v"),
    "latent_cache": ("lora", "rope"),
    "angles": ("d",),
    "sparse": ("q", "lora", "rope", "top"),
    "indexer": ("q", "d", "top"),
    "vocab": ("vocab",),
    "embedding": ("vocab", "h"),
    "router": ("e", "top", "h"),
    #: Experts on a device, their width, hidden, top_k, ep.
    "experts": ("e", "w", "h", "top", "ep"),
}
#: Sources whose parts every device has as a whole.
_WHOLE = frozenset({"hidden", "norms", "latent_cache", "angles", "indexer", "vocab", "router"})


def _origins(source: str, model: ModelFacts, targets: Targets) -> Iterator[tuple[tuple[int, ...], ShapeOrigin]]:
    """Yields the sizes that a model gives to a source, for each way to divide the model, and where they come from."""
    if source == "experts":
        experts = model.experts
        for count, width, ep in model.expert_shares(targets.tp_sizes, targets.ep_sizes):
            assert experts is not None
            yield (
                (count, width, model.hidden, experts.top_k, ep),
                ShapeOrigin(model.name, "experts", f"ep {ep}", experts.layers),
            )
        return
    for tp in (1,) if source in _WHOLE else model.tp_sizes(targets.tp_sizes):
        for sources, part, sizes, calls in _parts(model, tp):
            if "linears" in source and targets.lm_head is not None and targets.lm_head != (part == "lm_head"):
                continue
            if source in sources.split():
                yield sizes, ShapeOrigin(model.name, part, "" if source in _WHOLE else f"tp {tp}", calls)


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
    known = models_by_name().get(name.lower())
    if known is not None:
        return known
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        return load_config_file(path)
    if path.suffix == ".json":
        raise TargetError("model", name, "no such file: give the path of a model's config.json")
    names = ", ".join(dict.fromkeys(model.name for model in models_by_name().values()))
    raise TargetError(
        "model",
        name,
        f"unknown model{suggest(name, models_by_name())}: give a model's config.json or its folder, or one of {names}",
    )
