"""The state of a process is read, and the changes of a row to it are named."""

from __future__ import annotations

import gc
import locale
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from replaying import job_of

from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.registry import replays
from opatlas.run.runner import ProcessState, Runner, changes


@contextmanager
def setting(change: Callable[[object], object], value: object, before: object) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


@contextmanager
def thread() -> Iterator[None]:
    done = threading.Event()
    left = threading.Thread(target=done.wait, name="left over")
    left.start()
    yield
    done.set()
    left.join()


@contextmanager
def patched(owner: object, name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *_, **__: None)
        yield


@contextmanager
def variable(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, "secret")
        yield


@contextmanager
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    yield
    signal.signal(signal.SIGALRM, before)


def set_alarm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


CHANGES = {
    "torch threads": lambda: setting(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()),
    "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.get_default_dtype()),
    "default device": lambda: setting(torch.set_default_device, "meta", None),
    "flushing of denormals": lambda: setting(torch.set_flush_denormal, True, False),
    "grad mode": lambda: setting(torch.set_grad_enabled, not torch.is_grad_enabled(), torch.is_grad_enabled()),
    "autocast of cpu": lambda: torch.autocast("cpu"),
    "float32 matmul precision": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "torch.backends.cudnn.benchmark": lambda: setting(
        lambda value: setattr(torch.backends.cudnn, "benchmark", value), True, torch.backends.cudnn.benchmark
    ),
    "math attention": lambda: setting(torch.backends.cuda.enable_math_sdp, False, True),
    "affinity": lambda: setting(
        lambda cores: os.sched_setaffinity(0, cores), {min(os.sched_getaffinity(0))}, os.sched_getaffinity(0)
    ),
    "umask": lambda: setting(os.umask, 0o007, os.umask(os.umask(0o022))),
    "working directory": lambda: setting(os.chdir, "/", Path.cwd()),
    "environment": lambda: variable("OMP_SCHEDULE"),
    "garbage collection": lambda: setting(lambda on: (gc.enable if on else gc.disable)(), False, True),
    "recursion limit": lambda: setting(sys.setrecursionlimit, 5000, sys.getrecursionlimit()),
    "locale": lambda: setting(
        lambda name: locale.setlocale(locale.LC_ALL, name),
        "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8",
        locale.setlocale(locale.LC_ALL),
    ),
    "running threads": thread,
    "signal handlers": handler,
    "timers": lambda: setting(set_alarm, 3600.0, 0.0),
    "blocked signals": lambda: setting(lambda how: signal.pthread_sigmask(how, [signal.SIGUSR2]), 0, 1),
    "functions": lambda: patched(torch, "abs"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_by_a_kernel_is_seen(name: str) -> None:
    if name == "affinity" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one core: no other affinity")
    state = ProcessState("cpu")
    before = state.read()
    with CHANGES[name]():
        found = changes(before, state.read())
    # A matmul precision changes the settings of backends, too.
    assert [change for change in found if change.startswith(name)]
    assert not [change for change in changes(before, state.read()) if change.startswith(name)]


def test_a_child_process_that_a_kernel_leaves_is_seen() -> None:
    """In a fork: this process may have children of other tests."""
    pid = os.fork()
    if pid == 0:
        state = ProcessState("cpu")
        before = state.read()
        child = os.fork()
        if child == 0:
            signal.pause()
        found = changes(before, state.read())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os._exit(0 if len(found) == 1 and "child" in found[0] and changes(before, state.read()) == [] else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(("owner", "name"), [(torch.Tensor, "sum"), (time, "perf_counter_ns")])
def test_functions_that_are_replaced_are_named(owner: object, name: str) -> None:
    state = ProcessState("cpu")
    before = state.read()
    with patched(owner, name):
        (change,) = changes(before, state.read())
    assert f".{name}" in change


@replays("Careless", npu=None)
def careless(row, replay):
    torch.set_num_threads(torch.get_num_threads() + 1)
    replay(torch.neg, *row.inputs(), expected=None)


def test_a_row_and_later_rows_of_the_process_report_its_change() -> None:
    threads = torch.get_num_threads()
    try:
        one = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=2, cache="warm"))
        careful = job_of("Neg", "4 | FLOAT -> 4 | FLOAT")
        assert one.run(careful).changed == ()
        careless_job = job_of("Any", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.careless")
        first, second = one.run(careless_job), one.run(careful)
    finally:
        torch.set_num_threads(threads)
    (change,) = first.changed
    assert "torch threads" in change
    assert change in first.explanation
    assert second.status is Status.MEASURED
    assert "torch threads" in second.explanation
