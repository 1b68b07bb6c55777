"""The sizes that models give to the axes of patterns, for each way to divide a model among devices.

Also finds the models that a user names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from opatlas.text import suggest
from opatlas.theory.config_json import load_config_file
from opatlas.theory.models import EP_SIZES, TP_SIZES, ModelFacts, TargetError, built_in_models, models_by_name
from opatlas.theory.patterns import Axis, Pattern


class ModelPart(NamedTuple):
    """A part of a model on one device.

    Attributes:
        name: the part, such as "gate_up".
        sizes: its sizes.
        calls: how often a step calls a kernel with these sizes, by the number of layers.
        division: how the part is divided, such as "tp 8"; "" for a part that every device has.
    """

    name: str
    sizes: tuple[int, ...]
    calls: int
    division: str = ""


@dataclass(frozen=True)
class Targets:
    """The models whose shapes are wanted.

    Attributes:
        models: the architectures.
        tp_sizes, ep_sizes: sizes of tensor and expert parallelism; each model uses those that divide its parts.
        generic: whether sizes of no particular model are wanted too.
    """

    models: Sequence[ModelFacts]
    tp_sizes: Sequence[int] = TP_SIZES
    ep_sizes: Sequence[int] = EP_SIZES
    generic: bool = False


@dataclass(frozen=True)
class ShapeSource:
    """Sizes of a model that belong together.

    Attributes:
        names: the variables of the sizes.
        sizes_of: yields the parts of a model with these sizes, for each way to divide the model.
    """

    names: tuple[str, ...]
    sizes_of: Callable[[ModelFacts, Targets], Iterable[ModelPart]]


@dataclass(frozen=True)
class ShapeOrigin:
    """The model that sizes come from, the part of the model, how it is divided, and its calls in a step."""

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
    names = SOURCES[axis.source].names
    found: dict[tuple[int, ...], list[ShapeOrigin]] = {}
    for model in targets.models:
        for part, sizes, calls, division in SOURCES[axis.source].sizes_of(model, targets):
            found.setdefault(sizes, []).append(ShapeOrigin(model.name, part, division, calls))
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


def _per_tp(
    sizes_of: Callable[[ModelFacts, int], Iterable[ModelPart]],
) -> Callable[[ModelFacts, Targets], Iterable[ModelPart]]:
    """Yields the sizes on one device for each size of tensor parallelism."""

    def of_all(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
        for tp in model.tp_sizes(targets.tp_sizes):
            for part in sizes_of(model, tp):
                yield part._replace(division=f"tp {tp}")

    return of_all


def _linears(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    for linear in model.linears(tp):
        yield ModelPart(linear.name, (linear.n, linear.k), linear.calls)


#: Linear layers that engines do not quantize.
NOT_QUANTIZED = frozenset({"lm_head", "router", "indexer_weights", "indexer_k", "shared_expert_gate", "in_proj_ba"})


def _quantized(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    for part in _linears(model, tp):
        if part.name not in NOT_QUANTIZED:
            yield part


def _hidden(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    yield _residual(model)


def _residual(model: ModelFacts) -> ModelPart:
    """Returns the residual stream, which attention and the feed-forward network of each layer read and add to."""
    return ModelPart("hidden", (model.hidden,), 2 * model.layers)


def _widths(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    """Yields the features of tensors between layers."""
    yield _residual(model)
    yield from _gated(model, tp)
    if model.latent is not None and model.latent.q_lora:
        yield ModelPart("q_lora", (model.latent.q_lora,), model.attention_layers)
    if model.latent is not None:
        yield ModelPart("kv_lora", (model.latent.kv_lora,), model.attention_layers)


def _norms(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    yield _residual(model)
    if model.latent is not None and model.latent.q_lora:
        yield ModelPart("q_lora", (model.latent.q_lora,), model.attention_layers)


def _head_norms(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    if model.head_norms:
        yield ModelPart("query heads", (model.heads // tp, model.head_dim), model.attention_layers)
        yield ModelPart("key heads", (model.kv_heads_on_device(tp), model.head_dim), model.attention_layers)


def _gated(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    """Yields the features of feed-forward networks after the gate."""
    if model.intermediate:
        yield ModelPart("feed-forward", (model.intermediate // tp,), model.layers_with("down"))
    if model.experts is not None:
        if model.experts.shared:
            shared = (model.experts.shared // tp,)
            yield ModelPart("shared experts", shared, model.layers_with("shared_down"))
        yield ModelPart("expert", (model.experts.width,), model.layers_with("router"))


def _attention(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    """Yields query heads, key heads and features of a head; nothing for latent attention."""
    if model.latent is None:
        sizes = (model.heads // tp, model.kv_heads_on_device(tp), model.head_dim)
        yield ModelPart("attention", sizes, model.attention_layers)


def _latent(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    if model.latent is not None:
        latent = model.latent
        sizes = (model.heads // tp, latent.kv_lora, latent.nope, latent.rope, latent.value)
        yield ModelPart("attention", sizes, model.attention_layers)


def _latent_cache(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    if model.latent is not None:
        yield ModelPart("cache", (model.latent.kv_lora, model.latent.rope), model.attention_layers)


def _angles(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    """Yields the features that a rotary embedding rotates."""
    rotated = model.latent.rope if model.latent is not None else model.head_dim
    yield ModelPart("rotary embedding", (rotated,), model.attention_layers)


def _sparse(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    if model.latent is not None and model.indexer is not None:
        sizes = (model.heads // tp, model.latent.kv_lora, model.latent.rope, model.indexer.top_k)
        yield ModelPart("attention", sizes, model.attention_layers)


def _indexer(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    if model.indexer is not None:
        sizes = (model.indexer.heads, model.indexer.head_dim, model.indexer.top_k)
        yield ModelPart("indexer", sizes, model.indexer.layers)


def _vocab(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    yield ModelPart("logits", (model.vocab,), 1)


def _embedding(model: ModelFacts, tp: int) -> Iterator[ModelPart]:
    yield ModelPart("embedding", (-(-model.vocab // tp), model.hidden), 1)


def _router(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    if model.experts is not None:
        sizes = (model.experts.count, model.experts.top_k, model.hidden)
        yield ModelPart("router", sizes, model.layers_with("router"))


def _experts(model: ModelFacts, targets: Targets) -> Iterator[ModelPart]:
    """Yields (experts on a device, their width, hidden, top_k, ep)."""
    for count, width, ep in model.expert_shares(targets.tp_sizes, targets.ep_sizes):
        assert model.experts is not None
        sizes = (count, width, model.hidden, model.experts.top_k, ep)
        yield ModelPart("experts", sizes, model.layers_with("router"), f"ep {ep}")


SOURCES: dict[str, ShapeSource] = {
    "linears": ShapeSource(("n", "k"), _per_tp(_linears)),
    "quantized_linears": ShapeSource(("n", "k"), _per_tp(_quantized)),
    "hidden": ShapeSource(("h",), _hidden),
    "widths": ShapeSource(("h",), _per_tp(_widths)),
    "norms": ShapeSource(("h",), _norms),
    "head_norms": ShapeSource(("g", "d"), _per_tp(_head_norms)),
    "gated": ShapeSource(("w",), _per_tp(_gated)),
    "attention": ShapeSource(("q", "kv", "d"), _per_tp(_attention)),
    "latent": ShapeSource(("q", "lora", "nope", "rope", "v"), _per_tp(_latent)),
    "latent_cache": ShapeSource(("lora", "rope"), _latent_cache),
    "angles": ShapeSource(("d",), _angles),
    "sparse": ShapeSource(("q", "lora", "rope", "top"), _per_tp(_sparse)),
    "indexer": ShapeSource(("q", "d", "top"), _indexer),
    "vocab": ShapeSource(("vocab",), _vocab),
    "embedding": ShapeSource(("vocab", "h"), _per_tp(_embedding)),
    "router": ShapeSource(("e", "top", "h"), _router),
    "experts": ShapeSource(("e", "w", "h", "top", "ep"), _experts),
}


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
