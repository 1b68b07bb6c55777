"""Restores the settings of torch that a candidate changes, and names them. So the candidate gains nothing by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from opatlas.run.process_state import ProcessState, changes

#: Sets each value of a ProcessState that has a function for it.
_SETTERS: Mapping[str, Callable[[Any], object]] = {
    "torch threads": torch.set_num_threads,
    "default dtype": torch.set_default_dtype,
    "default device": torch.set_default_device,
    "deterministic algorithms": torch.set_deterministic_debug_mode,
    "float32 matmul precision": torch.set_float32_matmul_precision,
    "grad mode": torch._C._set_grad_enabled,
    "flash attention": torch.backends.cuda.enable_flash_sdp,
    "memory efficient attention": torch.backends.cuda.enable_mem_efficient_sdp,
    "math attention": torch.backends.cuda.enable_math_sdp,
    "cuDNN attention": torch.backends.cuda.enable_cudnn_sdp,
}
#: Values of a ProcessState that are attributes of torch ("torch.backends.cudnn.benchmark").
_ATTRIBUTE = "torch.backends."


class TorchSettings:
    """The settings of torch in this process, as they are when this object is made."""

    def __init__(self, kind: str) -> None:
        """`kind` is torch's name for the type of the device."""
        self._state = ProcessState(kind)
        self._before = {name: value for name, value in self._state.read().items() if _setter(name)}

    def restore(self) -> list[str]:
        """Gives changed settings their values back. Returns a phrase for each."""
        after = self._state.read()
        changed = [name for name, value in self._before.items() if after[name] != value]
        if not changed:
            return []
        phrases = changes(self._before, {name: after[name] for name in changed})
        # The precision of products has several names: the last one that is set decides.
        for name in changed:
            setter = _setter(name)
            assert setter is not None
            try:
                setter(self._before[name])
            except (RuntimeError, TypeError, ValueError) as error:
                phrases.append(f"{name} cannot be restored ({error})")
        return [f"changed {phrase}; restored" for phrase in phrases]


def _setter(name: str) -> Callable[[Any], object] | None:
    if name in _SETTERS:
        return _SETTERS[name]
    return partial(_set, name) if name.startswith(_ATTRIBUTE) else None


def _set(name: str, value: Any) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(attrgetter(owner.removeprefix("torch."))(torch), attribute, value)
