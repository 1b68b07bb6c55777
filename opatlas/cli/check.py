"""`opatlas check`: data tests of a database, as cases of pytest."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from io import StringIO
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.checks.check import ANY, KNOWN_FINDINGS, CheckResults, KnownFinding
from opatlas.ask.checks.duration_checks import Alignment, AlignmentVerdict, alignments
from opatlas.errors import usage_errors
from opatlas.formats import percent
from opatlas.installation import require_extra
from opatlas.show import Column, Fields, Result, Table, print_note
from opatlas.show.parameters import DatabaseFolder
from opatlas.show.result import Part

#: pytest's exit statuses after its cases: all passed, some failed.
_CASES_RAN = (0, 1)


def check(
    database: DatabaseFolder, /, *options: Annotated[str, Parameter(name="OPTIONS", allow_leading_hyphen=True)]
) -> Result:
    """Tests the data of a database. Each check and kernel type is a case of pytest.

    Exit status: 0 no findings, or known and advisory ones alone; 1 findings; 2 wrong usage; else pytest's own.

    Args:
        database: folder of {KernelType}.csv files, or a device such as NVIDIA_H200.
        options: options of pytest: -k, -x, -v, --junit-xml and others; with any, what pytest prints is on stderr.
            --strict fails known and advisory findings, and entries of known_findings.yaml without a finding.
    """
    require_extra("bench", "`opatlas check`", "pytest")
    run_checks = import_module("opatlas.plugins.check").run_checks
    unasked = StringIO()
    with usage_errors(), redirect_stdout(sys.stderr if options else unasked):
        status, found = run_checks(database, options)
    if status not in _CASES_RAN:
        print_note(unasked.getvalue())
        return Result(status=status)
    return Result(list(_parts(found)), _json(found, status), found.problems, status)


def _parts(found: CheckResults) -> Iterator[Part]:
    database = found.database
    tallies = [tally for tally in found.tallies.values() if tally.cases or tally.skipped]
    ran = sum(tally.cases > 0 for tally in tallies)
    yield Fields(
        {
            "findings": sum(len(tally.new) for tally in tallies),
            "known": sum(len(tally.known) for tally in tallies) or None,
            "checks": (ran, f"{len(tallies) - ran} more do not apply" if ran < len(tallies) else ""),
            "kernel types": len(database.tables),
            "rows": database.rows,
            "device": database.device,
        },
        str(database.path),
    )
    # The worst one of each case comes first.
    findings = [
        (rank, (tally.check.name, each.place, each.row, each.value, each.reason))
        for tally in tallies
        for of_case in tally.failing
        for rank, each in enumerate(of_case)
    ]
    rows = [row for _, row in sorted(findings, key=lambda each: each[0])]
    yield Table(("check", "place", "row", "value", "reason"), rows, "findings")
    of_checks = [
        (
            tally.check.name,
            tally.cases or None,
            len(tally.new) if tally.cases else None,
            len(tally.known) or None,
            tally.check.remedy if tally.new else None,
            tally.check.about,
            tally.skipped,
        )
        for tally in tallies
    ]
    columns = ("check", "cases", "findings", "known", "remedy", "looks for", "not run, since")
    yield Table(columns, of_checks, "checks", weight=lambda row: row[2] or 0)
    yield from _known(found, detail=bool(findings))
    worst_first = sorted(_messages(found), key=lambda each: list(AlignmentVerdict).index(each.verdict), reverse=True)
    of_messages = (
        *("verdict", "kernel type", "message", "measured(us)", "captured(us)", "quality", Column("noise", percent)),
        *("model(us)", "least(us)", "reason"),
    )
    yield Table(of_messages, [each[:-1] for each in worst_first], "messages against their links", detail=True)


def _messages(found: CheckResults) -> list[Alignment]:
    return [each for table in found.database.tables.values() for each in alignments(found.database, table)]


def _known(found: CheckResults, *, detail: bool) -> Iterator[Part]:
    covered = Counter(id(entry) for tally in found.tallies.values() for _, entry in tally.known)
    rows = [
        (", ".join(entry.checks), _which(entry), covered[id(entry)], entry.date, entry.reason)
        for entry in found.entries
        if covered[id(entry)]
    ]
    yield Table(("check", "rows", "findings", "date", "reason"), rows, f"known, by {KNOWN_FINDINGS}", detail=detail)
    unused = [(entry.place, ", ".join(entry.checks), _which(entry)) for entry in found.unused_entries()]
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
