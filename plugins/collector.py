"""Collection: each row of the database becomes a case of the function that replays its kernel type."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from bench.kernels.replays import replays_of_bench
from bench.registry import replay_spec
from plugins.items import row_of
from plugins.plan import Plan, TablePlan
from plugins.session import BenchSession


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
                if expected is None:
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

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        plan = self._session.plan_if_made
        if plan is None or plan.error or self._session.is_worker:
            return []
        return self.plan_lines(plan, selected=sum(row_of(item) is not None for item in items))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Having nothing to do is success; a file that could not be read, or a journal not merged, is not."""
        plan = self._session.plan_if_made
        if plan is None or self._session.is_worker:
            return
        wrong = plan.problems or any(recovered.incomplete for recovered in plan.recovered)
        if wrong and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.done_already(session.config):
            session.exitstatus = pytest.ExitCode.OK

    def done_already(self, config: pytest.Config) -> int:
        """Rows that were selected, but that the update mode leaves out because they have a duration."""
        plan = self._session.plan_if_made
        if plan is None:
            return 0
        asked_for = self.asked_for(config)
        return sum(
            asked_for(kernel_type, case_id) for kernel_type, table in plan.tables.items() for case_id in table.left_out
        )

    def asked_for(self, config: pytest.Config) -> Callable[[str, str], bool]:
        """Whether a row that never became an item, given its kernel type and id, is among what the user asked for.

        Rows are where the files named on the command line replay their kernel type, and -k selects them.
        """
        selected = keyword_filter(config.option.keyword)
        functions = self.known_replays()
        # A file, or a function of it, instead of a folder.
        partial = any("::" in argument or argument.endswith(".py") for argument in config.args)

        def is_asked_for(kernel_type: str, case_id: str) -> bool:
            if partial and kernel_type not in self.replays:
                return False
            function = functions.get(kernel_type)
            name = f"{function.__module__} {function.__name__}" if function else ""
            return selected(f"{case_id} {name}")

        return is_asked_for

    def known_replays(self) -> dict[str, Any]:
        """All replays of bench/, whether or not they were collected here, and those collected elsewhere."""
        return {**replays_of_bench(), **self.replays}

    def plan_lines(self, plan: Plan, selected: int | None = None) -> list[str]:
        """What a user should know before rows run; `selected` of them, where that is known."""
        # xdist's controller, which collects nothing, knows the replays of bench/ only.
        rows = max(plan.cases_of(self.known_replays()), selected or 0)
        of_all = f"{selected} of {rows}" if selected not in (None, rows) else f"{rows}"
        lines = [f"opatlas: {of_all} rows to replay, database {self._session.settings.database}"]
        if self._session.settings.note:
            lines.append(f"opatlas: {self._session.settings.note}")
        if self._session.settings.messages is not None:
            lines += [f"opatlas: {line}" for line in self._session.settings.messages.about]
        if plan.taken_over:
            lines.append(f"opatlas: {plan.taken_over} was killed; took the database over from it")
        if plan.starter_rows:
            lines.append(f"opatlas: there was no database yet; made a starter of {plan.starter_rows} theory rows")
        for recovered in plan.recovered:
            count = recovered.statuses.total()
            what = ", ".join(f"{n} {status}" for status, n in recovered.statuses.most_common())
            could = f"merged {count}" if count or not recovered.problems else "could not merge the"
            lines.append(f"opatlas: {could} records that session {recovered.run_id} left behind{what and f' ({what})'}")
            lines += [f"opatlas: {problem}" for problem in recovered.problems]
        left_out = sum(plan.left_out().values())
        if left_out:
            lines.append(f"opatlas: {left_out} rows left out: they have a duration (--update-mode=missing-only)")
        shard, elsewhere = self._session.settings.shard, plan.other_shards()
        if shard is not None:
            lines.append(f"opatlas: {elsewhere} rows are in other shards (--shard={shard})")
        lines += [f"opatlas: {path} has a header and no rows" for path in plan.without_rows()]
        for name, places in plan.no_durations().items():
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            lines.append(
                f"opatlas: {name}: {places[0]}{more} is no duration (a number above 0): counted as not measured"
            )
        lines += [f"opatlas: not read: {problem}" for problem in plan.problems]
        return lines

    def _tables(self, function: Any) -> Iterator[TablePlan]:
        spec = replay_spec(function)
        assert spec is not None
        tables = self._session.plan().tables
        return (tables[name] for name in spec.kernel_types if name in tables)


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
