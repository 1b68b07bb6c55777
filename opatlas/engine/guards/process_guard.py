"""Guards the process in which a candidate runs: functions, threads, settings, files, and the GPU's cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from opatlas.engine.guards.functions import FunctionTable
from opatlas.engine.guards.package_files import PackageFiles
from opatlas.engine.guards.persisting_cache import PersistingCache
from opatlas.engine.guards.settings import TorchSettings
from opatlas.engine.guards.threads import ThreadWatch


class ProcessGuard:
    """Compares the process with what it was when this object was made, before the candidate was imported.

    Attributes:
        notes: what was restored, a phrase for each change.
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
            step: what the candidate did meanwhile ("its import").
        """
        self.restore(step)
        self._functions.expect_same(step)
        self.threads.expect_same()

    def restore(self, step: str) -> None:
        """Restores settings of torch and of the GPU that the candidate has changed."""
        told = (*self._settings.restore(), *self._cache.reset())
        self.notes += [note for phrase in told if (note := f"{step} {phrase}") not in self.notes]

    def expect_files(self) -> None:
        """Raises CandidateRejected if a file was changed. Takes some hundredths of a second."""
        self._files.expect_same()
