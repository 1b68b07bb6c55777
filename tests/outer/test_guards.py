"""The guards of candidates: allocations, results, functions that measure, files of OpAtlas."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest
import torch

import opatlas
from opatlas.outer.judging.failures import own_files
from opatlas.outer.judging.judgement import CandidateRejected
from opatlas.outer.judging.memory import PoisonedAllocations, poisoned_elements
from opatlas.outer.judging.results import same_results
from opatlas.outer.judging.trial import ProcessGuard
from opatlas.run import sampling
from opatlas.run.devices import cuda
from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.instruments import instrument
from opatlas.run.instruments.instrument import callback


def test_memory_without_values_is_poisoned() -> None:
    with PoisonedAllocations():
        made = [
            torch.empty(3),
            torch.empty_like(torch.ones(2, 2).to(torch.bfloat16)),
            torch.ones(2).new_empty(4),
            torch.empty(3, dtype=torch.int32),
            torch.empty(0).resize_(2),
            torch.empty(2, dtype=torch.complex64),
            torch.zeros(5),
        ]
    assert [poisoned_elements([each]) for each in made] == [3, 4, 4, 3, 2, 2, 0]


@pytest.mark.parametrize(
    ("dtype", "factor", "same"),
    [
        (torch.float32, 1 + 1e-5, True),
        (torch.float32, 1.01, False),
        (torch.bfloat16, 1.01, True),
        (torch.bfloat16, 1.1, False),
        (torch.complex64, 1.01, False),
        (torch.int64, 2, False),
    ],
)
def test_results_are_the_same_within_two_tolerances(dtype: torch.dtype, factor: float, same: bool) -> None:
    values = torch.arange(1, 50).to(torch.float32)
    one, other = values.to(dtype), (values * factor).to(dtype)
    assert same_results((one,), (other,)) is same
    assert not same_results((one,), (one, one))
    assert same_results((one, 2.0, None), (one, 2.0, None))
    assert not same_results((one, 2.0), (one, 3.0))
    assert not same_results((one,), (one[1:],))


def test_other_code_in_the_same_function_is_named() -> None:
    guard, code = ProcessGuard(), instrument.Timer.sample.__code__
    try:
        instrument.Timer.sample.__code__ = (lambda self, call, before_each, rule: None).__code__
        with pytest.raises(CandidateRejected, match="sample"):
            guard.examine("its import")
    finally:
        instrument.Timer.sample.__code__ = code
    guard.examine("its import")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (sampling.Turns, "split"),
        (sampling.Sampling, "take"),
        (cuda.UnthrottledInstrument, "sample"),
        (CpuDevice, "flush_cache"),
    ],
)
def test_whatever_decides_a_duration_is_guarded(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ProcessGuard()
    monkeypatch.setattr(owner, name, lambda *arguments: None)
    with pytest.raises(CandidateRejected, match=name):
        guard.examine("its import")


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_thread_of_a_library_that_calls_an_instrument_is_not_the_candidates(
    is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CUPTI has them: a native thread, which Python knows while it calls a function, begins at any time."""
    planted, begun, may_end = ModuleType("opatlas.run.instruments.planted"), Event(), Event()

    def completed(_: int | None) -> None:
        begun.set()
        may_end.wait(60)

    planted.completed = callback(completed) if is_ours else completed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, planted.__name__, planted)
    guard, process, thread = ProcessGuard(), ctypes.CDLL(None), ctypes.c_ulong()
    # The function takes and returns an address.
    begin = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(completed)
    assert process.pthread_create(ctypes.byref(thread), None, begin, None) == 0
    try:
        assert begun.wait(60)
        with contextlib.nullcontext() if is_ours else pytest.raises(CandidateRejected, match="completed"):
            guard.expect_same_hooks("its import")
    finally:
        may_end.set()
        process.pthread_join(thread, None)


def test_a_changed_file_of_opatlas_is_known_by_a_time_that_nobody_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a" / "row.py"
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.setattr(opatlas, "__path__", [str(tmp_path)])
    before = own_files()
    (tmp_path / "data.csv").write_text("")
    assert own_files() == before
    stat = file.stat()
    file.write_text("")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert {path for path, _ in own_files() ^ before} == {file}
    # What Python would import in its place, and what each Python runs when it starts.
    imported, started = tmp_path / "a" / "row.abi3.so", tmp_path / "more" / "sitecustomize.py"
    started.parent.mkdir()
    monkeypatch.syspath_prepend(started.parent)
    before = own_files()
    imported.write_text("")
    started.write_text("")
    assert {path for path, _ in own_files() ^ before} == {imported, started}
