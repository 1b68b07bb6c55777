"""The report files of a session, and the facts that they and the summary are made of."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.data.origin import Provenance
from opatlas.errors import OpAtlasError
from opatlas.row.location import default_database_of
from opatlas.row.status import Status
from opatlas.show.row_summary import quality_fields
from opatlas.show.session_report import Cause, SessionFacts, find_gaps, replay_report, write_gap_csv
from opatlas.text import shortened

from .cases import (
    NOT_RUN,
    CaseResult,
    Fate,
    SessionCase,
    figures_of,
    ledger_line,
    of_fate,
    results_of,
    unresolved,
)
from .mixing import captured_mismatch
from .row_note import FOR_OTHERS

if TYPE_CHECKING:
    from .session import Session

_REPORT = "replay_report"
_REASON_SHOWN = 160
#: The parts of a reason that differ between rows with the same cause: addresses, sizes, words with digits.
_PARTICULAR = re.compile(r"0x[0-9a-f]+|\b[\d,;.x]*\d[\d,;.x]*\b")


def facts_of(session: Session) -> SessionFacts:
    """Returns what the report and the summary are made of."""
    plan, cases, context = session.plan(), session.cases, session.context
    results = dict(results_of(cases))
    tables = plan.tables.items()
    return SessionFacts(
        run_id=context.run_id,
        database=context.settings.database,
        device=session.records.device_name,
        mode=context.settings.mode.value,
        outcomes=Counter(found.word for found in results.values()),
        ledger=ledger_line(cases, context.settings.unit),
        not_run=sorted(case.id for case in cases if case.account == NOT_RUN),
        unresolved=unresolved(cases),
        statuses=Counter(found.status.value for found in results.values()),
        errors=causes(cases),
        assumptions=assumptions(cases),
        left_out=Counter(case.rows.key for case in of_fate(cases, Fate.LEFT_OUT)),
        duplicates={key: count for key, table in tables if (count := len(of_fate(table.cases, Fate.REPEATED)))},
        not_replayable=session.not_replayable(),
        merged=session.records.merged,
        seconds=_seconds(results),
        figures=figures_of(cases).values(),
        quality=_quality(session),
        manifest=session.records.manifest,
        not_comparable=_not_comparable(session),
    )


def _quality(session: Session) -> dict[str, tuple[int, str]]:
    """Returns how many measured rows are not quiet, by quality, and why."""
    figures, settings = figures_of(session.cases).values(), session.context.settings
    is_here = settings.prof_path is None and bool(figures)
    return quality_fields(figures, session.context.surroundings.higher_load(settings.devices) if is_here else "")


def _not_comparable(session: Session) -> str:
    """Returns why captured durations do not compare with those of the session; "" where they do."""
    own = session.context.databases[0]
    captures = own.provenance if own.target.captures is None else Provenance(Database(own.target.captures))
    return "" if captures is None else captured_mismatch(captures, session.context.settings)


def write_reports(session: Session) -> None:
    """Writes replay_report_*.md and duration_gap_*.csv, after the records are merged and the rows accounted for."""
    merged, settings, database = session.records.merged, session.context.settings, session.context.database
    if merged is None or not settings.writes or not (any(results_of(session.cases)) or session.has_written):
        return
    # A kernel type without a measured row in this database may have no file in it.
    measured = sorted(merged.updated + merged.added)
    captures = settings.targets[0].captures
    session.gaps, session.unreported = find_gaps(
        database,
        [name for name in measured if database.csv_path(name).exists()],
        Database(captures) if captures is not None else None,
    )
    # Beside the rows that all implementations of the session have in common.
    home = default_database_of(database.path)
    report = (database if home is None else Database(home)).new_report_path(
        _REPORT, session.context.started_at, suffix=".md"
    )
    # Both files of a session have the same time and number in their names.
    gaps = report.with_name(f"duration_gap{report.stem.removeprefix(_REPORT)}.csv")
    try:
        write_text(report, replay_report(facts_of(session), session.gaps))
        session.paths = [os.path.abspath(report)]
        if session.gaps:
            write_gap_csv(gaps, session.gaps)
            session.paths.append(os.path.abspath(gaps))
    except OpAtlasError as error:
        session.unreported.append(str(error))


def _seconds(results: dict[SessionCase, CaseResult]) -> float:
    """Returns the seconds from the first row to the last, without the average wait for other sessions."""
    if not results:
        return 1e-3
    took = max(found.ended for found in results.values()) - min(found.began for found in results.values())
    waited = sum(found.waited.get(FOR_OTHERS, 0.0) for found in results.values())
    return max(took - waited / len({id(case.worker) for case in results}), 1e-3)


def causes(cases: Iterable[SessionCase]) -> list[Cause]:
    """Returns the causes of rows that were not measured, the most frequent first."""
    failed = [
        (case, f"{found.status}: {_first_line(found.reason)}", found.status)
        for case, found in results_of(cases)
        if found.status is not Status.MEASURED
    ]
    # If a process or the device failed, the number is the cause: a signal, a deadline, a code.
    ended = (Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR)
    return _counted(
        ((case, text, text if status in ended else _PARTICULAR.sub("N", text)) for case, text, status in failed)
    )


def assumptions(cases: Iterable[SessionCase]) -> list[Cause]:
    """Returns the assumptions about measured rows, the most frequent first."""
    assumed = ((case, text) for case, found in results_of(cases) for text in found.assumptions)
    return _counted((case, text, _PARTICULAR.sub("N", text)) for case, text in assumed)


def _first_line(reason: str) -> str:
    return shortened(reason.partition("\n")[0], _REASON_SHOWN)


def _counted(texts: Iterable[tuple[SessionCase, str, str]]) -> list[Cause]:
    """Counts texts of cases, given with what such texts have in common."""
    found: dict[tuple[str, str], list[tuple[SessionCase, str]]] = {}
    for case, text, common in texts:
        found.setdefault((case.rows.label, common), []).append((case, text))
    causes = []
    for (label, common), like in sorted(found.items(), key=lambda entry: -len(entry[1])):
        case, text = like[0]
        if len(like) > 1 and text != common:
            text = f"{text} (and {len(like) - 1:,} like it)"
        causes.append(Cause(label, text, len(like), case.id))
    return causes
