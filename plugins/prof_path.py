"""--prof-path: the samples that no collected row took, and the lines about all samples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from opatlas.capture.profile_samples import ProfileMatcher
from opatlas.capture.time_shares import without_shapes
from opatlas.devices.device import DeviceDescription
from opatlas.model.record import Measurement, Record, RowName
from opatlas.model.schema import Status
from opatlas.model.signature import digest, make_case_id
from opatlas.text import pluralize

from .collector import Collector
from .plan import Plan
from .pytest_internals import fitted
from .records import SessionRecords
from .requested_rows import RequestedRows
from .row_runner import RowRunner
from .session_context import SessionContext

_SHOWN = 5


class UncollectedSamples:
    """The samples of a profile that belong to no row."""

    def __init__(
        self, context: SessionContext, collector: Collector, records: SessionRecords, runner: RowRunner
    ) -> None:
        self._context = context
        self._collector = collector
        self._records = records
        self._runner = runner
        self._unmatched: Counter[str] = Counter()

    def take(self, session: pytest.Session) -> None:
        """Adds the records of samples without a row, before the records are merged."""
        plan = self._context.plan
        if plan is None or not self._context.runs_rows:
            return
        ended = session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        if not ended or session.shouldfail or session.shouldstop:
            return
        samples, device = self._runner.samples(), self._runner.rows().describe()
        self._take_unmatched(session.config, plan, samples, device)
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._unmatched:
            session.exitstatus = pytest.ExitCode.OK

    def print(self, terminal: pytest.TerminalReporter) -> None:
        """Prints how many samples were used, left out and added."""
        if self._context.runs_rows:
            for line in self._lines():
                terminal.write_line(fitted(terminal.config, line))

    def _take_unmatched(
        self, config: pytest.Config, plan: Plan, samples: ProfileMatcher, device: DeviceDescription
    ) -> None:
        settings, database = self._context.settings, self._context.database
        requested = RequestedRows(config, self._collector)
        for sample in samples.unmatched():
            kernel_type, row_digest = sample.kernel_type, digest(sample.kernel_type, sample.signature)
            if settings.ops and kernel_type not in settings.ops:
                continue
            if kernel_type not in plan.tables and database.csv_path(kernel_type).exists():
                # The file cannot be read, so its rows are unknown.
                continue
            if settings.shard is not None and not settings.shard.holds(row_digest):
                continue
            if not requested(kernel_type, make_case_id(kernel_type, sample.signature, row_digest)):
                continue
            self._unmatched[kernel_type] += 1
            if settings.mode.adds_rows and settings.where is None:
                self._add(kernel_type, sample.signature, sample.cells, sample.measurement, "", device)
            else:
                self._records.reported_only.append(RowName(kernel_type, sample.signature))

    def _add(
        self,
        kernel_type: str,
        signature: str,
        cells: Mapping[str, str],
        measurement: Measurement,
        remark: str,
        device: DeviceDescription,
    ) -> None:
        record = Record(
            kernel_type=kernel_type,
            signature=signature,
            cells=cells,
            status=Status.MEASURED,
            reason=remark,
            run_id=self._context.run_id,
            finished_at=time.time(),
            measurement=measurement,
        )
        self._records.add(record, device)

    def _lines(self) -> Iterator[str]:
        profile = self._runner.samples().profile
        account = profile.account
        signatures = sum(map(len, profile.cases.values()))
        yield (
            f"samples: {pluralize(account.ingested, 'launch', 'launches')} of {pluralize(signatures, 'signature')} in "
            f"{pluralize(len(profile.files), 'summary', 'summaries')}, "
            f"{pluralize(account.left_out.total(), 'launch', 'launches')} left out"
        )
        yield from (f"  {count:5,}  {reason.value}" for reason, count in account.left_out.most_common() if count)
        first = [*account.invalid_durations[:1], *account.impossible_durations[:1]]
        yield from (f"  the first invalid duration: {place}" for place in first)
        if shapeless := without_shapes(account):
            more = [f"{len(shapeless) - _SHOWN} more"] if len(shapeless) > _SHOWN else []
            yield f"without shapes: {', '.join([*map(str, shapeless[:_SHOWN]), *more])}"
        if copies := profile.same_bytes:
            others = pluralize(len(copies), "summary has", "summaries have")
            yield f"{others} the bytes of another one and is not counted again: {', '.join(map(str, copies[:_SHOWN]))}"
        yield "warm-up and set-up launches of the profiled programs look like others: they count as samples"
        if self._unmatched:
            mode, by_cells = self._context.settings.mode, self._context.settings.where is not None
            adds = "without --where they may be" if by_cells else "--update-mode=all adds them"
            added = "would be added" if self._context.settings.dry_run else "added"
            fate = added if mode.adds_rows and not by_cells else f"not added ({adds})"
            yield f"signatures that match no row, {fate}: {_listed(self._unmatched)}"


def _listed(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(_SHOWN))
    more = f" and {pluralize(len(counts) - _SHOWN, 'other kernel type')}" if len(counts) > _SHOWN else ""
    return f"{counts.total()} ({shown}{more})"
