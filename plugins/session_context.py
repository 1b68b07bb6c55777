"""What the parts of a session share in one process of pytest: options, run, database, and the request to stop."""

from __future__ import annotations

import contextlib
import os
import pickle
import shlex
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pytest

from opatlas.capture.profile_samples import Profile
from opatlas.data.csv_files import write_bytes, write_text
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader, count_run_records
from opatlas.data.log import start_of_run
from opatlas.data.manifest import Manifest, code_digest, this_machine
from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder
from opatlas.installation import measuring_code
from opatlas.options import Scope
from opatlas.row.record import new_run_id
from opatlas.row.status import UpdateMode
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, DeviceState, device_states
from opatlas.run.devices.device_lock import DeviceWaits, announce_session
from opatlas.run.devices.system import MachineState, MachineWatch, needed_cores
from opatlas.run.msprof_sessions import accepts_profiles
from opatlas.run.process.fresh_python import forget_imports_from
from opatlas.run.process.keeper import die_with_parent, parent_of
from opatlas.text import pluralize, printable_lines

from .cases import Plan
from .settings import Settings, is_distributed, settings_of
from .target import TargetDatabase


def facts_of(devices: Sequence[DeviceSpec], machine: MachineState, gpus: Sequence[DeviceState]) -> Mapping[str, Any]:
    """Returns the state of machine and GPUs, and what of it is likely to disturb durations, in phrases with numbers."""
    of_gpus = [phrase for gpu in gpus for phrase in gpu.disturbances()]
    return {
        **asdict(machine),
        "gpus": [asdict(gpu) for gpu in gpus],
        "disturbances": [*machine.disturbances(needed_cores(devices)), *of_gpus],
    }


def present_code() -> str:
    """Returns the digest of the code that this process runs."""
    return code_digest(measuring_code())


def options_of(settings: Settings, target: int = 0) -> Mapping[str, object]:
    """Returns the options that a manifest records: all that decide which rows run, how they run, or what is written."""
    implementation, rows_from = settings.targets[target].implementation, settings.targets[target].rows_from
    return {
        "implementation": None if implementation.is_default else implementation.label,
        "rows_from": str(rows_from) if rows_from else None,
        "update_mode": settings.mode.value,
        "prune": settings.prune,
        "ops": sorted(settings.ops),
        "shard": str(settings.shard) if settings.shard else None,
        "where": str(settings.where) if settings.where is not None else None,
        "retry_failed": settings.retry_failed,
        "mixed": settings.mixed,
        "versions": dict(settings.versions),
        **asdict(settings.measure),
        "msprof_rows": settings.msprof_rows,
        "case_timeout_s": settings.case_timeout_s,
        "in_process": settings.in_process,
        "ray": settings.ray,
        "prof_path": settings.prof_path.name if settings.prof_path else None,
        "communication": list(settings.source.notes) if settings.source.scope is Scope.COLLECTIVES else None,
        "models": None if settings.models is None else settings.models.told(),
        **settings.group_options,
    }


_PID_SUFFIX = ".pid"


class SharedFolder:
    """A temporary folder in which the processes of a session exchange process ids and short texts.

    The process that made the folder removes it with `remove`, or with its own end. A folder that a killed session
    left is removed by the next session (opatlas/files.py).
    """

    def __init__(self, existing: Path | None = None) -> None:
        """`existing` is the folder that another process of the session made; None makes a new one."""
        self._made: TemporaryFolder | None = None
        if existing is None:
            self._made = TemporaryFolder("session")
            existing = self._made.path
        self.path = existing

    def write(self, name: str, text: str) -> None:
        """Writes a text under a name, in one step. Raises OpAtlasError where there is no room."""
        write_text(self.path / name, text)

    def read(self, name: str) -> str:
        """Returns the text under a name; "" without a text."""
        file = self.path / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def register_worker(self, worker: str) -> None:
        """Writes the process id of this process, which is the worker of that name."""
        self.write(f"{worker}{_PID_SUFFIX}", str(os.getpid()))

    def unregister_worker(self, worker: str) -> None:
        """Removes the process id of a worker that has ended, and released its device."""
        (self.path / f"{worker}{_PID_SUFFIX}").unlink(missing_ok=True)

    def worker_pids(self) -> list[int]:
        """Returns the process ids of all registered workers; the system may have reused the id of an ended worker."""
        return [int(path.read_text()) for path in self.path.glob(f"*{_PID_SUFFIX}")]

    def remove(self) -> None:
        """Removes the folder if this process made it."""
        if self._made is not None:
            self._made.remove()


_WORKER_INPUT = "opatlas"
_STOP, _PLAN = "stop", "plan"
#: In the shared folder: how many items at the end of the collection need several devices.
EXCLUSIVE_ITEMS = "exclusive"
#: How often a worker looks whether the others have ended, in seconds.
_LOOK_EVERY_S = 0.05
#: The reason of a session that the first Ctrl-C ends.
STOPPED = "Ctrl-C: stopped after the running row"


class SessionContext:
    """What the parts of a session share in one process of pytest.

    A process is the only one of its session, or the controller of xdist, or one of its workers. The controller makes
    the plan while its workers start. The processes share the run id, the plan and a folder.

    Attributes:
        worker: the id that xdist gives a worker; "" in other processes.
        worker_output: what xdist sends to the controller when this worker ends.
        place: the index of the device that this process prefers.
        run_id: names the run in the CSVs, the manifest and the journals; begins with the time in UTC, because runs of
            several machines are ordered by it.
        started_at: seconds since the epoch.
        shared: the folder that the processes of the session share.
        waits: the waits of this process's rows for their device.
        plan: None until a replay is collected (`Session.plan` makes it).
        profile: the captures of --prof-path, read with the plan; None without --prof-path.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        received: Mapping[str, Any] = getattr(config, "workerinput", {}).get(_WORKER_INPUT, {})
        self.is_worker = bool(received)
        self.is_controller = not self.is_worker and is_distributed(config)
        self.worker = str(getattr(config, "workerinput", {}).get("workerid", ""))
        self.worker_output: dict[str, Any] = getattr(config, "workeroutput", {})
        self.place = int(received.get("place", 0))
        self.run_id = received.get("run_id") or new_run_id()
        self.started_at = time.time()
        #: The start of the run in the order of runs of each target's database.
        self._starts: dict[int, float] = {}
        #: Workers and the controller count as one session, whose own load disturbs nothing.
        self._watch = MachineWatch(own_pid=int(received.get("controller", os.getpid())))
        #: The load of machine and GPUs at the start (False) and at the end (True), each read once.
        self._loads: dict[bool, tuple[MachineState, list[DeviceState]]] = {}
        self.waits = DeviceWaits(self.tell_once)
        self.plan: Plan | None = None
        self.profile: Profile | None = None
        #: Empty until the settings are read.
        self._databases: Sequence[TargetDatabase] = ()
        self.shared = SharedFolder(Path(received["shared_dir"]) if received else None)
        self._stop_reason = ""
        #: Whether the user pressed Ctrl-C twice.
        self.stopped_now = False
        #: In the controller: the ids of workers that have not said what they wrote; they run, or were killed.
        self.silent_workers: set[str] = set()
        if self.is_worker:
            # The controller may have ended while this process imported its modules.
            die_with_parent(int(received["controller"]))
            self.shared.register_worker(self.worker)
        else:
            # Workers and device processes inherit it.
            announce_session(self.run_id, self.command)

    @cached_property
    def settings(self) -> Settings:
        """Raises OpAtlasError, pytest.UsageError."""
        settings = settings_of(self.config)
        for target in settings.targets:
            forget_imports_from(target.path, unless_below=[self.config.rootpath])
        return settings

    @cached_property
    def code(self) -> str:
        """The digest of the code that measures."""
        return present_code()

    def _load(self, *, at_end: bool) -> tuple[MachineState, list[DeviceState]]:
        """Returns the load until the first call, or since then until the first call with `at_end`."""
        if at_end not in self._loads:
            gpus = device_states(self.settings.devices, self._watch.own_processes(), opened=at_end)
            self._loads[at_end] = self._watch.state(), gpus
        return self._loads[at_end]

    def load_facts(self, *, at_end: bool = False) -> Mapping[str, Any]:
        """Returns the load of machine and GPUs as the manifest stores it; nothing where no row runs here."""
        settings = self.settings
        return {} if settings.prof_path else facts_of(settings.devices, *self._load(at_end=at_end))

    @property
    def higher_load(self) -> str:
        """The higher load of start and end, in words; "" where the system has none."""
        states = (self._load(at_end=False)[0], self._load(at_end=True)[0])
        return max(states, key=lambda state: state.load_1min or 0.0).load

    @property
    def databases(self) -> Sequence[TargetDatabase]:
        """The database of each target, in the order of the targets."""
        if not self._databases:
            self._databases = [TargetDatabase(target) for target in self.settings.targets]
        return self._databases

    @property
    def database(self) -> Database:
        """The database of the first target."""
        return self.databases[0].database

    @property
    def journal_header(self) -> JournalHeader:
        """The header of each journal of this session."""
        # A message that the database lacks is added.
        mode = UpdateMode.ALL if self.settings.source.scope is Scope.COLLECTIVES else self.settings.mode
        return JournalHeader(self.run_id, mode.value, self.settings.prune)

    def manifest(self, devices: Sequence[DeviceDescription], target: int = 0) -> Manifest:
        """Returns the manifest of a target, as of a run that begins.

        Args:
            devices: each device and each group that rows of the session were run on so far.
            target: number of the target.
        """
        if target not in self._starts:
            self._starts[target] = start_of_run(self.databases[target].database, self.run_id, self.started_at)
        return Manifest(
            run_id=self.run_id,
            started_at=self._starts[target],
            device=asdict(devices[0]) if devices else {},
            other_devices=[asdict(device) for device in devices[1:]],
            options=options_of(self.settings, target),
            code=self.code,
            machine_at_start=self.load_facts(),
            **this_machine(),
        )

    @property
    def command(self) -> str:
        """The command line of the session, as the user wrote it."""
        if Path(sys.argv[0]).name == "opatlas":
            return shlex.join(["opatlas", *sys.argv[1:]])
        return shlex.join(["pytest", *self.config.invocation_params.args])

    @cached_property
    def msprof(self) -> Path | None:
        """The folder for the profiles of msprof; None where another instrument measures the rows of this process."""
        if self.settings.msprof_rows is None:
            return None
        profiles = self.database.profiles_dir if self.settings.writes else self.shared.path / "profiles"
        if accepts_profiles(profiles):
            return profiles / self.run_id / self.worker
        # A profile that lacks the samples of some rows is kept after the session.
        return Path(tempfile.mkdtemp(prefix="opatlas-profiles-"), "profiles", self.run_id)

    @property
    def runs_rows(self) -> bool:
        """Whether the session has a plan whose rows it runs, or looks up in profiles."""
        return self.plan is not None and not self.plan.error and not self.settings.collect_only

    def stop(self, reason: str) -> None:
        """Asks every process of the session to stop after its running row. The first reason counts."""
        if self.stop_reason:
            return
        self._stop_reason = reason
        # Where the temporary folder is full, this process stops, and the others find the disk full themselves.
        with contextlib.suppress(OpAtlasError):
            self.shared.write(_STOP, reason)

    @property
    def stop_reason(self) -> str:
        """Why the session is to stop; "" while it goes on."""
        self._stop_reason = self._stop_reason or self.shared.read(_STOP)
        return self._stop_reason

    @property
    def failed_early(self) -> str:
        """Why the session stops, unless the user asked for it; "" while it goes on."""
        return "" if self.stop_reason == STOPPED else self.stop_reason

    def kept_lines(self) -> Iterator[str]:
        """Yields which journals keep the records of a session that does not merge them; nothing with --read-only."""
        for each in self.databases if self.settings.writes else ():
            try:
                kept = pluralize(count_run_records(each.database, self.run_id), "record stays", "records stay")
            except OSError as error:
                kept = f"the records stay ({error.strerror})"
            where = each.database.journal_dir
            yield f"stopped at once: {kept} in {where}; the next session on this database merges them"

    def end_without_device(self, reason: str) -> NoReturn:
        """Ends the session because there is no device. The current test fails, and its row gets no record.

        A failure, unlike `pytest.exit`, shows what the device process has printed, and is in JUnit.
        """
        self.stop(reason)
        raise pytest.fail.Exception(reason, pytrace=False) from None

    def prepare_worker(self, worker_input: dict[str, Any], place: int) -> None:
        """Completes the input of a worker of xdist, which prefers the device at `place`."""
        self.silent_workers.add(worker_input["workerid"])
        worker_input[_WORKER_INPUT] = {
            "run_id": self.run_id,
            "shared_dir": str(self.shared.path),
            "controller": str(os.getpid()),
            "place": str(place),
        }

    def send_plan(self) -> None:
        """Gives the workers the plan, which they wait for. Raises OpAtlasError where there is no room."""
        none = Plan(error="replays were not asked for by name: with -n, name bench/ on the command line")
        plan = self.plan if self.plan is not None else none
        write_bytes(self.shared.path / _PLAN, pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL))

    def received_plan(self) -> Plan:
        """Returns the plan that the controller sends to its workers, once it is there."""
        sent = self.shared.path / _PLAN
        while not sent.exists():
            time.sleep(_LOOK_EVERY_S)
        return pickle.loads(sent.read_bytes())

    def await_other_workers(self) -> None:
        """Returns when no other worker of the session runs, or when the session is to stop."""
        while self.is_worker and self.shared.worker_pids() != [os.getpid()] and not self.stop_reason:
            time.sleep(_LOOK_EVERY_S)

    def kill_workers(self) -> None:
        """Kills the workers of xdist, and with them their device processes. Their records are in their journals."""
        for pid in self.shared.worker_pids():
            if parent_of(pid) == os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def tell(self, text: str) -> None:
        """Shows the user a line at once."""
        with self.past_capture():
            print(f"\n{printable_lines(f'opatlas: {text}')}", file=sys.stderr, flush=True)

    def tell_once(self, text: str) -> None:
        """Shows the user a line at once, unless another process of the session has shown the line."""
        name = f"told-{zlib.crc32(text.encode(errors='replace'))}"
        if not self.shared.read(name):
            with contextlib.suppress(OpAtlasError):
                self.shared.write(name, text)
            self.tell(text)

    def past_capture(self) -> AbstractContextManager[None]:
        """Lets output through pytest's capture, which would keep it until modules are collected."""
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        return capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext()

    def close(self) -> None:
        """Releases the database, and removes the shared folder."""
        for each in self._databases:
            if each.lock is not None:
                each.lock.release()
        if self.is_worker:
            self.shared.unregister_worker(self.worker)
        else:
            self.shared.remove()
