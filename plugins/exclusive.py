"""Rows that need several devices at once run last, when nobody else holds a device.

In a session of one process they stand at the end of the collection. Under xdist one worker runs them,
after the others have ended, and their device processes with them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from bench.errors import ReplayError
from bench.registry import replay_spec
from database.communication import is_communication
from database.schema import NUM_DEVICES, TOPOLOGY_TIER
from plugins.items import needs_group, row_of

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

    from plugins.session import BenchSession

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
        from plugins.exclusive_scheduling import ExclusiveScheduling

        return ExclusiveScheduling(inner, self._count)

    def _count(self) -> int:
        """How many items stand at the end of the collection; known when a worker has collected."""
        return int(self._session.shared.word(_COUNT) or 0)
