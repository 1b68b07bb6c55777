"""Several devices: one xdist worker each, unless the user says otherwise with -n."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from opatlas.collectives import options as collectives
from opatlas.engine.registry import replay_spec
from opatlas.errors import OpAtlasError
from opatlas.installation import code_folder
from opatlas.model.communication import is_communication
from opatlas.model.errors import ReplayError
from opatlas.model.schema import NUM_DEVICES, TOPOLOGY_TIER
from opatlas.text import counted

from .collector import needs_group, row_of
from .row_runner import batches
from .session_context import BenchSession
from .target import devices_of

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

    from .session_context import BenchSession


class BatchScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduling by scope, where a scope is a batch (plugins/row_runner.py)."""

    def __init__(self, config: Any, log: Any, size: int) -> None:
        super().__init__(config, log)
        self._size = size
        self._batches: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._batches and self.collection:
            self._batches = batches(self.collection, self._size)
        return str(self._batches[nodeid])

    def remove_node(self, node: Any) -> str | None:
        """As xdist's own, which would run the row that has ended a worker again, and report it twice."""
        workload = self.assigned_work.pop(node)
        pending = [(unit, nodeid) for unit in workload.values() for nodeid, done in unit.items() if not done]
        if not pending:
            return None
        unit, crashed = pending[0]
        unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in workload.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return str(crashed)


_FIXTURES = code_folder("bench") / "conftest.py"
_THEORY = code_folder("shapes") / "conftest.py"


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
        or collectives.are_named(config)
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

        return BatchScheduling(config, log, at_once)


def replays_are_asked_for(config: pytest.Config) -> bool:
    """Whether what is to be collected has the fixtures of replays; known before anything is collected."""
    manager = config.pluginmanager
    files = (getattr(plugin, "__file__", None) for plugin in manager.get_plugins())
    paths = {Path(file) for file in files if file}
    # `opatlas shapes` and `pytest -p opatlas.plugins` load the fixtures of replays, whatever is to be collected.
    return _FIXTURES in paths or (manager.has_plugin("opatlas.plugins.fixtures") and _THEORY not in paths)


class _Worker:
    """A worker as the inner scheduler sees it: it may be told to end before it really is."""

    def __init__(self, worker: WorkerController, end: Callable[[_Worker], None]) -> None:
        self.worker = worker
        self._end = end
        self._told_to_end = False

    @property
    def shutting_down(self) -> bool:
        return self._told_to_end or bool(self.worker.shutting_down)

    def shutdown(self) -> None:
        self._told_to_end = True
        self._end(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)


class ExclusiveScheduling:
    """An xdist scheduler (its Protocol) that leaves the collection to another one, except its last items.

    A worker runs its last item only when it knows of a next one, or that there is none. So workers
    are told to end as the inner scheduler has nothing left for them, all but the last one. That one
    gets the rest when the others are gone, and the devices that they held are free.
    """

    def __init__(self, inner: Scheduling, count: Callable[[], int]) -> None:
        """`count` gives how many items at the end of the collection are exclusive, once one is known."""
        self._inner = inner
        self._count = count
        self._workers: dict[WorkerController, _Worker] = {}
        self._collected = False
        self._collection: Sequence[str] = ()
        #: Indices of exclusive items: those that nobody has yet, and those of the worker that runs them.
        self._left: list[int] = []
        self._given: list[int] = []
        self._last: _Worker | None = None

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._workers)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self._inner.collection_is_completed)

    @property
    def tests_finished(self) -> bool:
        # As in xdist: the last item of a worker runs when it is told to end.
        return bool(self._inner.tests_finished) and not self._left and len(self._given) < 2

    @property
    def has_pending(self) -> bool:
        return bool(self._inner.has_pending or self._left or self._given)

    def add_node(self, node: WorkerController) -> None:
        self._workers[node] = _Worker(node, self._told_to_end)
        self._inner.add_node(self._workers[node])

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        if not self._collected:
            self._collected = True
            self._collection = list(collection)
            self._left = list(range(len(collection) - self._count(), len(collection)))
        if self._ordinary or not self.collection_is_completed:
            # (xdist's schedulers take no replacement of a worker where there is nothing to do.)
            self._inner.add_node_collection(self._workers[node], list(collection)[: self._ordinary])

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        if item_index < self._ordinary:
            self._inner.mark_test_complete(self._workers[node], item_index, duration)
        else:
            self._given.remove(item_index)

    def mark_test_pending(self, item: str) -> None:
        self._inner.mark_test_pending(item)

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        self._inner.remove_pending_tests_from_node(self._workers[node], indices)

    def remove_node(self, node: WorkerController) -> str | None:
        worker = self._workers.pop(node)
        crashed = self._inner.remove_node(worker) if worker in self._inner.nodes else None
        if worker is self._last:
            # It died; what it had goes to the worker that takes its place.
            self._last = None
            if crashed is None and self._given:
                crashed = self._collection[self._given.pop(0)]
            self._left, self._given = [*self._given, *self._left], []
        self._give_to_the_last()
        return crashed

    def schedule(self) -> None:
        if self._ordinary:
            self._inner.schedule()
            return
        for worker in [worker for worker in self._workers.values() if not worker.shutting_down]:
            worker.shutdown()

    @property
    def _ordinary(self) -> int:
        """How many items are the inner scheduler's."""
        return len(self._collection) - self._count()

    def _told_to_end(self, worker: _Worker) -> None:
        """The inner scheduler has nothing left for a worker."""
        others = [other for other in self._workers.values() if other is not worker and not other.shutting_down]
        if self._left and not others and self._last is None:
            self._last = worker
            self._give_to_the_last()
        elif worker is not self._last:
            worker.worker.shutdown()

    def _give_to_the_last(self) -> None:
        if self._last is None or len(self._workers) > 1 or not self._left:
            return
        self._given, self._left = self._left, []
        self._last.worker.send_runtest_some(self._given)
        self._last.worker.shutdown()


#: In the folder of a session with workers: how many items stand at the end of the collection.
_COUNT = "exclusive"


def _group_of(item: pytest.Item) -> tuple[int, ...]:
    """What an item's group is told by: rows of one group follow each other in it.

    Of groups with as many ranks that with the largest buffer comes first: it serves the others' rows too.
    """
    row, spec = row_of(item), replay_spec(getattr(item, "function", None))
    if row is None or spec is None or spec.group is None:
        return 0, 0
    if is_communication(row.kernel_type):
        return int(row.cells[NUM_DEVICES]), int(row.cells[TOPOLOGY_TIER])
    try:
        group = spec.group(row.cells, item.config.option)
    except ReplayError:
        # The row says so at its turn.
        return 0, 0
    return group.ranks, -(group.hccl_buffer_mib or 0)


class ExclusiveLast:
    """Puts such rows at the end: of the collection, in every process that collects, and of what xdist deals out."""

    def __init__(self, session: BenchSession) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Outermost: other plugins have put theirs in order (--ff) by then."""
        yield
        items.sort(key=lambda item: (needs_group(item), *_group_of(item)))
        if self._session.is_worker and items and needs_group(items[-1]):
            # All workers have the same collection; the controller has none.
            self._session.shared.leave(_COUNT, str(sum(map(needs_group, items))))

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> Generator[None, Scheduling, Scheduling]:
        inner = yield
        if config.getoption("dist", None) == "each":
            # Every worker runs everything.
            return inner

        return ExclusiveScheduling(inner, self._count)

    def _count(self) -> int:
        """How many items stand at the end of the collection; known when a worker has collected."""
        return int(self._session.shared.word(_COUNT) or 0)
