"""How xdist deals out rows that run in batches: each batch to one worker, whole."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

from plugins.look_ahead import batches


class BatchScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduling by scope, where a scope is a batch (plugins/look_ahead.py)."""

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
