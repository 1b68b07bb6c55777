"""The sizes that models give to the axes of patterns, for each way to divide a model among devices.

Also finds the models that a user names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from opatlas.text import suggest
from opatlas.theory.models import EP_SIZES, TP_SIZES, ModelFacts, TargetError, built_in_models, models_by_name
from opatlas.theory.patterns import Axis, Pattern

#: A label for the coverage report, such as "gate_up, tp 8", and the sizes.
LabelledSizes = tuple[str, tuple[int, ...]]


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
        sizes_of: yields the sizes of a model, with a label, for each way to divide the model.
    """

    names: tuple[str, ...]
    sizes_of: Callable[[ModelFacts, Targets], Iterable[LabelledSizes]]


@dataclass(frozen=True)
class ShapeOrigin:
    """The model that sizes come from, and the part of the model."""

    model: str
    part: str


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
    """Orders shapes such that the models take turns; generic shapes come last.

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
    """Returns a source of the pattern that none of the models has; "" without such a source."""
    return next((axis.source for axis in pattern.axes if axis.source and not _axis_shapes(axis, targets)), "")


def _axis_shapes(axis: Axis, targets: Targets) -> list[Shape]:
    names = SOURCES[axis.source].names
    found: dict[tuple[int, ...], list[ShapeOrigin]] = {}
    for model in targets.models:
        for part, values in SOURCES[axis.source].sizes_of(model, targets):
            found.setdefault(values, []).append(ShapeOrigin(model.name, part))
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
    sizes_of: Callable[[ModelFacts, int], Iterable[LabelledSizes]],
) -> Callable[[ModelFacts, Targets], Iterable[LabelledSizes]]:
    """Yields the sizes on one device for each size of tensor parallelism."""

    def of_all(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
        for tp in model.tp_sizes(targets.tp_sizes):
            for part, values in sizes_of(model, tp):
                yield f"{part}, tp {tp}", values

    return of_all


def _linears(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    for linear in model.linears(tp):
        yield linear.name, (linear.n, linear.k)


def _quantized(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    """Yields linear layers except the router, the indexer and the LM head, which engines do not quantize."""
    for linear in model.linears(tp):
        if linear.name not in ("lm_head", "router", "indexer_weights", "indexer_k"):
            yield linear.name, (linear.n, linear.k)


def _hidden(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    yield "hidden", (model.hidden,)


def _widths(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    """Yields the features of tensors between layers."""
    yield "hidden", (model.hidden,)
    yield from _gated(model, tp)
    if model.latent is not None and model.latent.q_lora:
        yield "q_lora", (model.latent.q_lora,)
    if model.latent is not None:
        yield "kv_lora", (model.latent.kv_lora,)


def _norms(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    yield "hidden", (model.hidden,)
    if model.latent is not None and model.latent.q_lora:
        yield "q_lora", (model.latent.q_lora,)


def _head_norms(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    if model.head_norms:
        yield "query heads", (model.heads // tp, model.head_dim)
        yield "key heads", (model.kv_heads_on_device(tp), model.head_dim)


def _gated(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    """Yields the features of feed-forward networks after the gate."""
    if model.intermediate:
        yield "feed-forward", (model.intermediate // tp,)
    if model.experts is not None:
        if model.experts.shared:
            yield "shared experts", (model.experts.shared // tp,)
        yield "expert", (model.experts.width,)


def _attention(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    """Yields query heads, key heads and features of a head; nothing for latent attention."""
    if model.latent is None:
        yield "attention", (model.heads // tp, model.kv_heads_on_device(tp), model.head_dim)


def _latent(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    if model.latent is not None:
        latent = model.latent
        yield "attention", (model.heads // tp, latent.kv_lora, latent.nope, latent.rope, latent.value)


def _latent_cache(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    if model.latent is not None:
        yield "cache", (model.latent.kv_lora, model.latent.rope)


def _angles(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    """Yields the features that a rotary embedding rotates."""
    yield "rotary embedding", (model.latent.rope if model.latent is not None else model.head_dim,)


def _sparse(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    if model.latent is not None and model.indexer is not None:
        heads = model.heads // tp
        yield "attention", (heads, model.latent.kv_lora, model.latent.rope, model.indexer.top_k)


def _indexer(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    if model.indexer is not None:
        yield "indexer", (model.indexer.heads, model.indexer.head_dim, model.indexer.top_k)


def _vocab(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    yield "logits", (model.vocab,)


def _embedding(model: ModelFacts, tp: int) -> Iterator[LabelledSizes]:
    yield "embedding", (-(-model.vocab // tp), model.hidden)


def _router(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    if model.experts is not None:
        yield "router", (model.experts.count, model.experts.top_k, model.hidden)


def _experts(model: ModelFacts, targets: Targets) -> Iterator[LabelledSizes]:
    """Yields (experts on a device, their width, hidden, top_k, ep)."""
    for count, width, ep in model.expert_shares(targets.tp_sizes, targets.ep_sizes):
        assert model.experts is not None
        yield f"experts, ep {ep}", (count, width, model.hidden, model.experts.top_k, ep)


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


def resolve_targets(names: Sequence[str], tp_sizes: Sequence[int] = (), ep_sizes: Sequence[int] = ()) -> Targets:
    """Returns the models of some names, with the sizes of parallelism that divide them.

    Args:
        names: see `resolve_model`; none: the built-in models and generic shapes.
        tp_sizes, ep_sizes: sizes of tensor and expert parallelism; none: the default sizes.

    Raises:
        OpAtlasError: a model is unknown, or none of the sizes divides a model.
    """
    models = [resolve_model(name) for name in names] or list(built_in_models())
    targets = Targets(models, tuple(tp_sizes) or TP_SIZES, tuple(ep_sizes) or EP_SIZES, generic=not names)
    for model in models:
        if not model.tp_sizes(targets.tp_sizes):
            raise TargetError(
                "--tp-sizes",
                ",".join(map(str, tp_sizes)),
                f"none of these divides {model.name}; these do: {', '.join(map(str, model.tp_sizes(range(1, 65))))}",
            )
        if names and model.experts is not None and not model.ep_sizes(targets.ep_sizes):
            raise TargetError(
                "--ep-sizes",
                ",".join(map(str, ep_sizes)),
                f"none of these divides the {model.experts.count} experts of {model.name}",
            )
    return targets


def resolve_model(name: str) -> ModelFacts:
    """Returns a model by its name.

    Args:
        name: a built-in model's name or short name, a config.json or its folder, or an architecture of transformers.

    Raises:
        OpAtlasError: the name is none of these, or needs the transformers package, which is not installed.
    """
    known = models_by_name().get(name.lower())
    if known is not None:
        return known
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        from opatlas.theory.architectures import load_config_file

        return load_config_file(path)
    if path.suffix == ".json":
        raise TargetError("--target-models", name, "no such file: give the path of a model's config.json")
    from opatlas.theory.architectures import architectures, load_architecture

    if name.lower() in architectures():
        return load_architecture(name.lower())
    others = [*models_by_name(), *architectures()]
    remedy = (
        "give a model's config.json, or a name of --target-models in docs/theory-rows.md"
        if architectures()
        else "give one of the built-in names, or install transformers, which knows more architectures and reads "
        "config.json files: pip install 'opatlas[models]'"
    )
    raise TargetError("--target-models", name, f"no such model{suggest(name, others)}: {remedy}")
