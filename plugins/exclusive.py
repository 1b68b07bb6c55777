"""Rows that need several devices at once run last, when nobody else holds a device.

In a session of one process they stand at the end of the collection. Under xdist one worker runs them,
after the others have ended, and their device processes with them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from database.communication import is_communication
from database.schema import NUM_DEVICES, TOPOLOGY_TIER
from plugins.items import needs_group, row_of

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

    from plugins.session import BenchSession

#: In the folder of a session with workers: how many items stand at the end of the collection.
_COUNT = "exclusive"


def _group_of_message(item: pytest.Item) -> tuple[int, int]:
    """What the group of a collective's message is told by: those of one group follow each other in it."""
    row = row_of(item)
    if row is None or not is_communication(row.kernel_type):
        return 0, 0
    cells = row.cells
    return int(cells[NUM_DEVICES]), int(cells[TOPOLOGY_TIER])


class ExclusiveLast:
    """Puts such rows at the end: of the collection, in every process that collects, and of what xdist deals out."""

    def __init__(self, session: BenchSession) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Outermost: other plugins have put theirs in order (--ff) by then."""
        yield
        items.sort(key=lambda item: (needs_group(item), *_group_of_message(item)))
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
