"""The state of a session: settings, run, plan and device. One object, made at configure time."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import secrets
import shlex
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pytest

from opatlas.capture.profile_samples import (
    DatabaseRows,
    Profile,
    ProfileMatcher,
    read_profile,
)
from opatlas.combine.provenance import PresentSetup, Provenance, StaleRuns
from opatlas.devices.device import DeviceSpec
from opatlas.devices.device_lock import DeviceWaits, announce_session
from opatlas.devices.discovery import driver_version
from opatlas.engine.group_spec import GroupSpec
from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder, expect_folder
from opatlas.instruments.instrument import MSPROF, MeasureSettings
from opatlas.isolation.device_process import DeviceProcess
from opatlas.isolation.executor import DevicePool, ExcludedDevices, Executor, InProcessExecutor, ProfileExecutor
from opatlas.isolation.fresh_python import forget_imports_from
from opatlas.isolation.groups.pool import ExclusiveExecutor, GroupPool
from opatlas.isolation.groups.process import GroupProcess
from opatlas.isolation.msprof import executor as msprof
from opatlas.isolation.msprof.command import accepts_profiles
from opatlas.isolation.process_end import die_with_parent, parent_of
from opatlas.store.csv_files import write_text
from opatlas.store.database import Database, SessionLock
from opatlas.store.history import find_edited
from opatlas.store.journal import JournalHeader
from opatlas.store.write_back import UpdateMode
from opatlas.text import shown

from .mixing import captured_notes, origin_notes
from .plan import Plan, Prepared
from .planning import expect_writable, make_plan, prepare_database
from .run_manifest import Surroundings, present_code
from .settings import Settings, is_distributed, settings_of

_WORKER_INPUT = "opatlas"
_STOP = "stop"
_NOT_HANDED = "replays were not asked for by name: with -n, name bench/ on the command line"


_PID_SUFFIX = ".pid"


class SharedFolder:
    """A folder among the temporary files: who is to stop and why, which processes are workers, and the plan of all.

    The process that makes one holds it until `remove`, or its own end. The plan of a session may be large: what a
    killed session has left goes with the next one (opatlas/files.py).
    """

    def __init__(self, joined: Path | None = None) -> None:
        """`joined` is where the process that made it says that it is; None makes one."""
        self._made: TemporaryFolder | None = None
        if joined is None:
            self._made = TemporaryFolder("session")
            joined = self._made.path
        self.path = joined

    def leave(self, name: str, text: str) -> None:
        """Leaves word under a name, to be read whole or not at all. Raises OpAtlasError where there is no room."""
        write_text(self.path / name, text)

    def word(self, name: str) -> str:
        """What was left under a name; "" where nothing was."""
        file = self.path / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def enter_worker(self, worker: str) -> None:
        """Leaves the process id of a worker, which is this process."""
        self.leave(f"{worker}{_PID_SUFFIX}", str(os.getpid()))

    def workers(self) -> list[int]:
        """The process ids of all workers that have entered; one that has ended may have left its to somebody else."""
        return [int(path.read_text()) for path in self.path.glob(f"*{_PID_SUFFIX}")]

    def hand(self, plan: Plan) -> None:
        """Leaves the plan for workers. Raises OpAtlasError where there is no room."""
        try:
            self._plan_file.write_bytes(pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise OpAtlasError(
                f"{self._plan_file} cannot be written ({error.strerror}): make room, or let TMPDIR name another folder"
            ) from None

    def handed(self) -> Plan | None:
        """The plan that was left; None where there is none."""
        if not self._plan_file.exists():
            return None
        plan: Plan = pickle.loads(self._plan_file.read_bytes())
        return plan

    def remove(self) -> None:
        """Removes the folder, where this process has made it."""
        if self._made is not None:
            self._made.remove()

    @property
    def _plan_file(self) -> Path:
        return self.path / "plan.pickle"


class BenchSession:
    """What the plugins of one pytest process share.

    A process is the only one of its session, or the xdist controller, or one of its workers. The
    controller makes the plan before its workers start; they share the run id, the plan, and a folder
    in which each can ask all to stop.

    Attributes:
        worker: the id that xdist gives a worker; "" in other processes.
        waits: how long rows of this process have waited for their device.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        handed: Mapping[str, str] = getattr(config, "workerinput", {}).get(_WORKER_INPUT, {})
        self.is_worker = bool(handed)
        self.is_controller = not self.is_worker and is_distributed(config)
        self.worker = str(getattr(config, "workerinput", {}).get("workerid", ""))
        # In UTC, because runs of several machines are put in order by it.
        self.run_id = handed.get("run_id") or f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        self.started_at = time.time()
        #: Workers and the controller are one session.
        self.surroundings = Surroundings(int(handed.get("controller", os.getpid())))
        self._shared = SharedFolder(Path(handed["shared_dir"])) if handed else None
        self._plan: Plan | None = None
        self._lock: SessionLock | None = None
        self._executor: Executor | None = None
        self._profile: Profile | None = None
        self._samples: ProfileMatcher | None = None
        #: What the durations of the database were measured on, as far as the plan needed to know.
        self.provenance: Provenance | None = None
        self._stop_reason = ""
        self.waits = DeviceWaits(self._tell_once)
        #: In the controller: which of the devices each worker is to prefer.
        self._places: dict[Any, int] = {}
        self._place = int(handed.get("place", 0))
        if self.is_worker:
            # It may have ended while this process imported what it needs.
            die_with_parent(int(handed["controller"]))
            self.shared.enter_worker(self.worker)
        else:
            # Workers inherit it, and so do the processes that own the devices.
            announce_session(self.run_id, self._command)

    @cached_property
    def settings(self) -> Settings:
        """Raises OpAtlasError, pytest.UsageError."""
        settings = settings_of(self._config)
        forget_imports_from(settings.database, unless_below=[self._config.rootpath])
        return settings

    @property
    def database(self) -> Database:
        return Database(self.settings.database)

    @property
    def journal_header(self) -> JournalHeader:
        """Of each journal of this session."""
        # Messages are asked for by options: those that the database lacks are what is missing, and are added.
        mode = UpdateMode.ALL if self.settings.messages is not None else self.settings.mode
        return JournalHeader(self.run_id, mode.value, self.settings.prune)

    @property
    def shared(self) -> SharedFolder:
        """Where the processes of a session with several leave word for each other."""
        if self._shared is None:
            self._shared = SharedFolder()
        return self._shared

    def plan(self) -> Plan:
        """The plan, made on first use; from then on the database is this session's."""
        if self._plan is None:
            self._plan = self._new_plan() if not self.is_worker else self.shared.handed() or Plan(error=_NOT_HANDED)
        return self._plan

    @property
    def plan_if_made(self) -> Plan | None:
        """The plan, unless this process has not needed one: no replay was collected."""
        return self._plan

    def samples(self) -> ProfileMatcher:
        """What the profiles of --prof-path have for the rows of the plan."""
        if self._samples is None:
            rows = {name: DatabaseRows(t.columns, frozenset(t.measured)) for name, t in self.plan().tables.items()}
            assert self._profile is not None
            self._samples = ProfileMatcher(self._profile, rows, self.settings.ep_size)
        return self._samples

    def executor(self) -> Executor:
        """Where the bodies of replays run; its device is opened when it is first asked for something."""
        if self._executor is None:
            settings, left_out = self.settings, ExcludedDevices(self._shared.path if self._shared is not None else None)
            if settings.prof_path is not None:
                self._executor = ProfileExecutor(self.samples(), settings.devices[0].name)
            elif settings.messages is not None:
                self._executor = self._groups(left_out)
            elif settings.in_process:
                self._executor = InProcessExecutor(settings.devices[0], settings.measure, self.waits)
            else:
                first = self._place % len(settings.devices)
                single = DevicePool(settings.devices[first:] + settings.devices[:first], self._executor_of, left_out)
                self._executor = ExclusiveExecutor(single, self._groups(left_out))
        return self._executor

    def _groups(self, left_out: ExcludedDevices) -> GroupPool:
        return GroupPool(self.settings.devices, self.settings.measure, left_out, self._executor_of_group)

    def _executor_of_group(self, spec: GroupSpec, devices: Sequence[DeviceSpec], measure: MeasureSettings) -> Executor:
        if measure.instrument != MSPROF:
            return GroupProcess(spec, devices, measure, self.waits)
        return msprof.msprof_on_group(spec, devices, measure, self._profiles(), self.waits)

    def _executor_of(self, spec: DeviceSpec) -> Executor:
        settings = self.settings
        if settings.msprof_rows is None:
            return DeviceProcess(spec, settings.measure, waits=self.waits)
        return msprof.msprof_on_device(spec, settings.measure, self._profiles(), self.waits)

    def _profiles(self) -> Path:
        """The folder for what msprof writes: in the database, where that is written and msprof takes its path."""
        profiles = self.database.profiles_dir if self.settings.writes else self.shared.path / "profiles"
        if accepts_profiles(profiles):
            return profiles / self.run_id / self.worker
        # A profile that is kept, since rows lack their samples in it, outlives the session.
        return Path(tempfile.mkdtemp(prefix="opatlas-profiles-"), "profiles", self.run_id)

    def stop(self, reason: str) -> None:
        """Asks every process of the session to stop after its running row. The first reason counts."""
        if self.stop_reason:
            return
        self._stop_reason = reason
        if self._shared is not None:
            # Where the temporary folder is full too, this process stops, and the others learn of it by themselves.
            with contextlib.suppress(OpAtlasError):
                self._shared.leave(_STOP, reason)

    @property
    def stop_reason(self) -> str:
        """Why the session is to stop; "" while it is to go on."""
        if not self._stop_reason and self._shared is not None:
            self._stop_reason = self._shared.word(_STOP)
        return self._stop_reason

    def kill_workers(self) -> None:
        """Ends xdist's workers now. What they measured is in their journals, and their device processes end too."""
        for pid in self.shared.workers():
            if parent_of(pid) == os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end_without_device(self, reason: str, code: pytest.ExitCode) -> NoReturn:
        """Ends the session; the row in hand is not to blame, and gets no record.

        A worker that exits makes xdist fail with an internal error of its own: it asks for the end instead.
        """
        self.stop(reason)
        if self.is_worker:
            raise pytest.fail.Exception(reason, pytrace=False) from None
        raise pytest.exit.Exception(reason, returncode=code) from None

    def hand_plan_to_workers(self) -> None:
        """In the controller, before workers start: makes the plan. Raises pytest.UsageError where there is none."""
        plan = self.plan()
        if plan.error:
            raise pytest.UsageError(plan.error)
        try:
            self.shared.hand(plan)
        except OpAtlasError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """A database holds no tests: pytest would run its conftest.py, which somebody else may have written."""
        named = self._config.option.database_path
        if not named or collection_path.name != Path(named).resolve().name or not collection_path.is_dir():
            return None
        return True if collection_path.resolve() == Path(named).resolve() else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """xdist's hook, in its controller, before a worker starts: tells it what it needs to be of this session.

        A worker that takes the place of one that died takes its device, too.
        """
        self._places[node] = next(place for place in itertools.count() if place not in self._places.values())
        node.workerinput[_WORKER_INPUT] = {
            "run_id": self.run_id,
            "shared_dir": str(self.shared.path),
            "controller": str(os.getpid()),
            "place": str(self._places[node]),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """xdist's hook, in its controller, after a worker has ended."""
        self._places.pop(node, None)

    def close(self) -> None:
        """Gives up the device and the database, and removes what workers shared."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        if self._lock is not None:
            self._lock.release()
        if self._shared is not None:
            self._shared.remove()

    def _new_plan(self) -> Plan:
        try:
            settings = self.settings
            if settings.named:
                expect_folder(
                    settings.database,
                    "name one that holds {KernelType}.csv files, or an empty one for a starter database",
                    option="--database-path",
                )
            if settings.prof_path is not None:
                with self._past_capture():
                    self._profile = read_profile(settings.prof_path)
            if settings.writes:
                # Before anything is written, and again when nobody else writes.
                self._origin_notes()
                self._take_database()
            prepared = self._prepare_database() if settings.writes else Prepared(edited=find_edited(self.database))
            plan = make_plan(
                self.database,
                settings.choice,
                sampled=() if self._profile is None else self._profile.cases.keys(),
                messages=settings.messages.rows if settings.messages is not None else None,
                unmeasured=prepared.edited.positions,
                stale_runs=self._stale_runs() if settings.mode is UpdateMode.STALE else None,
            )
            if settings.writes and any(table.cases for table in plan.tables.values()):
                expect_writable(self.database)
            if not settings.collect_only:
                plan.notes += self._origin_notes()
                assert self.provenance is not None
                plan.notes += [*captured_notes(self.provenance, plan, settings), *self.provenance.problems]
        except (OpAtlasError, pytest.UsageError) as error:
            return Plan(error=str(error))
        except Exception as error:
            # Told once: raised, each module that is collected would show it again.
            said = f"{type(error).__name__}: {error}"
            return Plan(error=f"no plan could be made ({said}): report this error of OpAtlas\n{traceback.format_exc()}")
        plan.prepared = prepared
        plan.problems += [*prepared.problems, *(self._profile.problems if self._profile is not None else ())]
        if self._lock is not None and self._lock.stale is not None:
            plan.taken_over = str(self._lock.stale)
        return plan

    def _stale_runs(self) -> StaleRuns:
        provenance = self.provenance or Provenance(self.database)
        present = PresentSetup(
            self.settings.origin, driver_version(self.settings.devices[0].kind) or "", present_code()
        )
        return StaleRuns(provenance.manifests, present)

    def _origin_notes(self) -> list[str]:
        """Raises OpAtlasError if the database is one of another device or of other software."""
        self.provenance = Provenance(self.database)
        return origin_notes(self.provenance, self.settings)

    def _prepare_database(self) -> Prepared:
        # Rows of profiles and of messages come from elsewhere.
        has_rows = self._profile is not None or self.settings.messages is not None
        return prepare_database(
            self.database,
            run_id=self.run_id,
            starter=None if has_rows else _make_starter,
            is_npu=self.settings.messages is None and self.settings.devices[0].kind == "npu",
        )

    def _take_database(self) -> None:
        """Raises OpAtlasError where another session has it."""
        remedy = "wait for it to end (--wait SECONDS does so), or name another database with --database-path"
        self._lock = SessionLock(self.database, run_id=self.run_id, command=self._command, remedy=remedy)
        self._lock.acquire(self.settings.wait_s, self._tell)

    @property
    def _command(self) -> str:
        return shlex.join(["pytest", *self._config.invocation_params.args])

    def _tell_once(self, text: str) -> None:
        """Shows the user a line that another worker may have shown already."""
        if self._shared is not None:
            name = f"told-{zlib.crc32(text.encode(errors='replace'))}"
            if self._shared.word(name):
                return
            with contextlib.suppress(OpAtlasError):
                self._shared.leave(name, text)
        self._tell(text)

    def _tell(self, text: str) -> None:
        with self._past_capture():
            print(shown(f"\nopatlas: {text}"), file=sys.stderr, flush=True)

    def _past_capture(self) -> AbstractContextManager[None]:
        """pytest's capture would keep what is printed until modules are collected."""
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        return capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext()


def _make_starter(database: Database) -> int:
    from opatlas.shapes.starter import write_starter

    rows: int = write_starter(database)
    return rows
