"""Collection: each row of the database becomes a case of the function that replays its kernel type."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from bench.kernels.replays import replays_of_bench
from bench.registry import replay_spec
from plugins.session import BenchSession
from plugins.table_plan import TablePlan


class Collector:
    """Knows which functions replay which kernel types."""

    def __init__(self, session: BenchSession) -> None:
        self._session = session
        #: Functions collected here, by the kernel types that they replay.
        self.replays: dict[str, Any] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Module, name: str, obj: object) -> list[pytest.Item] | None:
        """A replay without rows is no item at all (pytest would make a skipped one)."""
        spec = replay_spec(obj)
        if spec is None or not collector.istestfunction(obj, name):
            return None
        for kernel_type in spec.kernel_types:
            other = self.replays.setdefault(kernel_type, obj)
            if other is not obj:
                raise collector.CollectError(
                    f"{kernel_type} is replayed by {collector.name}::{name} and by "
                    f"{other.__module__}.{other.__name__}: a kernel type has one replay"
                )
        return None if any(table.cases for table in self._tables(obj)) else []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if replay_spec(metafunc.function) is None:
            return
        ids: list[str] = []
        rows: list[object] = []
        for table in self._tables(metafunc.function):
            for case_id, row, expected in table.rows():
                ids.append(case_id)
                if expected is None or expected.strict:
                    rows.append(row)
                else:
                    mark = pytest.mark.xfail(reason=expected.reason, run=expected.run, strict=False)
                    rows.append(pytest.param(row, marks=mark))
        metafunc.parametrize("row", rows, ids=ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self) -> None:
        """Ends the session where there is no plan.

        pytest would show what is raised while a module is collected as an error of that module.
        """
        plan = self._session.plan_if_made
        if plan is not None and plan.error:
            raise pytest.UsageError(plan.error)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Items live to the end of the session: the garbage collector need not look at them again and again."""
        if self._session.plan_if_made is not None:
            gc.collect()
            gc.freeze()

    def known_replays(self) -> dict[str, Any]:
        """All replays of bench/, whether or not they were collected here, and those collected elsewhere."""
        return {**replays_of_bench(), **self.replays}

    def _tables(self, function: Any) -> Iterator[TablePlan]:
        spec = replay_spec(function)
        assert spec is not None
        tables = self._session.plan().tables
        return (tables[name] for name in spec.kernel_types if name in tables)
