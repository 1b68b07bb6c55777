"""The tests of rows: one for each row of the plan, and the fixtures that they may name.

The body of a replay runs in the device process, with the `row` and `replay` of opatlas/run/runner.py. In pytest's
process the fixtures open the device, and skip a replay that cannot run.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from opatlas.grouping import grouped
from opatlas.row.errors import DeviceGone, ReplayError
from opatlas.run.devices.device import DeviceDescription, kind_named
from opatlas.run.registry import WITHOUT_REPLAY, replay_spec, replays_of_bench, similar_replays

from .cases import CaseTable, Plan, SessionCase, needs_group, row_of
from .choice import named_paths

if TYPE_CHECKING:
    from .row_runner import RowRunner
    from .session import Session
    from .session_context import SessionContext

#: The session of a process of pytest: `config.stash[SESSION]`.
SESSION: pytest.StashKey[Session] = pytest.StashKey()


class RowWithoutReplay(pytest.Item):
    """A row whose kernel type no function replays: pytest skips it, unless it is looked up (--prof-path)."""

    #: The node ids begin with it, and -k selects by it.
    FILE = "without_replay"

    def __init__(self, *, row: SessionCase, run: Callable[[Any], None], **node: Any) -> None:
        super().__init__(**node)
        self.row = row
        self._run = run

    @staticmethod
    def function() -> None:
        """Stands for the function of a test: it is no replay."""

    def runtest(self) -> None:
        """Looks the row up."""
        self._run(self)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Returns file and line of the row."""
        return self.row.rows.table.path, self.row.position + 1, self.name


def lacks_replay(nodeid: str) -> bool:
    """Returns whether a node id is that of a row without a replay."""
    return nodeid.startswith(f"{RowWithoutReplay.FILE}::")


class Collector:
    """Makes the tests of a session's rows.

    Attributes:
        replays: the replay functions collected in this process, by the kernel types that they replay.
    """

    def __init__(self, context: SessionContext, make_plan: Callable[[], Plan], run: Callable[[Any], None]) -> None:
        """`run` runs the row of an item."""
        self._context = context
        self._make_plan = make_plan
        self._run = run
        self.replays: dict[str, Any] = {}

    def pytest_pycollect_makeitem(self, collector: pytest.Module, name: str, obj: object) -> list[pytest.Item] | None:
        """Makes no item of a replay without rows; pytest would make a skipped item."""
        spec = replay_spec(obj)
        if spec is None or not collector.istestfunction(obj, name):
            return None
        if "<locals>" in getattr(obj, "__qualname__", ""):
            raise collector.CollectError(f"{collector.name}::{name} is in a function: define replays at module level")
        tables = list(self._tables(obj)) if spec.column else []
        for kernel_type in dict.fromkeys((*spec.kernel_types, *(table.kernel_type for table in tables))):
            other = self.replays.setdefault(kernel_type, obj)
            if other is not obj:
                raise collector.CollectError(
                    f"{kernel_type} is replayed by {collector.name}::{name} and by "
                    f"{other.__module__}.{other.__name__}: a kernel type has one replay"
                )
        return None if any(table.to_run for table in self._tables(obj)) else []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrizes a replay with its cases; a known failure becomes xfail."""
        if replay_spec(metafunc.function) is None:
            return
        ids: list[str] = []
        rows: list[object] = []
        for row in interleaved(list(self._tables(metafunc.function)), self._context.settings.baseline):
            ids.append(row.id)
            expected = row.known_failure
            if expected is None or expected.strict:
                rows.append(row)
            else:
                mark = pytest.mark.xfail(reason=expected.reason, run=expected.run, strict=False)
                rows.append(pytest.param(row, marks=mark))
        metafunc.parametrize("row", rows, ids=ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Adds the rows without a replay, which are known when all files are collected; then pytest selects by -k.

        Ends the session where there is no plan. Raised earlier, the error would be shown for each module.
        """
        plan = self._context.plan
        if plan is None:
            return
        if plan.error:
            raise pytest.UsageError(plan.error)
        if not any(path.is_file() for path in named_paths(session.config)):
            rows = list(self._rows_without_replay(session, plan))
            collected: list[pytest.Item | pytest.Collector] = [*rows]
            if rows:
                # pytest counts them as collected.
                report = pytest.CollectReport(RowWithoutReplay.FILE, "passed", None, collected)
                session.config.hook.pytest_collectreport(report=report)
                items += rows

    def pytest_collection_finish(self) -> None:
        """Excludes the items from garbage collection: they live until the session ends, and there may be many."""
        if self._context.plan is not None:
            gc.collect()
            gc.freeze()

    def known_replays(self) -> dict[str, Any]:
        """Returns the replays of bench/, collected or not, and the other replays that were collected."""
        return {**replays_of_bench(), **self.replays}

    def _rows_without_replay(self, session: pytest.Session, plan: Plan) -> Iterator[pytest.Item]:
        is_looked_up, known = self._context.settings.prof_path is not None, self.known_replays()
        for table in plan.tables.values():
            if table.kernel_type in known:
                continue
            name, why = table.kernel_type, WITHOUT_REPLAY.get(table.kernel_type)
            meant = f": {why}" if why else similar_replays(name, known)
            skip = pytest.mark.skip(reason=f"{name} has no replay{meant}")
            if not is_looked_up:
                # Of rows that cannot be replayed no update mode is done.
                table.admit()
            for row in table.to_run:
                name = f"{table.kernel_type}[{row.id}]"
                nodeid = f"{RowWithoutReplay.FILE}::{name}"
                item = RowWithoutReplay.from_parent(session, name=name, nodeid=nodeid, row=row, run=self._run)
                if not is_looked_up:
                    item.add_marker(skip)
                yield item

    def _tables(self, function: Any) -> Iterator[CaseTable]:
        spec = replay_spec(function)
        assert spec is not None
        plan = self._make_plan()
        if spec.column:
            return (table for table in plan.tables.values() if any(table.table.cells(spec.column)))
        return (table for name in spec.kernel_types for table in plan.tables_of(name))


def interleaved(tables: Sequence[CaseTable], baseline: int | None = None) -> Iterator[SessionCase]:
    """Yields the rows to run; the implementations of one row follow each other, the baseline first."""
    cases = (case for table in tables for case in table.to_run)
    if len({table.target for table in tables}) < 2:
        yield from cases
        return
    for rivals in grouped((case.row_id, case) for case in cases).values():
        yield from sorted(rivals, key=lambda case: case.target != baseline)


def sort_exclusive_last(items: list[pytest.Item], options: argparse.Namespace) -> None:
    """Moves the rows that need several devices to the end, the rows of each group together.

    Args:
        options: those that choose the group of a row (`Workload.options`).
    """
    items.sort(key=lambda item: (needs_group(item), _group_key(item, options)))


def _group_key(item: pytest.Item, options: argparse.Namespace) -> tuple[object, ...]:
    row, spec = row_of(item), replay_spec(getattr(item, "function", None))
    if row is None or spec is None or spec.group is None:
        return ()
    try:
        return spec.group(row.cells, options).sort_key
    except ReplayError:
        # The row is refused when pytest reaches it.
        return ()


@pytest.fixture(scope="session")
def msprof(request: pytest.FixtureRequest) -> Path | None:
    """The folder for the profiles of the sessions of msprof in which rows run; None for another instrument."""
    return request.config.stash[SESSION].context.msprof


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest, msprof: Path | None) -> Iterator[RowRunner]:
    """What runs the rows of the session, with its device open. Ends the session if the device cannot be opened."""
    session = request.config.stash[SESSION]
    try:
        rows = session.runner
        rows.describe()
    except DeviceGone as error:
        session.context.end_without_device(str(error))
    yield rows
    rows.release()


@pytest.fixture
def row(request: pytest.FixtureRequest) -> None:
    """Fails a test without `@replays`; a test with `@replays` gets its rows in place of this fixture."""
    pytest.fail(f"{request.node.name} has no rows: name the kernel types with @replays(...)", pytrace=False)


@pytest.fixture(scope="session")
def replay(device: RowRunner) -> RowRunner:
    """The same as `device`. In the device process a replay calls its `replay` with kernel, arguments and formula."""
    return device


@pytest.fixture(scope="session")
def npu(device: RowRunner) -> DeviceDescription | None:
    """The NPU that rows are replayed on, set up; None on another device, where rows time a stand-in."""
    description = device.describe()
    return description if kind_named(description.kind).is_native else None


@pytest.fixture(scope="session")
def custom_opp(npu: DeviceDescription | None) -> None:
    """Skips replays of custom operators on an NPU that cannot register them, with the remedy as reason.

    Where the operators may be there, the row itself tries (opatlas/run/devices/npu_operators.py). Other devices need no
    custom operators.
    """
    if npu is not None and npu.no_custom_operators:
        pytest.skip(npu.no_custom_operators)


@pytest.fixture(scope="session")
def group(device: RowRunner) -> RowRunner:
    """The same as `device`. In the device process a replay with `@replays(..., group=...)` gets its rank's view.

    Each row says which group it needs, and is skipped where there are too few devices (opatlas/run/group_pool.py).
    """
    return device
