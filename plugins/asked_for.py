"""Which rows a user asked for, of those that never became items: by the files named, and by -k."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import pytest

from opatlas.model.signature import make_case_id

from .collector import Collector
from .plan import CaseRow, Plan
from .selection import keyword_filter


class AskedFor:
    """Rows that were asked for: the files named replay their kernel type, and -k selects them."""

    def __init__(self, config: pytest.Config, collector: Collector) -> None:
        self._selected = keyword_filter(config.option.keyword)
        self._functions = collector.known_replays()
        named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
        #: Empty where something else than files and folders was named: who knows what is in it.
        self._paths = [path.resolve() for path in named] if all(path.exists() for path in named) else []
        self._of_types: dict[str, str | None] = {}

    def __call__(self, kernel_type: str, case_id: str) -> bool:
        """Whether a row is among them."""
        if kernel_type not in self._of_types:
            self._of_types[kernel_type] = self._of_type(kernel_type)
        of_type = self._of_types[kernel_type]
        return of_type is not None and self._selected(f"{case_id} {of_type}")

    def _of_type(self, kernel_type: str) -> str | None:
        """What -k finds of the function that replays a kernel type; None where that is in no file named."""
        function = self._functions.get(kernel_type)
        if function is None:
            return None if any(path.is_file() for path in self._paths) else ""
        file = Path(inspect.getfile(function)).resolve()
        if self._paths and not any(path in (file, *file.parents) for path in self._paths):
            return None
        return f"{function.__module__} {function.__name__}"

    def not_selected(self, plan: Plan) -> int:
        """How many of those --where does not select."""
        return sum(self(name, case_id) for name, table in plan.tables.items() for case_id in table.not_selected)

    def left_out(self, plan: Plan) -> int:
        """How many of those the update mode leaves out."""
        return sum(self(name, case_id) for name, table in plan.tables.items() for case_id in table.left_out)

    def captured_only(self, plan: Plan) -> int:
        """How many of these have no replayed duration, but a captured one."""
        return sum(
            self(name, case_id)
            for name, table in plan.tables.items()
            for case_id in table.captured_only.intersection(table.left_out)
        )

    def without_replay(self, plan: Plan) -> Counter[str]:
        """Those cases that no function replays, by kernel type."""
        return Counter(
            name
            for name, table in plan.tables.items()
            if name not in self._functions
            for case_id in table.cases.values()
            if self(name, case_id)
        )

    def elsewhere(self, plan: Plan) -> int:
        """How many of those are in other shards."""
        return sum(
            self(name, make_case_id(name, CaseRow(table, position).signature))
            for name, table in plan.tables.items()
            for position in table.other_shards
        )
