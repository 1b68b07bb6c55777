"""The two files that a session leaves beside the CSVs: its report, and where replay and capture disagree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from database.errors import OpAtlasError
from database.figure_tables import quality_lines
from database.reports import Gap, SessionFacts, find_gaps, replay_report, write_gap_csv
from database.store import write_text
from plugins.collector import Collector
from plugins.ledger import Ledger
from plugins.mixing import captured_elsewhere
from plugins.session import BenchSession
from plugins.tally import ReportTally
from plugins.writeback import WriteBack

_REPORT = "replay_report"


class Report:
    """Writes the two files. Lives beside the write-back.

    Attributes:
        paths: the files that were written.
        gaps: durations that rows have from a capture and from a replay, the furthest apart first.
        problems: what could not be read for the two files, or written of them; they make the session fail.
    """

    def __init__(
        self, session: BenchSession, collector: Collector, written: WriteBack, ledger: Ledger, tally: ReportTally
    ) -> None:
        self._session = session
        self._collector = collector
        self._written = written
        self._ledger = ledger
        self._tally = tally
        self.paths: list[str] = []
        self.gaps: Sequence[Gap] = []
        self.problems: list[str] = []

    def write(self) -> None:
        """Writes the two files, once the records are merged and the rows accounted for."""
        merged = self._written.merged
        if merged is None or not (self._tally.outcomes or self.has_written()):
            return
        database = self._session.database
        # Of the others there may be no file: none of their rows was measured.
        self.gaps, self.problems = find_gaps(database, sorted(merged.updated + merged.added))
        report = database.free_report(_REPORT, self._session.started_at, suffix=".md")
        # The two of a session bear the same time and number.
        gaps = report.with_name(f"duration_gap{report.stem.removeprefix(_REPORT)}.csv")
        try:
            write_text(report, replay_report(self.facts(), self.gaps))
            self.paths = [os.path.abspath(report)]
            if self.gaps:
                write_gap_csv(gaps, self.gaps)
                self.paths.append(os.path.abspath(gaps))
        except OpAtlasError as error:
            self.problems.append(str(error))

    def has_written(self) -> bool:
        """Whether there is something to tell although no row was run: --prof-path may have added some."""
        merged = self._written.merged
        return merged is not None and bool(merged.added.total() or merged.updated.total() or merged.unmatched)

    def quality(self) -> list[str]:
        """How many of the measured rows are not quiet, and why."""
        surroundings, devices = self._session.surroundings, self._session.settings.devices
        elsewhere = self._session.settings.prof_path is not None
        cause = "" if elsewhere or not self._tally.figures else surroundings.higher_load(devices)
        return list(quality_lines(self._tally.figures.values(), cause))

    @property
    def not_comparable(self) -> str:
        """Why captured durations do not compare with those of the session; "" where they do."""
        provenance = self._session.provenance
        return "" if provenance is None else captured_elsewhere(provenance, self._session.settings)

    def not_replayable(self) -> Counter[str]:
        """Rows whose kernel type has no replay, by kernel type."""
        plan = self._session.plan_if_made
        assert plan is not None
        # What was collected has a replay: xdist's controller, which collects nothing, knows those of bench/ only.
        known = self._ledger.kernel_types().union(self._collector.known_replays())
        counts = {name: len(table.cases) for name, table in plan.tables.items() if name not in known}
        return Counter({name: count for name, count in counts.items() if count})

    def facts(self) -> SessionFacts:
        """What the session did."""
        plan = self._session.plan_if_made
        assert plan is not None
        return SessionFacts(
            run_id=self._session.run_id,
            database=self._session.settings.database,
            device=self._written.device_name,
            mode=self._session.settings.mode.value,
            outcomes=self._tally.outcomes,
            ledger=self._ledger.line(),
            not_run=self._ledger.not_run(),
            unresolved=self._ledger.unresolved(),
            statuses=self._written.statuses,
            errors=self._tally.causes(),
            assumptions=self._tally.assumptions(),
            left_out=plan.left_out(),
            duplicates={name: len(table.duplicates) for name, table in plan.tables.items() if table.duplicates},
            not_replayable=self.not_replayable(),
            merged=self._written.merged,
            seconds=self._tally.running_time.seconds,
            figures=self._tally.figures.values(),
            quality=self.quality(),
            manifest=self._written.manifest,
            not_comparable=self.not_comparable,
        )
