"""Which rows a user asked for, of those that never became items: by the files named, and by -k."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from database.case_id import case_id_of
from database.closest import closest
from plugins.collector import Collector
from plugins.plan import Plan
from plugins.table_plan import CaseRow


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
        """How many of those --status and --where do not select."""
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

    def elsewhere(self, plan: Plan) -> int:
        """How many of those are in other shards."""
        return sum(
            self(name, case_id_of(name, CaseRow(table, position).signature))
            for name, table in plan.tables.items()
            for position in table.other_shards
        )


def keyword_filter(expression: str) -> Callable[[str], bool]:
    """`-k` for text that never became an item. pytest has refused a malformed expression by now."""
    if not expression:
        return lambda text: True
    compiled = Expression.compile(expression)

    def selected(text: str) -> bool:
        def contains(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in text.lower()

        return compiled.evaluate(contains)

    return selected


def meant(expression: str, names: Iterable[str]) -> str:
    """` (did you mean ...?)` for the words of -k that are part of no name; "" where nothing is like them."""
    known = list(names)
    words = [word for word in re.findall(r"[^\s()]+", expression) if word not in ("and", "or", "not")]
    return "".join(closest(word, known) for word in words if not any(word.lower() in name.lower() for name in known))
