"""Guards the process in which a candidate runs, on which no result depends.

It keeps the durations of short kernels honest: those of long ones are the second clock's (judgement.py).
"""

from __future__ import annotations

import ctypes
import gc
import re
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch

from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass


class ProcessGuard:
    """Compares the process with its state when this object was made, before the candidate was imported."""

    def __init__(self) -> None:
        self._threads = sys._current_frames().keys()
        self._hooks = hooks()
        self._measuring = _measuring()
        self._functions = list(map(_functions, self._measuring))

    def examine(self, step: str) -> None:
        """Raises CandidateRejected if a function that measures is another one, or something runs later.

        Args:
            step: the step of the candidate meanwhile ("its import").
        """
        for owner, known in zip(self._measuring, self._functions, strict=True):
            now = _functions(owner)
            if names := [name for name, value in known.items() if now.get(name) != value]:
                text = f"{step} replaced {owner.__name__}.{names[0]}: leave functions alone"
                raise CandidateRejected(ErrorClass.HACK, "patched", text)
        self.expect_same_hooks(step)

    def expect_same_hooks(self, step: str) -> None:
        """Raises CandidateRejected if Python or torch calls something else than before, or threads are left."""
        if (found := hooks()) != self._hooks:
            names = ", ".join(name for name, value in found.items() if self._hooks.get(name) != value)
            raise CandidateRejected(ErrorClass.HACK, "hook", f"{step} changed {names}: nothing may be called later")
        frames = sys._current_frames()
        if frames.keys() <= self._threads:
            return
        started = [number for number in frames if number not in self._threads]
        if any(name in sys.modules for name in _COMPILERS):
            started = [number for number in started if not _waits_for_compilations(frames[number])]
        if started:
            names_of = {thread.ident: thread.name for thread in threading.enumerate()}
            left = ", ".join(names_of.get(number, "without a name") for number in started[:3])
            text = f"the candidate left a thread running ({left}): end the work before the call returns"
            raise CandidateRejected(ErrorClass.HACK, "thread", text)


def _measuring() -> list[Any]:
    """Returns the modules and classes whose functions decide what a duration is."""
    found: list[Any] = [time, torch.cuda, torch.cuda.Event, torch.cuda.Stream]
    for name, module in list(sys.modules.items()):
        if name.startswith("opatlas.run.instruments.") or name == "opatlas.outer.judging.trial":
            found.append(module)
            found += [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
    return found


def _functions(owner: Any) -> dict[str, object]:
    """Returns what tells the functions of a module or class from others, and from themselves with other code."""
    return {
        name: (id(value), value.__code__, value.__defaults__) if type(value) is FunctionType else id(value)
        for name, value in vars(owner).items()
        if callable(value)
    }


def hooks() -> Mapping[str, object]:
    """Returns what Python and torch call between the calls of a candidate, by name. Takes some microseconds.

    Objects are told by their addresses: those of a candidate may say that they equal others.
    """
    monitoring = getattr(sys, "monitoring", None)
    return {
        "the profile function": id(sys.getprofile()),
        "the trace function": id(sys.gettrace()),
        "the hooks of new threads": (id(threading.getprofile()), id(threading.gettrace())),
        "sys.monitoring": [monitoring.get_tool(number) for number in range(6)] if monitoring else None,
        "the callbacks of garbage collection": list(map(id, gc.callbacks)),
        "signal handlers": [id(signal.getsignal(number)) for number in _SIGNALS],
        "timers": [any(signal.getitimer(timer)) for timer in _TIMERS],
        "torch's modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "torch's operators": _registrations(len(torch.library._impls)),
        "hooks of all modules": [len(getattr(torch.nn.modules.module, name)) for name in _MODULE_HOOKS],
        "the part of the L2 cache that is set aside": _set_aside_bytes() if torch.cuda.is_initialized() else 0,
    }


#: Signals that a process gets from its timers, its children, its descriptors and its own threads.
_SIGNALS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGCHLD, signal.SIGIO, signal.SIGUSR2)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_MODULE_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


@lru_cache(maxsize=4)
def _registrations(count: int) -> int:
    """Returns how many of `count` registrations at torch's dispatcher are of its own operators."""
    return sum(name.startswith("aten/") and not name.endswith("/Meta") for name in torch.library._impls)


#: cudaLimitPersistingL2CacheSize of cudaLimit.
_PERSISTING_L2_SIZE = 6


def _set_aside_bytes() -> int:
    """Returns the bytes of the L2 cache that accesses may keep, whatever else is read."""
    runtime, found = _cuda_runtime(), ctypes.c_size_t()
    if runtime is None or runtime.cudaDeviceGetLimit(ctypes.byref(found), _PERSISTING_L2_SIZE):
        return 0
    return found.value


@lru_cache(maxsize=1)
def _cuda_runtime() -> ctypes.CDLL | None:
    """Returns the CUDA runtime that torch has loaded; None if the process maps none."""
    paths = re.findall(r"/\S*/libcudart\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return ctypes.CDLL(min(paths)) if paths else None


#: Modules that leave threads for later compilations.
_COMPILERS = ("torch._inductor", "triton")
#: Folders of the code that threads of compilers run.
_LIBRARIES = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(torch.__file__).parents[1]),
    }
)


def _waits_for_compilations(thread: FrameType) -> bool:
    """Returns whether a thread runs code of installed libraries alone, and no task of a pool."""
    is_task = thread.f_code.co_filename.endswith("concurrent/futures/thread.py") and thread.f_code.co_name == "run"
    files, frame = [thread.f_code.co_filename], thread.f_back
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    # A thread without code of a library besides `threading` calls a function in C, or only waits.
    return (
        not is_task
        and all(file.startswith(("<frozen", *_LIBRARIES)) for file in files)
        and not all(file == threading.__file__ for file in files)
    )
