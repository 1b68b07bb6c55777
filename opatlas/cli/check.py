"""`opatlas check`: data tests of a database, as cases of pytest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from importlib import import_module
from io import StringIO
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.checks.check import ANY, KNOWN_FINDINGS, CheckResults, KnownFinding
from opatlas.ask.checks.duration_checks import Alignment, AlignmentVerdict, alignments
from opatlas.errors import usage_errors
from opatlas.formats import microseconds, percent
from opatlas.installation import require_extra
from opatlas.show import Column, Fields, Output, Result, Table
from opatlas.show.parameters import DatabaseFolder
from opatlas.show.result import Part

#: pytest's exit statuses after its cases: all passed, some failed.
_CASES_RAN = (0, 1)
#: The findings of a case that are shown without -vv.
_SHOWN = 5


def check(
    database: DatabaseFolder,
    /,
    *options: Annotated[str, Parameter(name="OPTIONS", allow_leading_hyphen=True)],
    output: Annotated[Output, Parameter(parse=False)],
) -> Result:
    """Tests the data of a database. Each check and kernel type is a case of pytest.

    Exit status: 0 no findings, or known and advisory ones alone; 1 findings; 2 wrong usage; else pytest's own.

    Args:
        database: folder of {KernelType}.csv files, or a device such as NVIDIA_H200.
        options: options of pytest: -k, -x, -v, --junit-xml and others. -vv shows each finding, and not only the five
            worst of each case. --strict fails known and advisory findings, and entries of known_findings.yaml without
            a finding.
    """
    require_extra("bench", "`opatlas check`", "pytest")
    run_checks = import_module("opatlas.plugins.check").run_checks
    with usage_errors(), nullcontext() if output.is_text else redirect_stdout(StringIO()):
        status, found = run_checks(database, options)
    if status not in _CASES_RAN:
        return Result(status=status)
    return Result(list(_parts(found)), _json(found, status), found.problems, status)


def _parts(found: CheckResults) -> Iterator[Part]:
    database = found.database
    about = {"kernel types": len(database.tables), "rows": database.rows, "device": database.device}
    yield Fields(about, str(database.path))
    tallies = [tally for tally in found.tallies.values() if tally.cases or tally.skipped]
    rows = [
        (
            tally.check.name,
            tally.cases or None,
            len(tally.new) if tally.cases else None,
            len(tally.known) or None,
            tally.check.about,
            tally.check.remedy if tally.new else None,
            tally.skipped,
        )
        for tally in tallies
    ]
    if rows:
        columns = ("check", "cases", "findings", "known", "looks for", "remedy", "not run, since")
        yield Table(columns, rows, "checks")
    yield from _known(found)
    if found.show_all and (messages := _messages(found)):
        worst_first = sorted(messages, key=lambda each: list(AlignmentVerdict).index(each.verdict), reverse=True)
        of_messages = (
            *("verdict", "kernel type", "message", Column("measured(us)", microseconds)),
            *(Column("captured(us)", microseconds), "quality", Column("noise", percent)),
            *(Column("model(us)", microseconds), Column("least(us)", microseconds), "reason"),
        )
        yield Table(of_messages, [each[:-1] for each in worst_first], "messages against their links")
    most = None if found.show_all else _SHOWN
    findings = [
        (tally.check.name, each.place, each.row, each.value, each.reason)
        for tally in tallies
        for of_case in tally.failing
        for each in of_case[:most]
    ]
    if findings:
        left_out = sum(len(of_case) for tally in tallies for of_case in tally.failing) - len(findings)
        title = "findings (-vv shows all)" if left_out else "findings"
        yield Table(("check", "place", "row", "value", "reason"), findings, title, left_out)


def _messages(found: CheckResults) -> list[Alignment]:
    return [each for table in found.database.tables.values() for each in alignments(found.database, table)]


def _known(found: CheckResults) -> Iterator[Part]:
    covered = Counter(id(entry) for tally in found.tallies.values() for _, entry in tally.known)
    rows = [
        (
            ", ".join(entry.checks),
            _which(entry),
            *(covered[id(entry)], entry.date),
            entry.reason if found.show_all else entry.reason.partition(". ")[0],
        )
        for entry in found.entries
        if covered[id(entry)]
    ]
    if rows:
        yield Table(("check", "rows", "findings", "date", "reason"), rows, f"known, by {KNOWN_FINDINGS}")
    unused = [(entry.place, ", ".join(entry.checks), _which(entry)) for entry in found.unused_entries()]
    if unused:
        yield Table(("entry", "check", "rows"), unused, "entries without a finding: remove them")


def _which(entry: KnownFinding) -> str:
    return " ".join(word for word in (entry.kernel_type, entry.row) if word != ANY) or "all"


def _json(found: CheckResults, status: int) -> dict[str, object]:
    return {
        "version": 1,
        "database": str(found.database.path),
        "device": found.database.device,
        "rows": found.database.rows,
        "exit_status": status,
        "checks": [
            {
                "name": tally.check.name,
                "about": tally.check.about,
                "remedy": tally.check.remedy,
                "advisory": tally.check.advisory,
                "cases": tally.cases,
                "not_run": tally.skipped,
                "findings": [asdict(finding) for finding in tally.new],
                "known": [{**asdict(finding), "known_as": entry.reason} for finding, entry in tally.known],
            }
            for tally in found.tallies.values()
        ],
        "messages": [each._asdict() for each in _messages(found)],
        "known_findings_without_finding": [entry.place for entry in found.unused_entries()],
    }
