"""The candidate's side of its calls: buffers that get new inputs, calls, copies of the results, and a guard.

Nothing here decides: what the process of a candidate says of a result is its bytes, and of a duration a claim. The
guard keeps the durations of short kernels honest: those of long ones are the second clock's (judgement.py).
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from traceback import walk_stack
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from opatlas.outer.judging import memory as shared
from opatlas.outer.judging.court import Court
from opatlas.outer.judging.court_process import RemoteCourt
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass, ReferenceFailed
from opatlas.outer.judging.results import FlatResults, flat_results
from opatlas.run.devices.device import Device
from opatlas.run.instruments.instrument import MeasureSettings, StopRule

#: Calls of nothing, whose time is the court's own share of a bracket.
_REHEARSALS = 8


class LiveInputs:
    """The arguments with which a candidate is called: at the same addresses in all calls, without a new version.

    Attributes:
        arguments: the arguments of the next call.
    """

    def __init__(self, arguments: list[Any], device: torch.device, margins: bool) -> None:
        """`arguments` are some of the row's, which say what is a tensor, and give what is no number."""
        self._own, self._structure = tree_flatten(arguments)
        self._device, self._margins = device, margins
        self._forms: list[shared.TensorForm | None] = [None] * len(self._own)
        self.leaves: list[Any] = list(self._own)
        self.arguments = arguments

    def write(self, inputs: shared.Inputs, memory: shared.SharedMemory, weights: Mapping[str, torch.Tensor]) -> None:
        """Gives the arguments and the weights the values of a call. Raises ReferenceFailed for other arguments."""
        if len(inputs.leaves) != len(self._own):
            raise ReferenceFailed("the number of inputs is another one in each call: return a list of one length")
        for place, leaf in enumerate(inputs.leaves):
            if isinstance(leaf, shared.TensorForm):
                known = self._forms[place]
                if known is None or (known.dtype, known.shape, known.stride) != (leaf.dtype, leaf.shape, leaf.stride):
                    self.leaves[place], self._forms[place] = shared.live_tensor(leaf, self._device, self._margins), leaf
                memory.assign(self.leaves[place], leaf)
            elif leaf.has_value:
                self.leaves[place] = leaf.object
        for name, form in inputs.weights.items():
            memory.assign(weights[name], form)
        self.arguments = tree_unflatten(self.leaves, self._structure)

    def tensors(self) -> list[torch.Tensor]:
        """Returns the tensors among the arguments, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]


@dataclass
class Constructed:
    """A candidate that can be called.

    Attributes:
        call: called with the arguments of a call, and returns its results.
        weights: its parameters by name, where they are the reference's; else none.
        bind: called with the arguments before each call; this is not timed.
    """

    call: Callable[..., Any] = lambda *_: ()
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    bind: Callable[..., object] = lambda *_: None


class CandidateTrial:
    """The calls of one candidate on the inputs of one row.

    Attributes:
        made: the candidate, once it is constructed.
        guard: examined after each timed call; None where nobody is judged.
        claimed_us: the duration of the last call, in microseconds; None where it is not known yet.
    """

    def __init__(
        self,
        court: Court | RemoteCourt,
        device: Device,
        arguments: list[Any],
        *,
        is_cold: bool = False,
        margins: bool = True,
    ) -> None:
        """
        Args:
            court: gives inputs and takes results.
            device: where the candidate runs.
            arguments: some arguments of the row.
            is_cold: whether caches are flushed before each timed call.
            margins: whether tensors lie between margins, and so not at the beginning of their storage.
        """
        self.made = Constructed()
        self.guard: ProcessGuard | None = None
        self.claimed_us: float | None = None
        self.inputs = LiveInputs(arguments, device.torch_device, margins)
        self._court, self._device, self._is_cold = court, device, is_cold
        self._latest: FlatResults | None = None
        #: Whether the inputs are those of a timed call whose results have not been handed in.
        self._is_pending = False
        self._arguments: Sequence[Any] = ()

    def rehearse(self) -> None:
        """Makes calls of nothing, before the candidate is imported: without and with the weights of the reference."""
        device = self._device.torch_device
        results: FlatResults = ()
        for has_weights in (False, True):
            for _ in range(_REHEARSALS):
                inputs = self._prepare(shared.Purpose.REHEARSAL, has_weights)
                results = results or tuple(
                    torch.zeros(leaf.shape, dtype=leaf.torch_dtype, device=device)
                    if isinstance(leaf, shared.TensorForm)
                    else leaf.object
                    for leaf in inputs.results
                )
                self.made = Constructed(lambda *_, found=results: found, self.made.weights)
                self.launch()
                self._hand_in()
                if has_weights and not inputs.weights:
                    break
        self.made = Constructed()

    def further_calls(self) -> None:
        """Calls the candidate with inputs near the first ones and with others, each once more in poisoned memory."""
        for purpose in (shared.Purpose.NEAR, shared.Purpose.WHOLE):
            self.call(purpose)
            with shared.PoisonedAllocations():
                self.call(shared.Purpose.AGAIN)

    def call(self, purpose: shared.Purpose) -> FlatResults:
        """Makes a call that is not timed. Raises what the candidate raises, and CandidateRejected."""
        self._prepare(purpose)
        self.launch()
        self._device.synchronize()
        return self._hand_in(self.inputs.leaves)

    def next_sample(self) -> None:
        """Hands in the results of the last timed call, and gives the next one its inputs."""
        self.finish()
        self._prepare(shared.Purpose.TIMED)
        self._is_pending = True

    def finish(self) -> None:
        """Hands in the results of the last timed call, if there is one."""
        if self._is_pending and self._latest is not None:
            self._is_pending = False
            self._hand_in()
            if self.guard is not None:
                self.guard.expect_same_hooks("its timed calls")

    def end(self) -> None:
        """Waits for the comparison of all results."""
        shared.expect_margins(self.inputs.tensors())
        self._court.end()

    def launch(self) -> None:
        """Calls the candidate, and has all of its results computed. This method is timed: after a flush of the caches
        each step costs microseconds."""
        returned = self.made.call(*self._arguments)
        is_plain = type(returned) is torch.Tensor and not returned.is_conj() and not returned.is_neg()
        self._latest = (returned,) if is_plain else flat_results(returned)

    def _prepare(self, purpose: shared.Purpose, has_weights: bool | None = None) -> shared.Inputs:
        self._latest = None
        inputs = self._court.ask(purpose, bool(self.made.weights) if has_weights is None else has_weights)
        if purpose is shared.Purpose.REHEARSAL and not self.made.weights:
            weights = {
                name: shared.live_tensor(form, self._device.torch_device, False)
                for name, form in inputs.weights.items()
            }
            self.made = Constructed(weights=weights)
        self.inputs.write(inputs, self._court.memory, self.made.weights)
        self._arguments = self.inputs.arguments
        self.made.bind(*self._arguments)
        torch.manual_seed(shared.CALL_SEED)
        if self._is_cold and purpose in (shared.Purpose.TIMED, shared.Purpose.REHEARSAL):
            self._device.flush_cache()
        self._device.synchronize()
        return inputs

    def _hand_in(self, inputs: Sequence[Any] | None = None) -> FlatResults:
        """Writes the results of the call, and inputs as they are after it, for the court. Returns the results."""
        results, self._latest = self._latest or (), None
        values = [_contiguous(each) if isinstance(each, torch.Tensor) else each for each in results]
        found = self._court.memory.write([*values, *(inputs or ())], self._court.results_start)
        count = len(results)
        self._court.returned(found[:count], None if inputs is None else found[count:], self.claimed_us)
        self.claimed_us = None
        return results


def _contiguous(result: torch.Tensor) -> torch.Tensor:
    return (result if shared.is_dense(result) else result.to_dense()).contiguous()


class ClaimingRule(StopRule):
    """Hands each duration in before the candidate runs again, so that nothing changes it later."""

    def __init__(self, trial: CandidateTrial, settings: MeasureSettings) -> None:
        super().__init__(repeat_count=settings.repeat_count, time_limit_s=settings.time_limit_s)
        self._trial = trial

    def enough(self, samples_us: Sequence[float]) -> bool:
        self._trial.claimed_us = samples_us[-1] if samples_us else None
        return super().enough(samples_us)


class ProcessGuard:
    """Compares the process with its state when this object was made, before the candidate was imported."""

    def __init__(self) -> None:
        self._threads = sys._current_frames().keys()
        self._hooks = hooks()
        self._measuring = _measuring()
        self._functions = list(map(_functions, self._measuring))
        values = [value for owner in self._measuring for value in vars(owner).values()]
        self._callbacks = {
            each.__code__ for each in values if type(each) is FunctionType and "is_callback" in vars(each)
        }

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
        stacks = {
            number: [each for each, _ in walk_stack(frame)]
            for number, frame in frames.items()
            if number not in self._threads
        }
        # Not those that a library of the device began, on which it calls OpAtlas.
        started = [number for number, stack in stacks.items() if stack[-1].f_code not in self._callbacks]
        if any(name in sys.modules for name in _COMPILERS):
            started = [number for number in started if not _waits_for_compilations(stacks[number])]
        if started:
            names_of = {thread.ident: thread.name for thread in threading.enumerate()}
            left = ", ".join(names_of.get(each) or stacks[each][-1].f_code.co_name for each in started[:3])
            text = f"the candidate left a thread running ({left}): end the work before the call returns"
            raise CandidateRejected(ErrorClass.HACK, "thread", text)


#: What measures a candidate: the modules of instruments, of devices (caches, throttling), of turns, and this one.
_MEASURING = ("opatlas.run.instruments.", "opatlas.run.devices.", "opatlas.run.sampling", __name__)


def _measuring() -> list[Any]:
    """Returns the modules and classes whose functions decide what a duration is."""
    found: list[Any] = [time, torch.cuda, torch.cuda.Event, torch.cuda.Stream]
    for name, module in list(sys.modules.items()):
        if name.startswith(_MEASURING):
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


def _waits_for_compilations(stack: Sequence[FrameType]) -> bool:
    """Returns whether a thread runs code of installed libraries alone, and no task of a pool; innermost frame first."""
    files = [each.f_code.co_filename for each in stack]
    is_task = files[0].endswith("concurrent/futures/thread.py") and stack[0].f_code.co_name == "run"
    # A thread without code of a library besides `threading` calls a function in C, or only waits.
    return (
        not is_task
        and all(file.startswith(("<frozen", *_LIBRARIES)) for file in files)
        and not all(file == threading.__file__ for file in files)
    )
