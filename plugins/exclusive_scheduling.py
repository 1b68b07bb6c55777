"""How xdist deals out rows that must not run beside others: to one worker, when the others have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController


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
