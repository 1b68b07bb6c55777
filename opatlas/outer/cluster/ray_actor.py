"""The actors of a Ray cluster, each of which keeps the process of a device on its host."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder
from opatlas.outer.cluster.dealer import BEAT_S, DeviceAnswer
from opatlas.row.errors import DeviceGone, MissingPrecondition
from opatlas.row.status import Status
from opatlas.row.versions import detect
from opatlas.run.devices.device import DeviceSpec, available_devices, kind_named
from opatlas.run.devices.device_lock import SESSION_VARIABLE, DeviceWaits
from opatlas.run.devices.system import available_cores, processor
from opatlas.run.implementation import content_digest
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, outcome_of
from opatlas.run.process.child import print_to_stderr
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.process.keeper import die_with_parent
from opatlas.run.process.messages import decode, encode

#: Ray's part of an actor that answers signs of life.
WATCH = "watch"


def ray() -> Any:
    """Returns the module."""
    import_module("ray.util.scheduling_strategies")
    return import_module("ray")


def sent(method: Callable[..., Any]) -> Callable[..., bytes]:
    """Makes a method of an actor return its answer as bytes, which Ray does not pickle."""

    @wraps(method)
    def send(*arguments: Any, **options: Any) -> bytes:
        return encode(method(*arguments, **options))

    return send


def future(reference: Any, kind: Any) -> Future[Any]:
    """Returns the future of a call of a method that is marked with `sent`; `kind` is the type of its answer."""
    answer: Future[Any] = Future()

    def take(done: Future[bytes]) -> None:
        try:
            answer.set_result(decode(bytes(done.result()), kind))
        except Exception as error:
            answer.set_exception(error)

    reference.future().add_done_callback(take)
    return answer


def first_line(error: BaseException) -> str:
    """Returns an error in one line; Ray's have many, and the error of a method as their cause."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}".strip().splitlines()[0]


#: The most bytes that are kept of the output of a row.
_MOST_PRINTED = 20_000
_THREADS = "OMP_NUM_THREADS"
#: Why rows of a group are skipped.
_NO_GROUPS = "needs several devices at once: leave out --ray, and give --nnodes for several machines"


@dataclass(frozen=True)
class HostFacts:
    """The facts that must be equal on all hosts of a session, and the device.

    Attributes:
        host: name of the machine.
        software: versions and the digest of the code, by name; "" for software that is not installed.
        hardware: the driver of the device, or what CPUs of one name differ in: `8 cores, family 26, model 2`.
        cores: number of the host's cores that a process may use.
        spec: the device; None where the host has no fitting device.
        problem: why there is no device; "" if there is one.
    """

    host: str
    software: dict[str, str]
    hardware: str = ""
    cores: int = 1
    spec: DeviceSpec | None = None
    problem: str = ""


def software() -> dict[str, str]:
    """Returns the versions of the software of this machine that affect measurements."""
    versions = detect()
    digest = import_module("opatlas.plugins.session_context").present_code()
    return {"torch": versions.torch or "", "CANN": versions.cann or "", "OpAtlas' code": digest[:12]}


class DeviceActor:
    """Runs jobs on one device in a process of Ray, and gives signs of life.

    Ray calls `beat` in a thread of its own, other methods one at a time.
    """

    def __init__(self, device: str | None, spec: DeviceSpec | None, session: str, paths: Sequence[str]) -> None:
        """
        Args:
            device: name or kind of the device; None: the best that Ray lets this process see.
            spec: the device of a conftest.py; None: it is looked for.
            session: the session for lock files (`SESSION_VARIABLE`).
            paths: the import path of pytest.
        """
        # Ray's own end of a process whose raylet was killed may take a minute, in which the device is not free.
        die_with_parent()
        self._device, self._spec = device, spec
        self._waits = DeviceWaits(print_to_stderr)
        self._host = platform.node()
        #: Digests of the files of jobs that are here as the head has them.
        self._same_files: set[tuple[str, str]] = set()
        #: When the head last called.
        self._heard = time.monotonic()
        self._process: DeviceProcess | None = None
        self._folder: TemporaryFolder | None = None
        os.environ[SESSION_VARIABLE] = session
        sys.path[:] = dict.fromkeys((*sys.path, *paths))
        _undo_limits_of_ray()
        # The output of rows goes back with their outcome, and not into a log of Ray. Appended, so that it may be cut.
        self._printed = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 - as long as the process
        for descriptor in (1, 2):
            os.dup2(self._printed.fileno(), descriptor)

    @sent
    def beat(self) -> str:
        """Returns for whom a row waits, as a line for the user; "" if none does."""
        self._heard = time.monotonic()
        wait = self._waits.current
        return f"waits for the device, which is used by {wait.holder.name}" if wait is not None else ""

    @sent
    def look(self) -> HostFacts:
        """Returns the facts of the host, and finds the device. Imports no torch."""
        return self._facts()

    def _facts(self) -> HostFacts:
        known = software()
        try:
            self._spec = self._spec or available_devices(self._device)[0]
        except OpAtlasError as error:
            return HostFacts(self._host, known, problem=str(error))
        cores, driver = available_cores(), kind_named(self._spec.kind).driver_version()
        hardware = f"{cores} cores, {processor()}" if self._spec.kind == "cpu" else f"driver {driver}" if driver else ""
        return HostFacts(self._host, known, hardware, cores, self._spec)

    @sent
    def open(self, settings: MeasureSettings, patience_s: float) -> DeviceAnswer:
        """Opens the device, and ends this process when the head has not called for some seconds."""
        self._heard = time.monotonic()
        threading.Thread(target=self._end_without_head, args=(patience_s,), daemon=True).start()
        if self._spec is None and (problem := self._facts().problem):
            return DeviceAnswer(gone=problem)
        assert self._spec is not None
        self._process = DeviceProcess(self._spec, settings, waits=self._waits)
        try:
            found = self._process.describe()
        except DeviceGone as error:
            return DeviceAnswer(gone=f"{error}\n{self._take_printed()}".strip())
        return DeviceAnswer(device=replace(found, facts={**found.facts, "host": self._host}))

    @sent
    def run(self, job: Job) -> DeviceAnswer:
        """Runs a job."""
        assert self._process is not None
        self._heard = time.monotonic()
        if job.group is not None:
            return DeviceAnswer(outcome_of(MissingPrecondition(_NO_GROUPS)))
        try:
            outcome = self._process.run(self._with_own_files(job))
        except DeviceGone as error:
            return DeviceAnswer(gone=str(error))
        if (printed := self._take_printed()) and outcome.status is not Status.MEASURED:
            outcome = replace(outcome, detail=f"{outcome.detail}\n{printed}".strip())
        return DeviceAnswer(outcome)

    def _with_own_files(self, job: Job) -> Job:
        """Returns a job whose log is on this host. Raises DeviceGone where a file of it is not as on the head."""
        files = (job.source.digest if job.source else "", job.subject.digest if job.subject else "")
        if files not in self._same_files:
            if other := other_file(job):
                raise DeviceGone(f"{other} is missing, or is not as on the head: put that of the head there")
            self._same_files.add(files)
        if not job.judge:
            return job
        if self._folder is None:
            self._folder = TemporaryFolder("actor")
        return replace(job, log=str(self._folder.path / "candidate"))

    def _end_without_head(self, patience_s: float) -> None:
        """Ends this process, and so the device process, when the head is silent. Ray itself may not notice a cut."""
        while (silent_s := time.monotonic() - self._heard) < patience_s:
            time.sleep(min(patience_s - silent_s, BEAT_S))
        os._exit(1)

    def _take_printed(self) -> str:
        """Returns the end of the output since the last call."""
        size = os.fstat(self._printed.fileno()).st_size
        if not size:
            return ""
        text = os.pread(self._printed.fileno(), _MOST_PRINTED, max(size - _MOST_PRINTED, 0))
        os.ftruncate(self._printed.fileno(), 0)
        return text.decode(errors="replace")


def other_file(job: Job) -> str:
    """Returns the kernel or the task of a job that this host lacks, or has with other content; "" mostly."""
    source, subject = job.source, job.subject
    if source is not None and source.digest:
        try:
            is_same = content_digest((source.path, *source.helpers)) == source.digest
        except OSError:
            is_same = False
        if not is_same:
            return source.folder or source.path
    return str(subject) if subject is not None and not subject.is_unchanged else ""


def _undo_limits_of_ray() -> None:
    """Gives the device process the threads and the priority that it has without Ray."""
    # The raylet is the parent, and its environment is the user's.
    with contextlib.suppress(OSError):
        own = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        if not any(entry.startswith(f"{_THREADS}=".encode()) for entry in own):
            os.environ.pop(_THREADS, None)
    # Ray's processes have the nice value 15. Without the right to lower it, it stays (docs/several-devices.md).
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))
