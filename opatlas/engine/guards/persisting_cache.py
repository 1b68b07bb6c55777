"""Resets the part of a GPU's L2 cache that a candidate may have set aside for its inputs."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import torch

#: cudaLimitPersistingL2CacheSize of cudaLimit.
_PERSISTING_L2_SIZE = 6


class PersistingCache:
    """The bytes of the L2 cache that accesses may keep, as they are when this object is made; 0 on other devices."""

    def __init__(self, device: torch.device, runtime: Any = None) -> None:
        """`runtime` is the CUDA runtime; None: the one that torch has loaded."""
        self._runtime = (runtime or _cuda_runtime()) if device.type == "cuda" else None
        self._before = self._limit()

    def reset(self) -> list[str]:
        """Gives the limit its value back, and frees kept lines. Returns a phrase if a candidate changed the limit."""
        if self._runtime is None or (after := self._limit()) == self._before:
            return []
        self._runtime.cudaDeviceSetLimit(_PERSISTING_L2_SIZE, ctypes.c_size_t(self._before))
        self._runtime.cudaCtxResetPersistingL2Cache()
        return [f"changed the persisting L2 cache {self._before} -> {after} bytes; restored"]

    def _limit(self) -> int:
        if self._runtime is None:
            return 0
        found = ctypes.c_size_t()
        status = self._runtime.cudaDeviceGetLimit(ctypes.byref(found), _PERSISTING_L2_SIZE)
        return 0 if status else found.value


def _cuda_runtime() -> ctypes.CDLL | None:
    """Returns the CUDA runtime that torch has loaded; None if the process maps none."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = sorted({line.split()[-1] for line in lines if re.search(r"/libcudart\.so[.\d]*$", line)})
    return ctypes.CDLL(paths[0]) if paths else None
