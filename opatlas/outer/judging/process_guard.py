"""Guards the process in which a candidate runs: functions, threads, settings, files, and the GPU's cache."""

from __future__ import annotations

import builtins
import ctypes
import gc
import inspect
import math
import re
import signal
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

import opatlas
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.run.runner import ProcessState, changes


class ProcessGuard:
    """Compares the process with its state when this object was made, before the candidate was imported.

    Attributes:
        notes: the restored settings, a phrase for each change.
    """

    def __init__(self, device: torch.device, files: Iterable[Path] = ()) -> None:
        """`files` are those of the task and of the candidate."""
        self.notes: list[str] = []
        self._files = tuple(files)
        self._digests = _digests(self._files)
        self._settings = TorchSettings(device.type)
        self._cache = PersistingCache(device)
        self._threads = sys._current_frames().keys()
        self._functions = FunctionTable()
        self._hooks = hooks()

    def expect_same_hooks(self, step: str) -> None:
        """Raises CandidateRejected if Python or torch calls something else than before, or threads are left."""
        if (found := hooks()) != self._hooks:
            names = ", ".join(name for name, value in found.items() if self._hooks.get(name) != value)
            raise CandidateRejected(ErrorClass.HACK, "hook", f"{step} changed {names}: nothing may be called later")
        self._expect_same_threads()

    def examine(self, step: str) -> None:
        """Restores settings, and raises CandidateRejected if functions were replaced or threads are left.

        Args:
            step: the step of the candidate meanwhile ("its import").
        """
        restored = (*self._settings.restore(), *self._cache.reset())
        self.notes += [note for phrase in restored if (note := f"{step} {phrase}") not in self.notes]
        if names := self._functions.replaced():
            text = f"{step} replaced {', '.join(names[:_NAMED])}: leave functions alone"
            raise CandidateRejected(ErrorClass.HACK, "patched", text)
        self.expect_same_hooks(step)

    def _expect_same_threads(self) -> None:
        """Raises CandidateRejected if further threads run Python, other than idle ones of a compiler."""
        frames = sys._current_frames()
        if frames.keys() <= self._threads:
            return
        started = [number for number in frames if number not in self._threads]
        if any(name in sys.modules for name in _COMPILERS):
            started = [number for number in started if not _waits_for_compilations(frames[number])]
        if started:
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            found = ", ".join(names.get(number, "without a name") for number in started[:3])
            raise CandidateRejected(
                ErrorClass.HACK,
                "thread",
                f"the candidate left a thread running ({found}): end the work before the call returns",
            )

    def expect_same_files(self) -> None:
        """Raises CandidateRejected if a file that decides about the row was changed, removed or added."""
        after = _digests(self._files)
        for path in {**self._digests, **after}:
            if self._digests.get(path) != after.get(path):
                text = f"{path} was changed while the candidate ran: restore it, and run the session again"
                raise CandidateRejected(ErrorClass.HACK, "edited-files", text)


def hooks() -> Mapping[str, object]:
    """Returns what Python and torch call between the calls of a candidate, by name. Takes some microseconds."""
    monitoring = getattr(sys, "monitoring", None)
    return {
        "the profile function": sys.getprofile(),
        "the trace function": sys.gettrace(),
        "the hooks of new threads": (threading.getprofile(), threading.gettrace()),
        "sys.monitoring": [monitoring.get_tool(number) for number in range(6)] if monitoring else None,
        "the callbacks of garbage collection": list(gc.callbacks),
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
        "timers": [any(signal.getitimer(timer)) for timer in _TIMERS],
        "torch's modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "torch's operators": _registrations(len(torch.library._impls)),
        "hooks of all modules": [len(getattr(torch.nn.modules.module, name)) for name in _MODULE_HOOKS],
    }


#: Signals that a process gets from its timers, its children, its descriptors and its own threads.
_SIGNALS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGCHLD, signal.SIGIO, signal.SIGUSR2)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_MODULE_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


@lru_cache(maxsize=4)
def _registrations(count: int) -> int:
    """Returns how many of `count` registrations at torch's dispatcher are of its own operators."""
    return sum(name.startswith("aten/") and not name.endswith("/Meta") for name in torch.library._impls)


#: Endings of the files that decide about a row. Data and pages are left out.
_SUFFIXES = frozenset({".py", ".ini", ".json", ".yaml"})


def _digests(further: Iterable[Path]) -> Mapping[Path, bytes]:
    """Returns the digests of the files of OpAtlas' package, and of further ones."""
    roots = [Path(root) for root in opatlas.__path__]
    own = (roots[0], *(root / folder for root in roots for folder in ("bench", "plugins", "shapes")))
    paths = (path for root in own if root.is_dir() for path in root.rglob("*") if path.suffix in _SUFFIXES)
    return {path: sha256(path.read_bytes()).digest() for path in (*paths, *further) if path.is_file()}


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


_PACKAGE = "opatlas."
#: Modules and classes besides those of OpAtlas whose functions are compared.
_OWNERS: tuple[Any, ...] = (
    builtins,
    math,
    statistics,
    time,
    torch,
    torch.Tensor,
    torch.cuda,
    torch.cuda.Event,
    torch.cuda.Stream,
)
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType, classmethod, staticmethod)
#: Maximum number of names in a message.
_NAMED = 5
#: torch's compiler replaces functions of torch when it is first used, by functions of these files.
_COMPILER = tuple(str(Path(torch.__file__).parent / name) for name in ("_dynamo/", "_compile.py"))


class FunctionTable:
    """The functions of this process, as they are when the table is made."""

    def __init__(self) -> None:
        self._modules = {name: module for name, module in list(sys.modules.items()) if f"{name}.".startswith(_PACKAGE)}
        self._owners = {**self._modules, **{_name(owner): owner for owner in _OWNERS}}
        for name, module in self._modules.items():
            for attribute, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    self._owners[f"{name}.{attribute}"] = value
        self._known = {name: dict(_functions(owner)) for name, owner in self._owners.items()}

    def replaced(self) -> list[str]:
        """Returns the names of functions that are others now, or have other code; new names do not count."""
        found = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        for name, owner in self._owners.items():
            now = dict(_functions(owner))
            for attribute, known in self._known[name].items():
                if now.get(attribute) != known and not _is_of_compiler(owner, attribute):
                    found.append(f"{name}.{attribute}")
        return found


def _is_of_compiler(owner: Any, attribute: str) -> bool:
    code = getattr(inspect.getattr_static(owner, attribute, None), "__code__", None)
    return code is not None and code.co_filename.startswith(_COMPILER) and _name(owner).startswith("torch")


def _name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


def _functions(owner: Any) -> Iterator[tuple[str, object]]:
    """Yields the functions and classes of a module, or the functions of a class and its bases, by name."""
    owners = reversed(owner.__mro__) if isinstance(owner, type) else (owner,)
    for name, value in {name: value for each in owners for name, value in list(vars(each).items())}.items():
        if isinstance(value, FunctionType):
            yield name, (id(value), value.__code__, value.__defaults__, id(value.__kwdefaults__))
        elif isinstance(value, (*_FUNCTIONS, type, property)):
            yield name, id(value)


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
        self._before = self._state.read()
        self._setters: dict[str, Callable[[Any], object]] = {
            name: partial(_set, name) for name in self._before if name.startswith(_ATTRIBUTE)
        }
        self._setters |= {name: setter for name, setter in _SETTERS.items() if name in self._before}

    def restore(self) -> list[str]:
        """Gives changed settings their values back. Returns a phrase for each."""
        after = self._state.read()
        changed = {name: self._before[name] for name in self._setters if after[name] != self._before[name]}
        # The precision of products has several names: the last one that is set decides.
        for name, value in changed.items():
            self._setters[name](value)
        return [f"changed {phrase}; restored" for phrase in changes(changed, after)]


def _set(name: str, value: Any) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(attrgetter(owner.removeprefix("torch."))(torch), attribute, value)
