"""All targets, by name."""

from __future__ import annotations

import importlib

from .commands import COMMANDS
from .readers import READERS
from .target import Target

TARGETS: dict[str, Target] = {target.name: target for target in (*COMMANDS, *READERS)}


def target_named(name: str) -> Target:
    """A target by its name, or one of another module as `module:NAME`. Raises KeyError, ImportError."""
    if ":" not in name:
        return TARGETS[name]
    module, _, attribute = name.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    assert isinstance(target, Target)
    return target
