"""`pytest shapes/`: a test for each kernel type, which adds its theory rows to the database."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, Pace, code_digest, read_manifests, replay_pace, this_machine
from opatlas.data.op_mapping import WrittenMapping, write_default_mapping
from opatlas.data.origin import Provenance
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import absolute_path, expect_folder
from opatlas.formats import size
from opatlas.installation import PACKAGE, code_folder
from opatlas.options import Scope
from opatlas.row.location import default_path, device_kind, expect_npu
from opatlas.row.signature import kernel_types_meant
from opatlas.row.versions import detect, kind_of
from opatlas.run.devices.device import database_name, device_kinds, kind_named
from opatlas.show.result import Column, Fields, Table
from opatlas.text import pluralize, printable_lines

from .collector import SESSION
from .options import OPTIONS, THEORY_ROWS, outside, refuse, refuse_useless_versions
from .reports import write_parts
from .settings import has_replays, has_theory_rows
from .target import devices_of

if TYPE_CHECKING:
    from opatlas.theory.catalog import CatalogKernel
    from opatlas.theory.plan import KernelResult, Request

_SHAPES = code_folder("shapes")
#: Under this name the fixture of shapes/ finds the session.
THEORY = "opatlas-theory"
_PROPERTY = "theory_rows"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Theory(config), THEORY)


@dataclass(frozen=True)
class TheoryPlan:
    """The database, the kind of its device, the request and the kernel types of a session."""

    database: Database
    kind: str
    request: Request
    kernels: dict[str, CatalogKernel]
    without_row: Mapping[str, int]


class Theory:
    """The part of a session that adds theory rows, in each of its processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started_at = time.time()
        self._results: list[KernelResult] = []
        #: Why the manifest or the report could not be written.
        self._problem = ""
        self._mapping: WrittenMapping | None = None
        self._is_worker = hasattr(config, "workerinput")

    @cached_property
    def plan(self) -> TheoryPlan:
        """The plan of the session. Raises OpAtlasError, pytest.UsageError."""
        from opatlas.shapes.strategies import sample_rows

        from opatlas.theory.catalog import built_in_catalog, database_kernels
        from opatlas.theory.models import TargetError
        from opatlas.theory.plan import Request
        from opatlas.theory.served_calls import ServedCalls, read_calls
        from opatlas.theory.sources import resolve_targets
        from opatlas.theory.space import FLUSH_BUFFER_BYTES, GB

        option = self._config.option
        catalog = built_in_catalog()
        budget_bytes = int(option.max_hbm_gb * GB)
        if budget_bytes <= FLUSH_BUFFER_BYTES:
            given = f"--max-hbm-gb {option.max_hbm_gb:g}"
            raise OpAtlasError(f"{given}: the flush buffer alone takes {FLUSH_BUFFER_BYTES / GB:g} GB: give more")
        try:
            targets = resolve_targets(option.target_models)
        except TargetError as error:
            raise UsageError(f"--target-models {error.value}: {error.problem}") from None
        served = read_calls(option.calls, catalog) if option.calls else ServedCalls()
        database = Database(database_path(self._config))
        # Of the products, which are one call, a word means the kernel type that is drawn.
        drawn = database_kernels(database, catalog)
        ops = {
            meant
            for word in option.ops
            for near in kernel_types_meant(word, drawn)
            for meant in kernel_types_meant(near, catalog.kernels)
        }
        kernels = database_kernels(database, catalog, ops)
        for name in ops:
            if name not in kernels:
                catalog.kernel(name)
        if option.calls:
            kernels = {name: catalog.kernel(name) for name in served.rows}
        kernels = {name: kernel for name, kernel in kernels.items() if not ops or name in ops}
        kind = kind_of_database(self._config, database)
        request = Request(
            targets,
            option.rows,
            option.seed,
            budget_bytes,
            sample_rows,
            is_npu=kind_named(kind).is_native,
            loads=option.expert_load,
            served=served.rows,
        )
        return TheoryPlan(database, kind, request, kernels, served.without_row)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Refuses invalid options before workers start and before a file changes."""
        if self._is_worker:
            return
        option, replays = self._config.option, has_replays(self._config)
        if not has_theory_rows(self._config):
            if replays:
                refuse(self._config, THEORY_ROWS, "theory rows are added by `pytest shapes/`")
            return
        if replays and not option.collectonly:
            raise pytest.UsageError("`pytest shapes/` adds rows for replays: run it first, alone (see --read-only)")
        if option.calls:
            of_patterns = [each for each in THEORY_ROWS if each.name not in ("--calls", "--max-hbm-gb")]
            refuse(self._config, of_patterns, "--calls names the rows")
        if not replays:
            refuse(self._config, outside(OPTIONS, Scope.THEORY), "`pytest shapes/` runs no row")
        try:
            database = self.plan.database
            if not (option.read_only or option.collectonly):
                # Locked here, so that a folder that cannot be written is reported once, not for every kernel type.
                with database.lock():
                    is_npu = bool(option.device) and kind_of(option.device).is_native
                    self._mapping = write_default_mapping(database.path, is_npu=is_npu)
                if self._mapping is not None:
                    # The mapping may name more kernel types.
                    del self.plan
        except OpAtlasError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        """Tells the largest number of theory rows, and the time to replay as many, before a row is added."""
        option = self._config.option
        if self._is_worker or option.collectonly or not has_theory_rows(self._config) or not (items or option.calls):
            return []
        told = [f"opatlas: {self._mapping}"] if self._mapping is not None else []
        if option.calls:
            counts = sorted(self.plan.without_row.items(), key=lambda each: -each[1])
            told += [f"opatlas: {pluralize(count, 'call')} of {name} without a row" for name, count in counts]
        elif option.rows:
            most = option.rows * len(items)
            rows = f"at most {pluralize(most, 'theory row')} of {pluralize(len(items), 'kernel type')}"
            told.append(f"opatlas: {rows}; to replay as many takes about {self._pace().time_of(most)}")
        return told

    def add(self, kernel_type: str) -> KernelResult:
        """Adds the theory rows of a kernel type, or only plans them with --read-only. Raises OpAtlasError."""
        from opatlas.theory.plan import add_theory_rows, plan_kernel, read_table

        plan, kernel = self.plan, self.plan.kernels[kernel_type]
        if self._config.option.read_only:
            return plan_kernel(kernel, read_table(plan.database, kernel_type), plan.request).result
        return add_theory_rows(plan.database, kernel, plan.request).result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        for index, (name, value) in enumerate(report.user_properties):
            if name == _PROPERTY and isinstance(value, dict):
                if report.when == "call":
                    from opatlas.theory.plan import KernelResult

                    self._results.append(KernelResult(**value))
                # The JUnit file gets the number of rows.
                report.user_properties[index] = (name, value["added"])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes a manifest of the added rows."""
        added = sum(result.added for result in self._results)
        if self._is_worker or not added or self._config.option.read_only:
            return
        try:
            self._manifest(added).write(self.plan.database)
        except OpAtlasError as error:
            self._problem = str(error)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _manifest(self, added: int) -> Manifest:
        option = self._config.option
        return Manifest(
            run_id=self._run_id,
            started_at=self._started_at,
            finished_at=time.time(),
            options={
                "command": "pytest shapes/",
                "target_models": [model.name for model in self.plan.request.targets.models],
                "tp_sizes": list(self.plan.request.targets.tp_sizes),
                "ep_sizes": list(self.plan.request.targets.ep_sizes),
                "calls": str(option.calls or ""),
                "rows": option.rows,
                "seed": option.seed,
                "max_hbm_gb": option.max_hbm_gb,
                "keyword": option.keyword,
                "ops": ",".join(option.ops),
            },
            code=code_digest([_SHAPES, PACKAGE / "theory"]),
            statuses={"added": added},
            **this_machine(),
        )

    @cached_property
    def _run_id(self) -> str:
        return self._config.stash[SESSION].context.run_id

    def _pace(self) -> Pace:
        # The replay reports manifests that cannot be read.
        return replay_pace(read_manifests(self.plan.database, []).values(), self.plan.kind)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._is_worker or not self._results:
            return
        terminalreporter.section("theory rows")
        parts = [summary_table(self._results, read_only=self._config.option.read_only)]
        where = {"database": str(self.plan.database.path)}
        if added := sum(result.added for result in self._results):
            where["to replay them"] = self._pace().time_of(added)
        write_parts(terminalreporter, [*parts, Fields(where)])
        if self._problem:
            terminalreporter.write_line(printable_lines(f"error: {self._problem}"), red=True)


def summary_table(results: Sequence[KernelResult], *, read_only: bool) -> Table:
    """Returns a line for each kernel type, and one for all."""
    ordered = sorted(results, key=lambda result: result.kernel_type)
    counts = [(each.added, each.existing, each.over_budget, each.refused) for each in ordered]
    sizes = [(each.largest_bytes, each.total_bytes) for each in ordered]
    rows = [
        (each.kernel_type, *own, *(size or None for size in of_row), ", ".join(each.unknown_dtypes) or None)
        for each, own, of_row in zip(ordered, counts, sizes, strict=True)
    ]
    largest, total = max(size for size, _ in sizes), sum(size for _, size in sizes)
    rows.append(("all", *map(sum, zip(*counts, strict=True)), largest or None, total or None, None))
    columns = (
        *("kernel type", "to add" if read_only else "added", "existing", "too large", "refused"),
        *(Column("largest", size), Column("in all", size), "unknown dtypes"),
    )
    return Table(columns, rows)


def kind_of_database(config: pytest.Config, database: Database) -> str:
    """Returns the kind of device of the database that rows are added to.

    The device is the one of --device, of captures, of the path, or of replays, the first of these that is known; or
    else the device at hand. An NPU counts more than other devices.

    Raises:
        OpAtlasError, pytest.UsageError: no other evidence is there, and the device at hand cannot be used.
    """
    device: str | None = config.option.device
    if device:
        return device if device in device_kinds() else device_kind(device)
    provenance = Provenance(database)
    kinds: set[str] = set(map(device_kind, provenance.captured_on))
    if not kinds and provenance.folder is not None:
        kinds = {provenance.folder.kind}
    kinds = kinds or {origin.kind for origins in provenance.origins.values() for origin in origins}
    kinds = kinds or {each.kind for each in devices_of(config)}
    return max(kinds, key=lambda kind: kind_named(kind).rank)


def database_path(config: pytest.Config) -> Path:
    """Returns the path of the database that rows are added to. Raises OpAtlasError, pytest.UsageError."""
    option = config.option
    refuse_useless_versions(config)
    if option.database_path:
        path = absolute_path(Path(option.database_path))
        expect_folder(path, "", option="--database-path", may_be_made=True)
        return path
    named = option.device if option.device and device_kind(option.device) != "cpu" else ""
    # The database of an NPU or a GPU can be filled on any machine.
    if named and kind_of(named).is_native:
        expect_npu(named)
    return default_path(named or database_name(devices_of(config)), detect(option.versions))
