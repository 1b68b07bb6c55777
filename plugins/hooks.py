"""The hooks of a session, each of which calls one step of `Session`, and the answers to Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from opatlas.errors import OpAtlasError
from opatlas.options import Scope
from opatlas.run.registry import replay_spec
from opatlas.text import printable_lines

from .cases import needs_group, row_of
from .collector import SESSION, sort_exclusive_last
from .reports import JUnit, LogXML, attach_note, benchmark_plugins, shorten_message, xml_key
from .session import Session
from .session_context import EXCLUSIVE_ITEMS, STOPPED, SessionContext
from .settings import has_replays, scope_of
from .target import devices_of
from .terminal import RowWords, plan_lines, print_summary


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes the session and registers its hooks, after the terminal and pytest-benchmark are configured."""
    session = config.stash[SESSION] = Session(SessionContext(config))
    context = session.context
    plugins: list[Any] = [ProcessHooks(session), session.collector]
    plugins += benchmark_plugins(config, is_worker=context.is_worker)
    if context.is_worker:
        # Ctrl-C on a terminal reaches workers too; the controller answers it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        plugins.append(MainHooks(session))
        xml: LogXML | None = config.stash.get(xml_key, None)
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if context.is_controller:
            # Only a session with workers imports xdist's scheduling.
            from .controller import ControllerHooks

            plugins.append(ControllerHooks(session))
        if xml is not None:
            plugins.append(JUnit(session, xml))
        if terminal is not None:
            plugins.append(RowWords(session))
    for plugin in plugins:
        config.pluginmanager.register(plugin, f"opatlas-{type(plugin).__name__}")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Sets the number of workers, before xdist's own hook, which may come first, makes workers of it.

    Escapes what a terminal would obey in errors of usage: pytest prints them as they are.
    """
    try:
        _set_workers(config)
        return (yield)
    except pytest.UsageError as error:
        raise pytest.UsageError(printable_lines(str(error))) from None


def _set_workers(config: pytest.Config) -> None:
    option = config.option
    if getattr(option, "numprocesses", 0) is not None or option.tx or hasattr(config, "workerinput"):
        # xdist is not there, or an option sets the workers, or this process is a worker.
        return
    if (
        option.in_process
        or option.ray is not None
        or option.usepdb
        or option.collectonly
        or not has_replays(config)
        or scope_of(config) is not Scope.KERNELS
    ):
        return
    try:
        devices = devices_of(config)
    except OpAtlasError as error:
        raise pytest.UsageError(str(error)) from None
    if len(devices) > 1:
        option.numprocesses = len(devices)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Releases the device and the database."""
    if SESSION in config.stash:
        config.stash[SESSION].close()


class ProcessHooks:
    """The hooks of every process: rows are run and recorded here, unless the process is xdist's controller."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._context = session.context

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignores the folder of the database, which may hold a conftest.py that somebody else wrote."""
        named = self._context.config.option.database_path
        if not named or collection_path.name != Path(named).resolve().name or not collection_path.is_dir():
            return None
        return True if collection_path.resolve() == Path(named).resolve() else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Moves rows that need several devices to the end, after other plugins (--ff) have sorted the items.

        Meanwhile files of rows have no name, so that -k selects by the row: `-k Index` not all of test_indexing.py.
        """
        others = {item.getparent(pytest.Module) for item in items if row_of(item) is None}
        modules = {item.getparent(pytest.Module) for item in items} - others
        names = {module: module.name for module in modules if module is not None}
        for module in names:
            module.name = ""
        try:
            yield
        finally:
            for module, name in names.items():
                module.name = name
        if any(map(needs_group, items)):
            sort_exclusive_last(items, self._context.settings.source.options)
        if self._context.is_worker and items and needs_group(items[-1]):
            # All workers have the same collection; the controller has none.
            self._context.shared.write(EXCLUSIVE_ITEMS, str(sum(map(needs_group, items))))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """Opens the device before, and stops the session after a row.

        Outside of plugins that limit the time of a test, such as pytest-timeout: opening imports torch.
        """
        self._session.runner.prepare(item)
        done = yield
        if reason := self._context.stop_reason:
            item.session.shouldstop = reason
        return done

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Runs the row of a replay in place of pytest's call of the function."""
        if replay_spec(pyfuncitem.function) is None:
            return None
        self._session.run(pyfuncitem)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Records a row before pytest makes its report, which takes properties and output of the item."""
        row = row_of(item)
        # Nothing becomes of a row whose fixtures are made, or released.
        if row is None or (call.when != "call" and call.excinfo is None):
            return (yield)
        note = self._session.record(item, row, call)
        report = yield
        shorten_message(report)
        attach_note(report, note)
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Merges and reports: the innermost wrapper, inside that of the terminal, which prints the summary.

        The merge also runs if another plugin has failed. xdist's own hook waits until its workers and their devices
        have ended: workers that have closed their journals end meanwhile.
        """
        workers_end = self._context.is_controller and not self._context.silent_workers
        try:
            self._session.complete(session)
            result = None if workers_end else (yield)
        finally:
            self._session.merge()
            self._session.report(session)
        return (yield) if workers_end else result


class MainHooks:
    """The hooks of the main process: the only process of a session, or the controller of xdist."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._interrupts = Interrupts(session.context)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Selects the collected rows, before pytest prints the lines about the plan."""
        self._session.select(item.nodeid for item in session.items if row_of(item) is not None)

    def pytest_report_collectionfinish(self) -> list[str]:
        """Returns the lines about the plan."""
        return plan_lines(self._session)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        """Answers Ctrl-C while rows run."""
        with self._interrupts.handler():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Counts a row before other plugins show its report, and keeps its record when they have shown it."""
        self._session.receive(report)
        result = yield
        self._session.keep(report)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the summary."""
        print_summary(self._session, terminalreporter)


_FIRST_ANSWER = (
    "\nCtrl-C: stopping after the running row.\n"
    "A second Ctrl-C stops at once, and leaves the records to the next session.\n"
)


class Interrupts:
    """Answers Ctrl-C while rows run: the first stops after the running row, the second stops now.

    Only the main process of a session has one: the only process, or the controller of xdist.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._stderr = 2
        self._is_first = True

    @contextlib.contextmanager
    def handler(self) -> Iterator[None]:
        """Answers signals within the context; other tests than replays keep pytest's answer."""
        if self._context.plan is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        # While a test runs, descriptor 2 is pytest's capture.
        self._stderr = os.dup(2)
        before = signal.signal(signal.SIGINT, self._answer)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            os.close(self._stderr)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self._is_first:
            self._is_first = False
            self._context.stop(STOPPED)
            os.write(self._stderr, _FIRST_ANSWER.encode())
            return
        self._context.stopped_now = True
        if self._context.is_controller:
            self._context.kill_workers()
        # pytest would print where a KeyboardInterrupt was raised, which helps no user.
        raise pytest.Session.Interrupted("stopped at once by Ctrl-C, twice")
