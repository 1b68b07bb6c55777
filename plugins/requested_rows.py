"""The rows that a user requested with files and -k, for counts of rows that never became items of pytest."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

import pytest

from .collector import Collector, named_paths
from .plan import Plan, PlannedRow
from .selection import keyword_filter


class RequestedRows:
    """Tells which rows the user requested: a named file replays the kernel type, and -k selects the row."""

    def __init__(self, config: pytest.Config, collector: Collector) -> None:
        self._selected = keyword_filter(config.option.keyword)
        self._functions = collector.known_replays()
        #: If there are none, every file counts as named.
        self._paths = named_paths(config)
        self._keywords: dict[str, str | None] = {}

    def __call__(self, kernel_type: str, case_id: str) -> bool:
        """Returns whether the user requested a row."""
        if kernel_type not in self._keywords:
            self._keywords[kernel_type] = self._keywords_of(kernel_type)
        keywords = self._keywords[kernel_type]
        return keywords is not None and self._selected(f"{case_id} {keywords}")

    def _keywords_of(self, kernel_type: str) -> str | None:
        """Returns the words that -k searches for a kernel type; None where no named file holds its replay."""
        function = self._functions.get(kernel_type)
        if function is None:
            return None if any(path.is_file() for path in self._paths) else ""
        file = Path(inspect.getfile(function)).resolve()
        if self._paths and not any(path in (file, *file.parents) for path in self._paths):
            return None
        return f"{function.__module__} {function.__name__}"

    def _count(self, ids: Iterable[tuple[str, str]]) -> int:
        """Counts the requested rows among some, given by kernel type and case id."""
        return sum(self(kernel_type, case_id) for kernel_type, case_id in ids)

    def not_selected(self, plan: Plan) -> int:
        """Returns how many requested rows --where does not select."""
        return self._count(
            (table.kernel_type, case) for table in plan.tables.values() for case in table.not_selected.values()
        )

    def left_out(self, plan: Plan) -> int:
        """Returns how many requested rows the update mode leaves out."""
        return self._count(
            (table.kernel_type, case) for table in plan.tables.values() for case in table.left_out.values()
        )

    def captured_only(self, plan: Plan) -> int:
        """Returns how many of `left_out` have a captured duration and no replayed one."""
        return self._count(
            (table.kernel_type, case_id) for table in plan.tables.values() for case_id in table.captured_only
        )

    def in_other_shards(self, plan: Plan) -> int:
        """Returns how many requested rows belong to other shards."""
        return self._count(
            (table.kernel_type, table.case_id(PlannedRow(table, position).signature))
            for table in plan.tables.values()
            for position in table.other_shards
        )
