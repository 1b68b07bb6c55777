"""Guards the process in which a candidate runs: functions, threads, settings, files, and the GPU's cache."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import opatlas
from opatlas.outer.candidates.judgement import CandidateRejected, ErrorClass
from opatlas.outer.guards.functions import FunctionTable
from opatlas.outer.guards.settings import TorchSettings
from opatlas.outer.guards.threads import ThreadWatch


class ProcessGuard:
    """Compares the process with its state when this object was made, before the candidate was imported.

    Attributes:
        notes: the restored settings, a phrase for each change.
    """

    def __init__(self, device: torch.device, files: Iterable[Path] = ()) -> None:
        """`files` are those of the task and of the candidate."""
        self.notes: list[str] = []
        self._files = PackageFiles(files)
        self._settings = TorchSettings(device.type)
        self._cache = PersistingCache(device)
        self.threads = ThreadWatch()
        self._functions = FunctionTable()

    def examine(self, step: str) -> None:
        """Restores settings, and raises CandidateRejected if functions were replaced or threads are left.

        Args:
            step: the step of the candidate meanwhile ("its import").
        """
        self.restore(step)
        self._functions.expect_same(step)
        self.threads.expect_same()

    def restore(self, step: str) -> None:
        """Restores settings of torch and of the GPU that the candidate has changed."""
        restored = (*self._settings.restore(), *self._cache.reset())
        self.notes += [note for phrase in restored if (note := f"{step} {phrase}") not in self.notes]

    def expect_files(self) -> None:
        """Raises CandidateRejected if a file was changed. Takes some hundredths of a second."""
        self._files.expect_same()


#: Endings of the files that decide about a row. Data and pages are left out.
_SUFFIXES = frozenset({".py", ".ini", ".json", ".yaml"})


class PackageFiles:
    """The files of OpAtlas' package, and of a row, as they are when this object is made."""

    def __init__(self, further: Iterable[Path] = ()) -> None:
        """`further` are files of the task and of the candidate."""
        self._further = tuple(further)
        self._before = self._read()

    def expect_same(self) -> None:
        """Raises CandidateRejected if a file was changed, removed or added."""
        after = self._read()
        changed = [path for path in {**self._before, **after} if self._before.get(path) != after.get(path)]
        if changed:
            raise CandidateRejected(
                ErrorClass.HACK,
                "edited-files",
                f"{changed[0]} was changed while the candidate ran: restore it, and run the session again",
            )

    def _read(self) -> Mapping[Path, bytes]:
        roots = [Path(root) for root in opatlas.__path__]
        own = (roots[0], *(root / folder for root in roots for folder in ("bench", "plugins", "shapes")))
        paths = (path for root in own if root.is_dir() for path in root.rglob("*") if path.suffix in _SUFFIXES)
        return {path: _digest(path) for path in (*paths, *self._further)}


def _digest(path: Path) -> bytes:
    try:
        return sha256(path.read_bytes()).digest()
    except OSError:
        return b""


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
