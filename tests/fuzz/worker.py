"""The process that runs inputs: an input that crashes it, hangs it or fills its memory ends it, and nothing else.

It prints a line of JSON for each finding, and one with the number of inputs every now and then.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from .mutation import Mutator
from .target import Target, emptied

#: The memory that an input of 64 KiB may take beyond that of the process.
_MEMORY_BYTES = 1 << 30
_REPORT_EVERY_S = 0.2
#: Inputs of the same kind of finding are not reported again, and a target with so many kinds is not run on.
_MOST_KINDS = 10


def limit_memory() -> None:
    """Makes an input that takes much memory a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def check(target: Target, data: bytes, folder: Path) -> None:
    """Checks one input; a hang ends the process with a traceback of where it hangs."""
    faulthandler.dump_traceback_later(target.limit_s, exit=True)
    try:
        target.check(data, folder)
    finally:
        faulthandler.cancel_dump_traceback_later()
        emptied(folder)


class Findings:
    """Runs inputs, and reports those that find something new."""

    def __init__(self, target: Target, current: Path, folder: Path) -> None:
        """
        Args:
            current: a file for the input that is being run, for who sees this process end.
            folder: an empty folder for the target.
        """
        faulthandler.enable()
        warnings.simplefilter("ignore")
        self._target = target
        self._current = current
        self._folder = folder
        self._kinds: set[str] = set()
        self._inputs = 0
        self._reported = time.monotonic()

    @property
    def enough(self) -> bool:
        """Whether there are so many kinds of findings that more are useless."""
        return len(self._kinds) >= _MOST_KINDS

    def run(self, data: bytes) -> None:
        """Runs one input."""
        self._current.write_bytes(data)
        try:
            check(self._target, data, self._folder)
        except Exception as error:
            kind = kind_of(error)
            if kind not in self._kinds:
                self._kinds.add(kind)
                _report(kind=kind, text=traceback.format_exc(limit=-12), input=data.hex())
        self._inputs += 1
        if time.monotonic() - self._reported > _REPORT_EVERY_S:
            self.report_count()

    def report_count(self) -> None:
        """Reports how many inputs were run."""
        self._reported = time.monotonic()
        _report(inputs=self._inputs)


def run(target: Target, seed: int, seconds: float, current: Path) -> None:
    """Runs inputs that are drawn from a seed, until the time is up."""
    end = time.monotonic() + seconds
    good = list(target.seeds())
    mutator = Mutator(seed, good, target.words)
    with tempfile.TemporaryDirectory(dir=current.parent) as name:
        findings = Findings(target, current, Path(name))
        for data in good:
            findings.run(data)
        # Memory that a target loads for its first inputs does not count for an input.
        limit_memory()
        while time.monotonic() < end and not findings.enough:
            findings.run(mutator.draw())
    findings.report_count()


def kind_of(error: BaseException) -> str:
    """The type of an exception and the line that raised it, which distinguish findings."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    # The line of the target with the expectation counts; of other exceptions the innermost one.
    own = [frame for frame in own if frame.name not in ("expect", "refusing")] or list(frames)
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"


def _report(**values: object) -> None:
    sys.__stdout__.write(json.dumps(values) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
