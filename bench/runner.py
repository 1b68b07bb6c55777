"""Runs the body of a replay function on a device. The same code runs in the device process and,
with `--in-process`, in pytest itself."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from bench.collectives.message import Message
from bench.collectives.timed import TimedCollective
from bench.custom_opp import missing_kernel
from bench.device_errors import is_out_of_memory, poisoned_by, text_of
from bench.devices import Device, open_device
from bench.errors import DeviceSick, ReplayError
from bench.groups.group import ALONE, Group, InStep
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from bench.registry import replay_spec
from bench.replay import Replay
from bench.rows import ReplayRow
from database.communication import is_communication
from database.schema import Status

#: What torch says where an operator lacks a dtype; some operators raise a plain RuntimeError for it.
_NOT_IMPLEMENTED = re.compile(r"not implemented for '|bool.* not supported|not support bool", re.IGNORECASE)
#: Fixtures without a value for the body of a replay.
_OF_PYTEST = ("custom_opp", "npu")


def _nothing() -> None:
    pass


class Runner:
    """Owns an open device and runs jobs on it, one at a time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        """Opens the device. Raises OpAtlasError where it cannot."""
        self._device: Device = open_device(spec, settings)
        self._instrument = self._device.instrument()
        self._settings = settings
        self._group = ALONE

    @property
    def torch_device(self) -> torch.device:
        """Where the tensors of rows are born."""
        return self._device.torch_device

    def join(self, group: Group) -> None:
        """From now on this process is a rank of a group, which runs each job together with the others."""
        self._group = group
        self._instrument = InStep(self._instrument, group)

    def describe(self) -> DeviceDescription:
        return self._device.describe()

    def probe(self) -> None:
        """Runs a known-good operation on the device. Raises DeviceSick where that fails."""
        try:
            self._device.probe()
        except DeviceSick:
            raise
        except Exception as error:
            raise DeviceSick(f"{type(error).__name__}: {error}") from error

    def is_well(self) -> bool:
        """Whether the device still computes what it should."""
        try:
            self.probe()
        except DeviceSick:
            return False
        return True

    def turn(
        self, when_waiting: Callable[[], None] = _nothing, when_taken: Callable[[], None] = _nothing
    ) -> AbstractContextManager[object]:
        """Held while a job runs; see `Device.turn`."""
        return self._device.turn(when_waiting, when_taken)

    def run(self, job: Job) -> Outcome:
        """Runs a job and turns whatever it raises into an outcome."""
        try:
            return self.run_raising(job)
        except BaseException as error:
            outcome = outcome_of(error)
        if outcome.status is Status.OOM:
            # Only now do the frames of the exception not hold the row's tensors any more.
            self._device.release_memory()
        return outcome

    def run_raising(self, job: Job) -> Outcome:
        """Runs a job; what its body raises comes through, for a debugger."""
        function = load_function(job)
        spec = replay_spec(function)
        if spec is None:
            raise TypeError(f"{job.module}.{job.function} is not marked with @replays")
        row: Message | ReplayRow
        replay: TimedCollective | Replay
        if is_communication(job.kernel_type):
            row = Message(job.kernel_type, job.cells, self.torch_device, self._group.rank, self._group.size)
            replay = TimedCollective(row, self._device, self._instrument, self._settings, self._group)
        else:
            row = ReplayRow(job.kernel_type, job.cells, self.torch_device)
            replay = Replay(row, spec, self._device, self._instrument, self._settings, self._group)
        replay.expect_memory()
        with torch.no_grad():
            function(**arguments_of(function, row=row, replay=replay, group=self._group))
        if replay.outcome is None:
            raise ReplayError(f"{job.function} returned without having called replay(...)")
        return replay.outcome


def outcome_of(error: BaseException) -> Outcome:
    """The status that an exception gives its row. Only ends of the process itself are raised again."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    if isinstance(error, ReplayError):
        return Outcome(error.status, str(error))
    reason = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
    text = text_of(error)
    if is_out_of_memory(text):
        return Outcome(Status.OOM, reason)
    detail = "".join(traceback.format_exception(error))
    if poison := poisoned_by(text):
        return Outcome(Status.DEVICE_ERROR, f"{poison}: {reason}", detail)
    if lacking := missing_kernel(text):
        return Outcome(lacking.status, str(lacking), detail)
    if isinstance(error, NotImplementedError) or _NOT_IMPLEMENTED.search(reason):
        return Outcome(Status.UNSUPPORTED, reason, detail)
    return Outcome(Status.FAILED, reason, detail)


def load_function(job: Job) -> Callable[..., Any]:
    """The replay function of a job, imported by name, or from its file."""
    module = sys.modules.get(job.module) or _import(job.module, Path(job.module_path))
    function: Callable[..., Any] = operator.attrgetter(job.function)(module)
    return function


def arguments_of(function: Callable[..., Any], **available: Any) -> dict[str, Any]:
    """Those of `available` that `function` names. Raises TypeError for any other parameter.

    Fixtures that only see to it, in pytest, that a row can run (bench/conftest.py), are None here.
    """
    names = _parameters(function)
    available = {**dict.fromkeys(_OF_PYTEST), **available}
    unknown = [name for name in names if name not in available]
    if unknown:
        raise TypeError(
            f"{function.__name__} asks for {', '.join(unknown)}; a replay runs in the device process, "
            f"where only {', '.join(available)} exist"
        )
    return {name: available[name] for name in names}


@cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _import(name: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module {name} at {path}", name=name, path=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
