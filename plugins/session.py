"""The state of a session: settings, run, plan and device. One object, made at configure time."""

from __future__ import annotations

import pickle
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pytest
from filelock import FileLock

from bench.device_process import DeviceProcess
from bench.executor import Executor, InProcess
from database.errors import OpAtlasError
from database.store import Database
from plugins.options import Settings, settings_of
from plugins.plan import Plan, make_plan

_WORKER_INPUT = "opatlas"


class BenchSession:
    """What the plugins of one pytest process share.

    A process is the only one of its session, or the xdist controller, or one of its workers.
    Controller and workers share the run id and the plan.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        handed: Mapping[str, str] = getattr(config, "workerinput", {}).get(_WORKER_INPUT, {})
        self.is_worker = bool(handed)
        self.is_controller = not self.is_worker and bool(
            config.getoption("numprocesses", None) or config.getoption("tx", None)
        )
        self.run_id = handed.get("run_id") or f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
        self.started_at = time.time()
        self._shared_dir = Path(handed["shared_dir"]) if handed else None
        self._plan: Plan | None = None
        self._executor: Executor | None = None

    @cached_property
    def settings(self) -> Settings:
        """Raises OpAtlasError, pytest.UsageError."""
        return settings_of(self._config)

    @property
    def database(self) -> Database:
        return Database(self.settings.database)

    def plan(self) -> Plan:
        """The plan, made on first use: by the first worker that needs it where there are several."""
        if self._plan is None:
            self._plan = self._shared_plan() if self._shared_dir else self._new_plan()
        return self._plan

    @property
    def plan_if_made(self) -> Plan | None:
        """The plan, unless nobody of this session needed one: no replay was collected."""
        if self._plan is None and self._shared_dir and self._plan_file.exists():
            self._plan = pickle.loads(self._plan_file.read_bytes())
        return self._plan

    def executor(self) -> Executor:
        """Where the bodies of replays run; its device is opened when it is first asked for something."""
        if self._executor is None:
            settings = self.settings
            if settings.in_process:
                self._executor = InProcess(settings.device, settings.measure)
            else:
                self._executor = DeviceProcess(
                    settings.device, settings.measure, case_timeout_s=settings.case_timeout_s
                )
        return self._executor

    def end_without_device(self, session: pytest.Session, reason: str, code: pytest.ExitCode) -> NoReturn:
        """Ends the session; the row in hand is not to blame, and gets no record.

        A worker that exits makes xdist fail with an internal error of its own: it asks for the end instead.
        """
        if self.is_worker:
            session.shouldstop = reason
            pytest.fail(reason, pytrace=False)
        pytest.exit(reason, returncode=code)

    def _for_worker(self) -> dict[str, str]:
        """What a worker needs to be of this session."""
        if self._shared_dir is None:
            self._shared_dir = Path(tempfile.mkdtemp(prefix="opatlas-"))
        return {"run_id": self.run_id, "shared_dir": str(self._shared_dir)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """xdist's hook, in its controller, before a worker starts."""
        node.workerinput[_WORKER_INPUT] = self._for_worker()

    def close(self) -> None:
        """Gives up the device, and removes what workers shared."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        if self._shared_dir is not None and not self.is_worker:
            shutil.rmtree(self._shared_dir, ignore_errors=True)

    @property
    def _plan_file(self) -> Path:
        assert self._shared_dir is not None
        return self._shared_dir / "plan.pickle"

    def _shared_plan(self) -> Plan:
        with FileLock(self._plan_file.with_suffix(".lock")):
            if self._plan_file.exists():
                plan: Plan = pickle.loads(self._plan_file.read_bytes())
            else:
                plan = self._new_plan()
                unfinished = self._plan_file.with_suffix(".new")
                unfinished.write_bytes(pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL))
                unfinished.rename(self._plan_file)
        return plan

    def _new_plan(self) -> Plan:
        try:
            settings = self.settings
            if self._config.option.database_path and not settings.database.is_dir():
                raise OpAtlasError(
                    f"--database-path {settings.database}: no such directory; name one that holds "
                    f"{{KernelType}}.csv files, or an empty one for a starter database"
                )
            return make_plan(
                settings.database,
                settings.mode,
                settings.ops,
                run_id=self.run_id,
                write=not settings.collect_only,
                starter=_make_starter,
            )
        except (OpAtlasError, pytest.UsageError) as error:
            return Plan(error=str(error))


def _make_starter(database: Database) -> int:
    from shapes.starter import write_starter

    return write_starter(database)
