"""The results of a session, and the report files beside the CSVs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.data.origin import Provenance
from opatlas.errors import OpAtlasError
from opatlas.row.location import default_database_of
from opatlas.show.row_summary import quality_fields
from opatlas.show.session_report import Gap, SessionFacts, find_gaps, replay_report, write_gap_csv

from .collector import Collector
from .ledger import Ledger
from .mixing import captured_mismatch
from .records import SessionRecords
from .session_context import SessionContext
from .tally import OutcomeTally

_REPORT = "replay_report"


class SessionResults:
    """The results of a session, and the two report files: replay_report_*.md and duration_gap_*.csv.

    Attributes:
        paths: the report files that were written.
        gaps: rows with a captured and a replayed duration, the largest difference first.
        problems: what could not be read or written for the report files; they make the session fail.
    """

    def __init__(
        self,
        context: SessionContext,
        collector: Collector,
        records: SessionRecords,
        ledger: Ledger,
        tally: OutcomeTally,
    ) -> None:
        self.context = context
        self.collector = collector
        self.records = records
        self.ledger = ledger
        self.tally = tally
        self.paths: list[str] = []
        self.gaps: Sequence[Gap] = []
        self.problems: list[str] = []

    def write(self) -> None:
        """Writes the report files, after the records are merged and the rows accounted for."""
        merged = self.records.merged
        if merged is None or not self.context.settings.writes or not (self.tally.outcomes or self.has_written()):
            return
        database = self.context.database
        # A kernel type without a measured row in this database may have no file in it.
        measured = sorted(merged.updated + merged.added)
        captures = self.context.settings.targets[0].captures
        self.gaps, self.problems = find_gaps(
            database,
            [name for name in measured if database.csv_path(name).exists()],
            Database(captures) if captures is not None else None,
        )
        # Beside the rows that all implementations of the session have in common.
        home = default_database_of(database.path)
        report = (database if home is None else Database(home)).new_report_path(
            _REPORT, self.context.started_at, suffix=".md"
        )
        # Both files of a session have the same time and number in their names.
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
        """Returns whether the merge changed a CSV; --prof-path may add rows although no row was run."""
        merged = self.records.merged
        return merged is not None and bool(merged.added.total() or merged.updated.total() or merged.unmatched)

    def quality(self) -> dict[str, tuple[int, str]]:
        """Returns how many measured rows are not quiet, by quality, and why."""
        surroundings, devices = self.context.surroundings, self.context.settings.devices
        elsewhere = self.context.settings.prof_path is not None
        cause = "" if elsewhere or not self.tally.figures else surroundings.higher_load(devices)
        return quality_fields(self.tally.figures.values(), cause)

    @property
    def not_comparable(self) -> str:
        """Why captured durations do not compare with those of the session; "" where they do."""
        own = self.context.databases[0]
        captures = own.provenance if own.target.captures is None else Provenance(Database(own.target.captures))
        return "" if captures is None else captured_mismatch(captures, self.context.settings)

    def not_replayable(self) -> Counter[str]:
        """Returns the number of collected rows whose kernel type has no replay, by kernel type."""
        plan, without = self.context.plan, self.ledger.without_replay
        tables = plan.tables.values() if plan is not None and without else ()
        return Counter(table.kernel_type for table in tables for case in table.cases.values() if case in without)

    def facts(self) -> SessionFacts:
        """Returns the facts that the report is written from."""
        plan = self.context.plan
        assert plan is not None
        return SessionFacts(
            run_id=self.context.run_id,
            database=self.context.settings.database,
            device=self.records.device_name,
            mode=self.context.settings.mode.value,
            outcomes=self.tally.outcomes,
            ledger=self.ledger.line(),
            not_run=self.ledger.not_run(),
            unresolved=self.ledger.unresolved(),
            statuses=self.records.statuses,
            errors=self.tally.causes(),
            assumptions=self.tally.assumptions(),
            left_out=plan.left_out(),
            duplicates={key: len(table.duplicates) for key, table in plan.tables.items() if table.duplicates},
            not_replayable=self.not_replayable(),
            merged=self.records.merged,
            seconds=self.tally.running_time.seconds,
            figures=self.tally.figures.values(),
            quality=self.quality(),
            manifest=self.records.manifest,
            not_comparable=self.not_comparable,
        )
