"""Collection: each row of the database becomes a case of the function that replays its kernel type."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.engine.registry import replay_spec

from .plan import CaseRow, TablePlan
from .session_context import BenchSession


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


#: Attribute of the reports of a row: holds its record where there is one, why that is in no journal,
#: and the device where it is another than before. Plain values, because reports of xdist's workers
#: travel as such.
REPORT_ATTRIBUTE = "opatlas"


def row_of(item: pytest.Item) -> CaseRow | None:
    """The row that an item replays; None for other tests."""
    callspec = getattr(item, "callspec", None)
    row = callspec.params.get("row") if callspec is not None else None
    return row if isinstance(row, CaseRow) else None


def needs_group(item: pytest.Item) -> bool:
    """Whether an item is a row that needs several devices at once."""
    spec = replay_spec(getattr(item, "function", None))
    return spec is not None and spec.group is not None


def about_row(report: pytest.TestReport) -> dict[str, Any] | None:
    """What the supervisor put on a report of a replay; None for other reports."""
    about: dict[str, Any] | None = getattr(report, REPORT_ATTRIBUTE, None)
    return about


def outcome_of_report(report: pytest.TestReport) -> str:
    """The word that pytest counts a report under: "passed", "failed", "error", "skipped", "xfailed", "xpassed"."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome
