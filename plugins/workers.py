"""Several devices: one xdist worker each, unless the user says otherwise with -n."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.collectives import options as collectives
from database.errors import OpAtlasError
from database.terminal import counted
from plugins.session import BenchSession
from plugins.settings import devices_of

_FIXTURES = Path(bench.__file__).with_name("conftest.py")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Before xdist's own, which turns a number of workers into their specifications."""
    option = config.option
    if getattr(option, "numprocesses", 0) is not None or option.tx or hasattr(config, "workerinput"):
        # There is no xdist, or the user has chosen, or this is a worker.
        return
    if (
        option.in_process
        or option.usepdb
        or option.collectonly
        or option.prof_path
        or not replays_are_asked_for(config)
        # One process has the group of all devices.
        or collectives.are_asked_for(config)
    ):
        return
    try:
        devices = devices_of(config)
    except OpAtlasError as error:
        raise pytest.UsageError(str(error)) from None
    if len(devices) > 1:
        option.numprocesses = len(devices)


class Controller:
    """In xdist's controller: sees to it that workers find a plan."""

    def __init__(self, session: BenchSession) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Generator[None, None, None]:
        """Around xdist's own, which starts the workers."""
        if not replays_are_asked_for(session.config):
            return (yield)
        self._session.hand_plan_to_workers()
        # xdist's `python -c` would look for every import in the working folder first; Python 3.10 does so all the same.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        # A Ctrl-C that comes before a worker knows better would kill it: it inherits the blocked signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return (yield)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        """Says where there are more workers than devices."""
        if not replays_are_asked_for(config):
            return []
        workers, devices = len(config.option.tx), len(self._session.settings.devices)
        if workers <= devices:
            return []
        gain = "rows of one device take turns, and more workers than devices gain nothing"
        return [f"opatlas: -n {workers} on {counted(devices, 'device')}: {gain}"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """xdist's hook: who gets which rows. None leaves it to xdist."""
        if not replays_are_asked_for(config):
            return None
        at_once = self._session.settings.rows_at_once
        if at_once == 1:
            return None
        from plugins.batch_scheduling import BatchScheduling

        return BatchScheduling(config, log, at_once)


def replays_are_asked_for(config: pytest.Config) -> bool:
    """Whether what is to be collected has the fixtures of replays; known before anything is collected."""
    files = (getattr(plugin, "__file__", None) for plugin in config.pluginmanager.get_plugins())
    return any(file is not None and Path(file) == _FIXTURES for file in files)
