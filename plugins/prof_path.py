"""--prof-path: the samples that no collected row took, and the lines about all samples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from opatlas.capture.profile_samples import ProfileMatcher
from opatlas.capture.time_shares import without_shapes
from opatlas.row.record import Measurement, Record, RowName
from opatlas.row.signature import digest, make_case_id
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.show.result import Fields

from .cases import Plan
from .choice import requested_rows
from .collector import Collector
from .pytest_internals import write_parts
from .records import SessionRecords
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
        samples, device = self._runner.samples(), self._runner.describe()
        self._take_unmatched(session.config, plan, samples, device)
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._unmatched:
            session.exitstatus = pytest.ExitCode.OK

    def print(self, terminal: pytest.TerminalReporter) -> None:
        """Prints how many samples were used, left out and added."""
        if self._context.runs_rows:
            write_parts(terminal, [Fields(self._fields(), "samples")])

    def _take_unmatched(
        self, config: pytest.Config, plan: Plan, samples: ProfileMatcher, device: DeviceDescription
    ) -> None:
        settings, database = self._context.settings, self._context.database
        requested = requested_rows(config, self._collector.known_replays())
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

    def _fields(self) -> dict[str, object]:
        profile = self._runner.samples().profile
        account, settings = profile.account, self._context.settings
        invalid = [place for _, place in account.without_duration[:1]]
        found: dict[str, object] = {
            "summaries": len(profile.files),
            "launches": (account.ingested, f"of {sum(map(len, profile.cases.values())):,} signatures"),
            **{f"left out: {reason.value}": count for reason, count in account.left_out.most_common() if count},
            "first invalid duration": ", ".join(invalid) or None,
            "without shapes": _first(list(map(str, without_shapes(account)))) or None,
            "copies of a summary": _first(list(map(str, profile.same_bytes))) or None,
            "warm-up and set-up launches": "count as samples, since they look like others",
        }
        if self._unmatched:
            by_cells = settings.where is not None
            adds = "without --where they may be" if by_cells else "--update-mode=all adds them"
            is_added = settings.mode.adds_rows and not by_cells
            fate = ("would be added" if settings.rehearses else "added") if is_added else f"not added: {adds}"
            named = _first([f"{name} {count:,}" for name, count in self._unmatched.most_common()])
            found["signatures without a row"] = (self._unmatched.total(), f"{named}; {fate}")
        return found


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join([*texts[:_SHOWN], *([f"{more:,} more"] if more > 0 else [])])
