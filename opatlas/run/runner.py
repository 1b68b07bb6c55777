"""Runs the bodies of replay functions on a device, and finds what a row changes in its process.

A kernel may set the number of torch's threads, leave a thread running, or change the working folder, which would affect
later rows. A process whose state a row has changed runs no further row. The state is a table of readers, each of which
takes a microsecond or two. Not compared: random generators, which each row seeds; imported modules; the memory of
libraries; for an implementation that ships with OpAtlas, the state that its library sets up at its first use.
"""

from __future__ import annotations

import gc
import locale
import os
import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from opatlas.errors import OpAtlasError
from opatlas.row.columns import STEP_STACK
from opatlas.row.errors import DeviceUnhealthy, MissingPrecondition, ReplayError
from opatlas.row.roofline import Peak, bound_us, device_peak, row_work
from opatlas.row.status import Status
from opatlas.run.devices.device import Device, DeviceDescription, DeviceSpec, open_device
from opatlas.run.devices.device_lock import LockHolder
from opatlas.run.group import ALONE, Group, SynchronizedInstrument
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.inputs.row_slots import RowSlots
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job, RowOutcome, outcome_of, translated_pytest_exceptions
from opatlas.run.registry import Binding, ReplaySpec, load_function, replay_spec, select_arguments
from opatlas.run.replay import Replay

#: Variables for the folders of caches, or set by pytest and torch while a row runs.
_OTHERS_VARIABLES = frozenset(
    {
        b"DISABLE_CUPTI_LAZY_REINIT",
        b"KINETO_USE_DAEMON",
        b"PYTEST_CURRENT_TEST",
        b"TEARDOWN_CUPTI",
        b"TORCHINDUCTOR_CACHE_DIR",
        b"TRITON_CACHE_DIR",
    }
)
#: Signals whose handlers are compared. Reading a handler takes some microseconds.
_SIGNALS = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGINT", "SIGSEGV", "SIGTERM")
_TIMERS = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
#: Functions that create tensors, compare results and measure time in this process; a kernel must not replace them.
_FUNCTIONS: Mapping[Any, str] = {
    torch: "abs add all allclose any arange as_tensor bmm cat clamp device empty empty_like equal exp finfo full "
    "gather isclose isfinite isnan matmul maximum mean mul no_grad ones ones_like rand randint randn randperm softmax "
    "sqrt stack sub sum tensor topk where zeros zeros_like",
    torch.Tensor: "__add__ __getitem__ __mul__ __sub__ abs add_ all any clone contiguous copy_ cpu double element_size "
    "expand fill_ float item max mean min mul_ normal_ numel permute random_ reshape sum to tolist transpose uniform_ "
    "unsqueeze view zero_",
    torch.nn.functional: "gelu layer_norm linear normalize pad relu scaled_dot_product_attention silu softmax",
    time: "monotonic monotonic_ns perf_counter perf_counter_ns sleep time",
}
#: Settings of torch, and functions that return one, by their dotted names there. A newer name precedes the older one,
#: which newer versions of torch refuse to read if both were set. What does not exist in this torch is skipped.
_SETTINGS = {
    "torch threads": ("get_num_threads",),
    "torch interop threads": ("get_num_interop_threads",),
    "default dtype": ("get_default_dtype",),
    "default device": ("get_default_device",),
    "deterministic algorithms": ("get_deterministic_debug_mode",),
    "float32 matmul precision": ("get_float32_matmul_precision",),
    "grad mode": ("is_grad_enabled",),
    "inference mode": ("is_inference_mode_enabled",),
    "anomaly detection": ("is_anomaly_enabled",),
    "flash attention": ("backends.cuda.flash_sdp_enabled",),
    "memory efficient attention": ("backends.cuda.mem_efficient_sdp_enabled",),
    "math attention": ("backends.cuda.math_sdp_enabled",),
    "cuDNN attention": ("backends.cuda.cudnn_sdp_enabled",),
    "torch.backends.cuda.matmul precision": ("backends.cuda.matmul.fp32_precision", "backends.cuda.matmul.allow_tf32"),
    "torch.backends.cudnn.conv precision": ("backends.cudnn.conv.fp32_precision", "backends.cudnn.allow_tf32"),
    "torch.backends.mkldnn.matmul precision": ("backends.mkldnn.matmul.fp32_precision", "backends.mkldnn.allow_tf32"),
    "torch.backends.cuda.matmul FP16": ("backends.cuda.matmul.allow_fp16_reduced_precision_reduction",),
    "torch.backends.cuda.matmul BF16": ("backends.cuda.matmul.allow_bf16_reduced_precision_reduction",),
    "torch.backends.cudnn.enabled": ("backends.cudnn.enabled",),
    "torch.backends.cudnn.benchmark": ("backends.cudnn.benchmark",),
    "torch.backends.cudnn.deterministic": ("backends.cudnn.deterministic",),
    "torch.backends.mkldnn.enabled": ("backends.mkldnn.enabled",),
    "torch.backends.quantized.engine": ("backends.quantized.engine",),
    "torch.utils.deterministic": ("utils.deterministic.fill_uninitialized_memory",),
}
_SMALLEST_NORMAL = sys.float_info.min
_ENVIRONMENT, _THREADS, _CHILDREN = "environment", "running threads", "child processes"
_RECURSION = "recursion limit"
#: State that libraries with a compiler change when they are first used: variables, a pool of threads and processes,
#: and the depth of calls that the compiler needs.
OF_LIBRARIES = frozenset({_ENVIRONMENT, _THREADS, _CHILDREN, _RECURSION})
#: Maximum number of names in the description of a change.
_NAMED = 5

Reader = Callable[[], object]
#: Values by name. Changes in tables (variables, handlers, threads) are reported without values, which may be secret.
State = Mapping[str, object]


class ProcessState:
    """Reads the state of this process."""

    def __init__(self, kind: str) -> None:
        """`kind` is torch's name for the type of the device."""
        self._readers = {**_of_python(), **_of_the_system(), **_of_torch(kind)}

    def read(self) -> State:
        """Returns the present state."""
        try:
            return {name: reader() for name, reader in self._readers.items()}
        except Exception:
            return {name: _read(reader) for name, reader in self._readers.items()}


def changes(before: State, after: State, *, without: Collection[str] = ()) -> list[str]:
    """Returns the differences of two states: `torch threads 2 -> 1`, `environment (OMP_NUM_THREADS)`.

    Args:
        without: names of values that may change.
    """
    return [
        _difference(name, before[name], value)
        for name, value in after.items()
        if name in before and before[name] != value and name not in without
    ]


def _difference(name: str, before: object, after: object) -> str:
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return f"{name} {before} -> {after}"
    missing = object()
    changed = [key for key in {**before, **after} if before.get(key, missing) != after.get(key, missing)]
    names = [os.fsdecode(key) if isinstance(key, bytes) else str(key) for key in changed]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{name} ({', '.join(names[:_NAMED])}{more})"


def _read(reader: Reader) -> object:
    try:
        return reader()
    except Exception as error:
        # Causes: a removed working folder, or a setting that torch refuses to read. The text is the value then.
        return f"unreadable ({type(error).__name__})"


def _of_python() -> dict[str, Reader]:
    signals = {name: getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)}
    timers = {name: getattr(signal, name) for name in _TIMERS if hasattr(signal, name)}
    return {
        "garbage collection": gc.isenabled,
        "garbage collection threshold": gc.get_threshold,
        _RECURSION: sys.getrecursionlimit,
        "switch interval": sys.getswitchinterval,
        "trace function": sys.gettrace,
        "profile function": sys.getprofile,
        "locale": partial(locale.setlocale, locale.LC_ALL),
        _THREADS: lambda: {thread.name: thread.ident for thread in threading.enumerate()},
        "signal handlers": lambda: {name: signal.getsignal(number) for name, number in signals.items()},
        "timers": lambda: {name: signal.getitimer(timer) != (0.0, 0.0) for name, timer in timers.items()},
        "flushing of denormals": lambda: _SMALLEST_NORMAL * 0.5 == 0.0,
    }


def _of_the_system() -> dict[str, Reader]:
    readers: dict[str, Reader] = {"working directory": os.getcwd, _ENVIRONMENT: _environment, "umask": _umask}
    if hasattr(os, "sched_getaffinity"):
        readers["affinity"] = lambda: sorted(os.sched_getaffinity(0))
    if hasattr(os, "getpriority"):
        readers["niceness"] = lambda: os.getpriority(os.PRIO_PROCESS, 0)
    if hasattr(os, "sched_getscheduler"):
        readers["scheduling policy"] = lambda: os.sched_getscheduler(0)
    if hasattr(signal, "pthread_sigmask"):
        readers["blocked signals"] = lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    if hasattr(os, "waitid"):
        readers[_CHILDREN] = _has_children
    return readers


def _environment() -> dict[bytes, bytes]:
    # Reading os.environ itself decodes each name and value, which takes a hundred times as long.
    variables: Mapping[bytes, bytes] = vars(os.environ)["_data"]
    return {name: value for name, value in variables.items() if name not in _OTHERS_VARIABLES}


def _umask() -> str:
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:03o}"


def _has_children() -> bool:
    try:
        # Does not reap an ended child.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _of_torch(kind: str) -> dict[str, Reader]:
    readers: dict[str, Reader] = {}
    for name, places in _SETTINGS.items():
        for place in places:
            if (setting := _torch_attribute(place)) is not None:
                readers[name] = setting if callable(setting) else partial(attrgetter(place), torch)
                break
    readers[f"autocast of {kind}"] = partial(torch.is_autocast_enabled, kind)
    for name in ("current_device", "current_stream"):
        if (reader := _torch_attribute(f"{kind}.{name}")) is not None:
            # As text, because each call returns a new object for the same stream.
            readers[f"torch.{kind}.{name}"] = partial(_as_text, reader)
    readers["functions"] = _Functions()
    return readers


def _as_text(reader: Callable[[], object]) -> str:
    return str(reader())


def _torch_attribute(name: str) -> Any:
    """Returns torch's object of a dotted name; None if it does not exist or cannot be read."""
    try:
        return attrgetter(name)(torch)
    except (AttributeError, RuntimeError):
        return None


class _Functions:
    """Finds the functions in `_FUNCTIONS` that were replaced since this object was created."""

    def __init__(self) -> None:
        names = {owner: [name for name in named.split() if hasattr(owner, name)] for owner, named in _FUNCTIONS.items()}
        self._known = {owner: {name: getattr(owner, name) for name in names[owner]} for owner in names}
        #: Reads all functions of an owner in one call, which takes a tenth of the time.
        self._at_once = [(owner, attrgetter(*names[owner]), tuple(self._known[owner].values())) for owner in names]

    def __call__(self) -> dict[str, object]:
        if all(get(owner) == known for owner, get, known in self._at_once):
            return {}
        return {
            f"{owner.__name__}.{name}": True
            for owner, known in self._known.items()
            for name, function in known.items()
            if getattr(owner, name, None) is not function
        }


def _bind_kernel(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[ReplayRow, Replay]:
    row = ReplayRow(job.kernel_type, job.cells, device.torch_device)
    return row, Replay(row, spec, device, instrument, settings, group, job.source, job.against)


class Runner:
    """Owns an open device and runs jobs on it, one at a time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        """Opens the device. Raises OpAtlasError if that fails, or if the device lacks the requested instrument."""
        self._device: Device = open_device(spec, settings)
        self._kind = spec.kind
        self._instrument = self._device.instrument()
        if settings.instrument not in (None, self._instrument.name):
            raise OpAtlasError(
                f"--instrument {settings.instrument}: {spec} measures with {self._instrument.name}: give that name"
            )
        self._settings = settings
        # Described once, because the description of an NPU runs its vendor's tools.
        self._description = self._device.describe()
        self._peak = device_peak(self._description.name)
        self._group = ALONE
        self._state = ProcessState(self.torch_device.type)
        #: Changes of the process's state by all rows so far.
        self._changed: list[str] = []
        #: The same changes, as the outcome of the last row lists them.
        self._reported: tuple[str, ...] = ()

    @property
    def torch_device(self) -> torch.device:
        """Returns the device on which the tensors of rows are created."""
        return self._device.torch_device

    def join(self, group: Group) -> None:
        """Makes this process a rank of a group, which runs each job together with the other ranks."""
        self._group = group
        self._instrument = SynchronizedInstrument(self._instrument, group)

    def describe(self) -> DeviceDescription:
        """Returns the description of the device when it was opened."""
        return replace(self._description, kind=self._description.kind or self._kind)

    def probe(self) -> None:
        """Runs an operation with a known result on the device. Raises DeviceUnhealthy if it fails."""
        try:
            self._device.probe()
        except DeviceUnhealthy:
            raise
        except Exception as error:
            raise DeviceUnhealthy(f"{type(error).__name__}: {error}") from error

    def is_healthy(self) -> bool:
        """Returns whether the device still computes correct results."""
        try:
            self.probe()
        except DeviceUnhealthy:
            return False
        return True

    def locked(
        self, when_waiting: Callable[[LockHolder], object], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> AbstractContextManager[object]:
        """Returns a context that holds the device's lock while a job runs; see `Device.locked`."""
        return self._device.locked(when_waiting, when_taken, limit_s)

    def run(self, job: Job) -> RowOutcome:
        """Runs a job, and turns its exceptions into an outcome."""
        try:
            return self.run_raising(job)
        except BaseException as error:
            outcome = outcome_of(error, self._reported)
        if outcome.status is Status.OOM:
            # The exception's frames, which referenced the row's tensors, no longer exist here.
            self._device.release_memory()
        return outcome

    def run_raising(self, job: Job) -> RowOutcome:
        """Runs a job, and raises its exceptions unchanged, for debuggers."""
        earlier, before = [f"an earlier row {change}" for change in self._changed], self._state.read()
        try:
            outcome = self._run_body(job)
        finally:
            is_library = bool(job.source.module) if job.source is not None else bool(job.cells.get(STEP_STACK))
            after = self._state.read()
            found = changes(before, after, without=OF_LIBRARIES if is_library else ())
            own = [f"changed {change}" for change in found]
            self._changed += own
            self._reported = (*earlier, *own)
        return replace(outcome, changed=self._reported)

    def refused(self, job: Job) -> RowOutcome | None:
        """Returns the outcome of a job that cannot run because of its cells or instrument; None if the job can run."""
        try:
            self._expect_instrument(job)
            # Parses the cells of all slots.
            RowSlots(job.kernel_type, job.cells).bytes()
        except ReplayError as error:
            return outcome_of(error)
        return None

    def _expect_instrument(self, job: Job) -> None:
        """Raises MissingPrecondition if another instrument measured the stored duration."""
        if job.instrument not in ("", self._instrument.name):
            # Checked only here, because the default instrument depends on this machine.
            raise MissingPrecondition(
                f"the stored duration was measured with {job.instrument}, and this device measures with "
                f"{self._instrument.name}, whose durations do not compare: set {job.instrument} up (`opatlas doctor` "
                f"shows missing parts), or allow mixed durations (--mixed)"
            )

    def _run_body(self, job: Job) -> RowOutcome:
        self._expect_instrument(job)
        function = load_function(job)
        spec = replay_spec(function)
        if spec is None:
            raise TypeError(f"{job.module}.{job.function} is not marked with @replays")
        bind: Binding = pkgutil.resolve_name(spec.binding) if spec.binding else _bind_kernel
        row, replay = bind(job, spec, self._device, self._instrument, self._settings, self._group)
        replay.expect_memory()
        with torch.no_grad(), replay.bounded_memory(), translated_pytest_exceptions():
            function(**select_arguments(function, row=row, replay=replay, group=self._group))
        if replay.outcome is None:
            raise ReplayError(f"{job.function} returned and did not call replay(...)")
        return self._with_bound(job, replay.outcome)

    def _with_bound(self, job: Job, outcome: RowOutcome) -> RowOutcome:
        """Adds the shortest possible time, given the device's peaks, to the measurement."""
        measurement = outcome.measurement
        if measurement is None or self._peak == Peak():
            return outcome
        work = row_work(job.kernel_type, job.cells)
        if work is None:
            return outcome
        bound = bound_us(work, self._peak, cold=self._settings.cache == "cold")
        return replace(outcome, measurement=replace(measurement, bound_us=bound))
