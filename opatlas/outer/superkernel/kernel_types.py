"""Facts about kernel types: which types split a SuperKernel, and which module and phase a type tells.

`kernel_types.yaml` has the patterns with their sources.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.text import Word
from opatlas.yaml_file import read_yaml


class Module(Word):
    """A part of a layer of a model."""

    ATTENTION = "attention"
    MOE = "moe"
    FFN = "ffn"


class StepPhase(Word):
    """What a step computes."""

    DECODE = "decode"
    PREFILL = "prefill"
    TRAINING = "training"
    UNKNOWN = "unknown"


#: The module of a kernel, by its name and its type; None if neither tells one.
ModuleOf = Callable[[str, str], "Module | None"]


class TypePatterns(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"patterns": "types"}):
    """Kernel types that a SuperKernel may, or may not, hold, who says so, and why."""

    patterns: tuple[str, ...]
    source: str
    reason: str = ""


class KernelTypes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The patterns of `kernel_types.yaml`."""

    collectives: TypePatterns
    unfusable: tuple[TypePatterns, ...]
    modules: dict[Module, tuple[str, ...]]
    attention: tuple[str, ...]
    normalization: tuple[str, ...]
    phases: dict[StepPhase, tuple[str, ...]]


@cache
def known_types() -> KernelTypes:
    """Returns the patterns that come with OpAtlas."""
    text = resources.files(__package__).joinpath("kernel_types.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=KernelTypes)


@lru_cache(maxsize=1 << 16)
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether one of the patterns fits a whole name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_normalization(kernel_type: str) -> bool:
    """Returns whether a kernel type normalizes, so that a module of a layer may begin with it."""
    return matches(kernel_type, known_types().normalization)


def is_attention(kernel_type: str) -> bool:
    """Returns whether a kernel type computes an attention."""
    return matches(kernel_type, known_types().attention)


def unfusable_source(kernel_type: str) -> str:
    """Returns who says that a kernel type splits a SuperKernel; "" if nobody does."""
    return next((rule.source for rule in known_types().unfusable if matches(kernel_type, rule.patterns)), "")


def module_of_type(kernel_type: str) -> Module | None:
    """Returns the module that a kernel type tells; None if it tells none."""
    return next((module for module, patterns in known_types().modules.items() if matches(kernel_type, patterns)), None)


def phase_of_type(kernel_type: str) -> StepPhase | None:
    """Returns the phase that a kernel type tells; None if it tells none."""
    return next((phase for phase, patterns in known_types().phases.items() if matches(kernel_type, patterns)), None)


def read_module_map(path: Path) -> ModuleOf:
    """Reads a YAML mapping of patterns to modules, such as `"*self_attn*": attention`.

    Returns:
        The module of a kernel, by its name and its type: that of the first pattern which fits one of the two.

    Raises:
        OpAtlasError: the file cannot be read, is no such mapping, or names another module.
    """
    try:
        found = read_yaml(path, dict[str, Module])
    except OpAtlasError as error:
        raise OpAtlasError(f'{error}: write lines such as "*self_attn*": attention, or moe, or ffn') from None

    def module_of(name: str, kernel_type: str) -> Module | None:
        both = (name, kernel_type)
        fitting = (module for pattern, module in found.items() if any(matches(each, (pattern,)) for each in both))
        return next(fitting, None)

    return module_of
