"""Whose shapes a run wants, from the names that a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.text import closest
from opatlas.theory.built_in import ALIASES, BUILT_IN, QWEN3_0_6B
from opatlas.theory.models import EP_SIZES, TP_SIZES, ModelFacts
from opatlas.theory.sources import Targets

_NAMED = {model.name.lower(): model for model in (*BUILT_IN, QWEN3_0_6B)} | ALIASES


def targets_of(names: Sequence[str], tp_sizes: Sequence[int] = (), ep_sizes: Sequence[int] = ()) -> Targets:
    """The models of these names, divided in these ways.

    Args:
        names: see `model_of`; none: the built-in models, and shapes of no model in particular.
        tp_sizes, ep_sizes: sizes of tensor and expert parallelism; none: the usual ones that fit a model.

    Raises:
        OpAtlasError: a model that is not known, or cannot be divided in any of these ways.
    """
    models = [model_of(name) for name in names] or list(BUILT_IN)
    targets = Targets(models, tuple(tp_sizes) or TP_SIZES, tuple(ep_sizes) or EP_SIZES, generic=not names)
    for model in models:
        if not model.tp_sizes(targets.tp_sizes):
            raise OpAtlasError(
                f"--tp-sizes {','.join(map(str, tp_sizes))}: {model.name} can be divided by none of these; "
                f"it can by {', '.join(map(str, model.tp_sizes(range(1, 65))))}"
            )
        if names and model.experts is not None and not model.ep_sizes(targets.ep_sizes):
            raise OpAtlasError(
                f"--ep-sizes {','.join(map(str, ep_sizes))}: none of these divides the {model.experts.count} experts "
                f"of {model.name}"
            )
    return targets


def model_of(name: str) -> ModelFacts:
    """A built-in model by its name or short name; a config.json, or a folder with one; an architecture of transformers.

    Raises:
        OpAtlasError: it is none of these, or needs the transformers package and that is not installed.
    """
    known = _NAMED.get(name.lower())
    if known is not None:
        return known
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        from opatlas.theory.architectures import model_of_config_file

        return model_of_config_file(path)
    if path.suffix == ".json":
        raise OpAtlasError(f"--target-models {name}: no such file; give the path of a model's config.json")
    from opatlas.theory.architectures import architectures, model_of_architecture

    if name.lower() in architectures():
        return model_of_architecture(name.lower())
    others = [*_NAMED, *architectures()]
    remedy = (
        "give a model's config.json, or a name of --target-models in docs/theory-rows.md"
        if architectures()
        else "give one of the built-in names, or pip install 'opatlas[models]', which knows the architectures of "
        "transformers and reads config.json files"
    )
    raise OpAtlasError(f"--target-models {name}: there is no such model{closest(name, others)}; {remedy}")
