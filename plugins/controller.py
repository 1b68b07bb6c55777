"""The controller of xdist: plans for its workers, deals the rows to them, and takes their records."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from .row_runner import batches
from .session import Session
from .session_context import EXCLUSIVE_ITEMS
from .settings import has_replays
from .terminal import plan_lines

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling


class RowScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduling by scopes: the rows of a scope go to one worker, in the order of the collection.

    A worker runs its last item only after it gets another item or is ended. So all workers are ended when no scope is
    left, and the worker with the rows of groups can wait until it is the last one.
    """

    def __init__(self, config: Any, log: Any, scopes_of: Callable[[Sequence[str]], Mapping[str, str]]) -> None:
        """`scopes_of` returns the scope of each node id of the collection."""
        super().__init__(config, log)
        # Else large scopes come first.
        config.option.loadscopereorder = False
        self._scopes_of = scopes_of
        self._scopes: Mapping[str, str] = {}
        self._indices: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._scopes and self.collection:
            self._scopes = self._scopes_of(self.collection)
            # The first of equal node ids, as list.index finds it.
            self._indices = {each: index for index, each in reversed(list(enumerate(self.collection)))}
        return self._scopes[nodeid]

    def _assign_work_unit(self, node: Any) -> None:
        """Gives a worker the next scope. xdist's own method looks for each row in the list of all."""
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node][scope] = unit
        node.send_runtest_some([self._indices[nodeid] for nodeid, done in unit.items() if not done])

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forgets a scope whose rows have run: xdist counts all rows of a worker's scopes again and again."""
        super().mark_test_complete(node, item_index, duration)
        work, scope = self.assigned_work[node], self._split_scope(self.registered_collections[node][item_index])
        if all(work[scope].values()):
            del work[scope]

    def _reschedule(self, node: Any) -> None:
        """Gives a worker scopes until it has a row to run and two that wait. xdist's own method gives one scope."""
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            self._assign_work_unit(node)
        for each in self.nodes if not self.workqueue else ():
            if not each.shutting_down:
                each.shutdown()

    def remove_node(self, node: Any) -> str | None:
        """Removes a worker. xdist's own method would run the row that ended the worker again, and report it twice."""
        workload = self.assigned_work.pop(node)
        pending = [(unit, nodeid) for unit in workload.values() for nodeid, done in unit.items() if not done]
        if not pending:
            return None
        unit, crashed = pending[0]
        unit[crashed] = True
        left = {scope: unit for scope, unit in workload.items() if not all(unit.values())}
        for scope in reversed(left):
            self.workqueue[scope] = left[scope]
            self.workqueue.move_to_end(scope, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return str(crashed)


class ControllerHooks:
    """The hooks of the controller."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._context = session.context
        #: The index of the device that each worker prefers.
        self._places: dict[Any, int] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Generator[None, None, None]:
        """Prepares the start of the workers by xdist's own hook."""
        if not has_replays(session.config):
            return (yield)
        # Otherwise xdist's `python -c` looks for imports in the working folder first. Python 3.10 ignores the variable.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        # Ctrl-C would kill a worker that does not ignore it yet: workers inherit the blocked signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return (yield)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Plans while the workers import pytest and its plugins."""
        try:
            if has_replays(session.config) and (error := self._session.plan().error):
                raise pytest.UsageError(error)
        finally:
            self._context.send_plan()

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling | None:
        """Deals rows by their scopes; a session of other tests keeps xdist's scheduling."""
        return RowScheduling(config, log, self._scopes) if has_replays(config) else None

    def _scopes(self, nodeids: Sequence[str]) -> Mapping[str, str]:
        """Returns what stays together: the rows of groups, else those of a batch, else the implementations of a row."""
        ordinary = len(nodeids) - int(self._context.shared.read(EXCLUSIVE_ITEMS) or 0)
        scopes = dict.fromkeys(nodeids[ordinary:], "groups")
        if (size := self._context.settings.msprof_rows or 1) > 1:
            return scopes | {nodeid: str(batch) for nodeid, batch in batches(nodeids[:ordinary], size).items()}
        cases = {nodeid: self._session.case_of(nodeid) for nodeid in nodeids[:ordinary]}
        return scopes | {nodeid: nodeid if case is None else case.row_id for nodeid, case in cases.items()}

    def pytest_configure_node(self, node: Any) -> None:
        """Prepares the input of a worker, before it starts: it takes the lowest free place."""
        self._places[node] = next(place for place in itertools.count() if place not in self._places.values())
        self._context.prepare_worker(node.workerinput, self._places[node])

    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Selects the rows that a worker has collected, and prints the lines about the plan."""
        is_first = self._session.select(ids)
        terminal = node.config.pluginmanager.get_plugin("terminalreporter")
        lines = plan_lines(self._session) if is_first and terminal is not None else []
        if lines:
            # xdist counts its workers in an unfinished line.
            terminal.ensure_newline()
        for line in lines:
            terminal.write_line(line)

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Takes the records of a worker that has ended and closed its journal."""
        self._places.pop(node, None)
        if error:
            # A worker that was killed did not say that it has ended.
            self._context.shared.unregister_worker(node.workerinput["workerid"])
        self._session.records.take_worker(node)
