"""Facts about kernel types: which types split a SuperKernel, and which module and phase a type tells.

`kernel_types.yaml` has the patterns with their sources.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

import msgspec

from opatlas.errors import OpAtlasError, TableError
from opatlas.files import read_safely
from opatlas.yaml_file import YamlError, key_lines, parse_yaml

_FILE = "kernel_types.yaml"
#: A module map with more bytes is another file.
_MOST_BYTES = 1 << 20


class Module(str, Enum):
    """A part of a layer of a model."""

    ATTENTION = "attention"
    MOE = "moe"
    FFN = "ffn"

    def __str__(self) -> str:
        return self.value


class StepPhase(str, Enum):
    """What a step computes."""

    DECODE = "decode"
    PREFILL = "prefill"
    TRAINING = "training"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


class Collectives(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"patterns": "types"}):
    """Collectives that a SuperKernel may hold, and who says so."""

    patterns: tuple[str, ...]
    source: str


class UnfusableType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"patterns": "types"}):
    """Kernel types that split a SuperKernel, why, and who says so."""

    patterns: tuple[str, ...]
    reason: str
    source: str


class KernelTypes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The patterns of `kernel_types.yaml`."""

    collectives: Collectives
    unfusable: tuple[UnfusableType, ...]
    modules: dict[Module, tuple[str, ...]]
    attention: tuple[str, ...]
    normalization: tuple[str, ...]
    phases: dict[StepPhase, tuple[str, ...]]


@cache
def known_types() -> KernelTypes:
    """Returns the patterns that come with OpAtlas."""
    return msgspec.yaml.decode(resources.files(__package__).joinpath(_FILE).read_bytes(), type=KernelTypes)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether one of the patterns fits a whole name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@lru_cache(maxsize=4096)
def is_normalization(kernel_type: str) -> bool:
    """Returns whether a kernel type normalizes, so that a module of a layer may begin with it."""
    return matches(kernel_type, known_types().normalization)


@lru_cache(maxsize=4096)
def is_attention(kernel_type: str) -> bool:
    """Returns whether a kernel type computes an attention."""
    return matches(kernel_type, known_types().attention)


@lru_cache(maxsize=4096)
def is_supported_collective(kernel_type: str) -> bool:
    """Returns whether a SuperKernel may hold this collective."""
    return matches(kernel_type, known_types().collectives.patterns)


@lru_cache(maxsize=4096)
def unfusable_rule(kernel_type: str) -> UnfusableType | None:
    """Returns the rule by which a kernel type splits a SuperKernel; None if none does."""
    return next((rule for rule in known_types().unfusable if matches(kernel_type, rule.patterns)), None)


@lru_cache(maxsize=4096)
def module_of_type(kernel_type: str) -> Module | None:
    """Returns the module that a kernel type tells; None if it tells none."""
    return next((module for module, patterns in known_types().modules.items() if matches(kernel_type, patterns)), None)


@lru_cache(maxsize=4096)
def phase_of_type(kernel_type: str) -> StepPhase | None:
    """Returns the phase that a kernel type tells; None if it tells none."""
    return next((phase for phase, patterns in known_types().phases.items() if matches(kernel_type, patterns)), None)


def read_module_map(path: Path) -> Callable[[str, str], Module | None]:
    """Reads a YAML mapping of patterns to modules, such as `"*self_attn*": attention`.

    Returns:
        The module of a kernel, by its name and its type: that of the first pattern which fits one of the two.

    Raises:
        OpAtlasError: the file cannot be read, is no such mapping, or names another module.
    """
    try:
        text = read_safely(path, _MOST_BYTES)
        content = parse_yaml(text, strict=True)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path") from None
    except YamlError as error:
        raise OpAtlasError(f"{path}: not YAML ({error}): correct the file") from None
    if not isinstance(content, dict) or not content:
        raise OpAtlasError(f'{path}: no mapping of patterns to modules: write lines such as "*self_attn*": attention')
    words = [str(module) for module in Module]
    for pattern, word in content.items():
        if word not in words:
            line = key_lines(text).get(pattern)
            raise TableError(
                path, f"the module of {pattern!r} is {word!r}", f"Name one of {', '.join(words)}", line=line
            )
    found = {pattern: Module(word) for pattern, word in content.items()}

    @cache
    def module_of(name: str, kernel_type: str) -> Module | None:
        return next(
            (
                module
                for pattern, module in found.items()
                if matches(name, [pattern]) or matches(kernel_type, [pattern])
            ),
            None,
        )

    return module_of
