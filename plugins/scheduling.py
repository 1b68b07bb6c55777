"""The schedulers of xdist that deal rows to workers: whole batches, and rows of groups last and alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadScopeScheduling

from .row_runner import batches

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController


class BatchScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Deals the rows of a batch (`batches`) to one worker: xdist's scheduling with batches as scopes."""

    def __init__(self, config: Any, log: Any, size: int) -> None:
        super().__init__(config, log)
        self._size = size
        self._batches: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._batches and self.collection:
            self._batches = batches(self.collection, self._size)
        return str(self._batches[nodeid])

    def remove_node(self, node: Any) -> str | None:
        """Removes a worker. xdist's own method would run the row that ended the worker again, and report it twice."""
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


class _Worker:
    """A worker for the inner scheduler. The worker may get exclusive items after the inner scheduler has ended it."""

    def __init__(self, worker: WorkerController, end: Callable[[_Worker], None]) -> None:
        self.worker = worker
        self._end = end
        self._is_ended = False

    @property
    def shutting_down(self) -> bool:
        return self._is_ended or bool(self.worker.shutting_down)

    def shutdown(self) -> None:
        self._is_ended = True
        self._end(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)


class ExclusiveScheduling:
    """A scheduler of xdist (its Protocol) that deals all but the exclusive items with an inner scheduler.

    The exclusive items go to one worker, after all other workers have ended and their devices are free. A worker of
    xdist runs its last item only after it gets another item or is ended. So a worker is ended as soon as the inner
    scheduler has no item left for the worker. The last worker is ended after it has got the exclusive items.
    """

    def __init__(self, inner: Scheduling, count: Callable[[], int]) -> None:
        """`count` returns how many items at the end of the collection are exclusive, after the collection."""
        self._inner = inner
        self._count = count
        self._workers: dict[WorkerController, _Worker] = {}
        self._collected = False
        self._collection: Sequence[str] = ()
        #: Indices of the exclusive items that no worker has, and of the exclusive items that the last worker has.
        self._left: list[int] = []
        self._given: list[int] = []
        self._last: _Worker | None = None

    def __getattr__(self, name: str) -> Any:
        # Other plugins (pytest-rerunfailures) ask for what xdist's schedulers have and its Protocol lacks.
        return getattr(self._inner, name)

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._workers)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self._inner.collection_is_completed)

    @property
    def tests_finished(self) -> bool:
        # As in xdist: the last item of a worker runs when the worker is ended.
        return bool(self._inner.tests_finished) and not self._left and len(self._given) < 2

    @property
    def has_pending(self) -> bool:
        return bool(self._inner.has_pending or self._left or self._given)

    def add_node(self, node: WorkerController) -> None:
        self._workers[node] = _Worker(node, self._on_shutdown)
        self._inner.add_node(self._workers[node])

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        if not self._collected:
            self._collected = True
            self._collection = list(collection)
            self._left = list(range(len(collection) - self._count(), len(collection)))
        if self._ordinary or not self.collection_is_completed:
            # Without ordinary items xdist's schedulers refuse a worker that replaces another worker.
            self._inner.add_node_collection(self._workers[node], list(collection)[: self._ordinary])

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        if item_index < self._ordinary:
            self._inner.mark_test_complete(self._workers[node], item_index, duration)
        else:
            self._given.remove(item_index)

    def mark_test_pending(self, item: str) -> None:
        index = self._collection.index(item)
        if index < self._ordinary:
            self._inner.mark_test_pending(item)
        else:
            self._left.insert(0, index)

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        self._inner.remove_pending_tests_from_node(self._workers[node], indices)

    def remove_node(self, node: WorkerController) -> str | None:
        worker = self._workers.pop(node)
        crashed = self._inner.remove_node(worker) if worker in self._inner.nodes else None
        if worker is self._last:
            # The last worker died: a new worker gets its items.
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
        """The number of items that the inner scheduler deals."""
        return len(self._collection) - self._count()

    def _on_shutdown(self, worker: _Worker) -> None:
        """Called when the inner scheduler has no item left for a worker."""
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
