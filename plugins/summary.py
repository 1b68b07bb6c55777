"""What became of the rows of a session: the parts that the terminal and the report show, and the report files."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest
from opatlas.data.origin import Provenance
from opatlas.errors import noted
from opatlas.row.location import default_database_of
from opatlas.row.status import Status
from opatlas.show.result import Fields, Part, Table, csv_text, markdown
from opatlas.show.row_summary import duration_tables, find_gaps, gap_table, gaps_by_type, quality_fields
from opatlas.text import shortened

from .cases import GIVEN_UP, NOT_RUN, XFAILED, SessionCase, figures_of, ledger, ledger_line, results_of, unresolved
from .target import captured_mismatch

if TYPE_CHECKING:
    from .session import Session

_REPORT = "replay_report"
_REASON_SHOWN = 160
#: The most databases that are named, and the most gaps in the report.
_DATABASES, _GAPS = 5, 10
#: The parts of a reason that differ between rows with the same cause: addresses, sizes, words with digits.
_PARTICULAR = re.compile(r"0x[0-9a-f]+|\b[\d,;.x]*\d[\d,;.x]*\b")


def outcome_parts(session: Session, most: int | None = None) -> Iterator[Part]:
    """Yields what became of the rows; `most` limits the rows of tables, None: all causes, and the largest gaps."""
    yield Fields({**_run_fields(session), **_written_fields(session)})
    failed = (
        (case, f"{found.status}: {shortened(found.reason, _REASON_SHOWN)}", found.status in _ENDED)
        for case, found in results_of(session.cases)
        if found.status is not Status.MEASURED
    )
    yield cause_table("not measured", failed).most_important(most)
    gaps, mismatch = session.gaps, _capture_mismatch(session) if session.gaps else ""
    if mismatch:
        yield f"{len(gaps):,} rows with both durations, {mismatch}"
    elif any(gap.outside for gap in gaps):
        yield gap_table(gaps).most_important(most or _GAPS)
        if most is None:
            yield gaps_by_type(gaps)


#: Where a process or the device failed, the number in the reason is the cause: a signal, a deadline, a code.
_ENDED = (Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR)


def _run_fields(session: Session) -> Mapping[str, object]:
    """Returns how rows ran, and how good their durations are."""
    context, accounts, figures = session.context, ledger(session.cases), figures_of(session.cases).values()
    results, settings = dict(results_of(session.cases)), context.settings
    unit, seconds, is_looked_up = settings.unit, _seconds(session), settings.prof_path is not None
    words = Counter(found.word for found in results.values())
    verdicts = Counter(found.verdict for found in results.values() if found.verdict)
    given_up = accounts[GIVEN_UP] + accounts[XFAILED] - words["xfailed"]
    left = unresolved(session.cases)
    pace = f"in {seconds:.1f} s, {len(results) / seconds:.3g} {unit}s/s"
    not_run = accounts[NOT_RUN]
    rest = (f"about {not_run * seconds / len(results) / 60:,.1f} min as fast" if results else "", continuation(session))
    return {
        f"{unit}s {'looked up' if is_looked_up else 'run'}": (len(results), pace) if results else None,
        "judged": ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()),
        **quality_fields(figures, context.higher_load if figures and not is_looked_up else ""),
        "not run": (not_run, "; ".join(filter(None, rest))) if not_run else None,
        "measured, failed before": words["xpassed"] or None,
        "given up": (given_up, "crashed or timed out in earlier sessions: --runxfail runs them") if given_up else None,
        "left by earlier sessions": ", ".join(f"{count} {status}" for status, count in left.items()),
    }


def _written_fields(session: Session) -> Mapping[str, object]:
    """Returns what was written, and where."""
    settings, merged = session.context.settings, session.records.merged
    found: dict[str, object] = {}
    if merged is not None and (any(results_of(session.cases)) or session.has_written):
        updated, added, marked = (counts.total() for counts in (merged.updated, merged.added, merged.marked))
        found["written"] = f"{updated} updated, {added} added, {marked} marked, {len(merged.pruned)} pruned"
        for database in session.records.pruned_in:
            restore = f"moved elsewhere, `opatlas combine {database.path} FOLDER` brings them back"
            found["pruned rows"] = (str(database.pruned_dir), restore)
        if merged.unmatched:
            found["no row"] = (len(merged.unmatched), f"{settings.unit}s: not added")
        if merged.of_siblings:
            of_siblings = (len(merged.of_siblings), "--update-mode=all adds these rows")
            found["kernels of sibling types without a row"] = of_siblings
        if merged.repeated:
            found["repeated rows"] = (merged.repeated, "got the duration of the earlier row of their signature")
    paths = [str(each.path) for each in settings.targets]
    more = [f"and {len(paths) - _DATABASES} more"] if len(paths) > _DATABASES else []
    found["device"] = session.records.device_name
    found["database"] = "\n".join([*paths[:_DATABASES], *more])
    found["report"] = "\n".join(session.paths)
    return found


def continuation(session: Session) -> str:
    """Returns how to run the rows that a session did not reach; "" for one that writes nothing."""
    settings = session.context.settings
    if settings.read_only:
        return ""
    # Some of the rows may have replayed durations of earlier runs.
    new = f'run != "{session.context.run_id}"'
    where = new if settings.where is None else f"({settings.where}) and {new}"
    return f"the same command with --where {shlex.quote(where)} goes on with them"


def _capture_mismatch(session: Session) -> str:
    """Returns why captured durations do not compare with those of the session; "" where they do."""
    own = session.context.databases[0]
    captures = own.provenance if own.target.captures is None else Provenance(Database(own.target.captures))
    return "" if captures is None else captured_mismatch(captures, session.context.settings)


def _seconds(session: Session) -> float:
    """Returns the seconds from the first row to the last."""
    results = dict(results_of(session.cases)).values()
    took = max((found.ended for found in results), default=0.0) - min((found.began for found in results), default=0.0)
    return max(took, 1e-3)


def cause_table(title: str, texts: Iterable[tuple[SessionCase, str, bool]]) -> Table:
    """Returns a table of the texts of cases, the most frequent first.

    Args:
        texts: each with whether its numbers count. Texts that differ in other numbers are one.
    """
    found: dict[tuple[str, str], list[tuple[SessionCase, str]]] = {}
    for case, text, is_exact in texts:
        common = text if is_exact else _PARTICULAR.sub("N", text)
        found.setdefault((case.rows.label, common), []).append((case, text))
    rows = []
    for (label, common), like in sorted(found.items(), key=lambda entry: -len(entry[1])):
        case, text = like[0]
        others = f" (and {len(like) - 1:,} like it)" if len(like) > 1 and text != common else ""
        rows.append((len(like), label, f"{text}{others}", case.id))
    return Table(("rows", "kernel type", title, "first row"), rows, title)


def write_reports(session: Session) -> None:
    """Writes replay_report_*.md and duration_gap_*.csv, after the records are merged and the rows accounted for."""
    context, merged = session.context, session.records.merged
    settings, database = context.settings, context.database
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
    home = default_database_of(database.path) or database.path
    report = Database(home).new_report_path(_REPORT, context.started_at, suffix=".md")
    # Both files of a session have the same time and number in their names.
    gaps = report.with_name(f"duration_gap{report.stem.removeprefix(_REPORT)}.csv")
    with noted(session.unreported):
        write_text(report, f"# Replay report of run {context.run_id}\n\n{markdown(list(_report_parts(session)))}\n")
        session.paths = [os.path.abspath(report)]
        if session.gaps:
            write_text(gaps, f"{csv_text([gap_table(session.gaps)])}\n")
            session.paths.append(os.path.abspath(gaps))


def _report_parts(session: Session) -> Iterator[Part]:
    """Yields what the terminal shows, without limits, and assumptions, and rows by name."""
    cases, merged = session.cases, session.records.merged
    assert merged is not None
    yield ledger_line(cases, session.context.settings.unit)
    yield from outcome_parts(session)
    assumed = ((case, text, False) for case, found in results_of(cases) for text in found.assumptions)
    yield cause_table("assumptions", assumed)
    yield from duration_tables(figures_of(cases).values())
    yield f"devices, versions and options: {Manifest.path(session.context.database, session.context.run_id)}"
    for title, names in (
        ("Missing", merged.unmatched),
        ("Missing rows that ran for sibling types", merged.of_siblings),
        ("Pruned", merged.pruned),
    ):
        yield Table(("kernel type", "signature"), [(name.kernel_type, name.signature) for name in names], title)
    not_run = sorted((case.id,) for case in cases if case.account == NOT_RUN)
    yield Table(("row",), not_run, "Not run")
    yield Table(("name", "rows"), sorted(session.not_replayable().items()), "Kernel types without a replay")
