"""`opatlas check`: data tests of a database, as cases of pytest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from importlib import import_module
from io import StringIO
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from opatlas.checks.known_findings import ANY, KNOWN_FINDINGS, KnownFinding
from opatlas.cli.parameters import DatabaseFolder
from opatlas.errors import usage_errors
from opatlas.installation import require_extra
from opatlas.show import Fields, Output, Result, Table
from opatlas.show.result import Part

if TYPE_CHECKING:
    from opatlas.plugins.check import Cases

#: pytest's exit statuses after its cases: all passed, some failed.
_CASES_RAN = (0, 1)


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
        status, cases = run_checks(database, options)
    if status not in _CASES_RAN:
        return Result(status=status)
    return Result(list(_parts(cases)), _json(cases, status), cases.problems, status)


def _parts(cases: Cases) -> Iterator[Part]:
    database = cases.database
    about = {"kernel types": len(database.kernel_types), "rows": database.rows, "device": database.device or None}
    yield Fields(about, str(database.path))
    tallies = [tally for tally in cases.tallies.values() if tally.cases or tally.skipped]
    rows = [
        (
            tally.check.name,
            tally.cases or None,
            len(tally.new) if tally.cases else None,
            len(tally.known) or None,
            tally.check.about,
            tally.check.remedy if tally.new else f"not run: {tally.skipped}" if tally.skipped else None,
        )
        for tally in tallies
    ]
    columns = ("check", "cases", "findings", "known", "what it looks for", "what to do")
    if rows:
        yield Table(columns, rows, "checks").without_empty_columns()
    yield from _known(cases)
    shown = [(tally.check.name, each) for tally in tallies for each in _shown(tally.failing, cases)]
    if shown:
        found = [(name, each.place, each.row, each.value, each.reason) for name, each in shown]
        left_out = sum(len(tally.failing) for tally in tallies) - len(found)
        title = "findings (-vv shows all)" if left_out else "findings"
        yield Table(("check", "place", "row", "value", "reason"), found, title, left_out)


def _shown(findings: list[Any], cases: Cases) -> Iterator[Any]:
    """Yields the worst findings of each case, or all."""
    most = None if cases.show_all else import_module("opatlas.plugins.check").SHOWN
    for _, of_case in groupby(findings, key=lambda finding: finding.kernel_type):
        yield from islice(of_case, most)


def _known(cases: Cases) -> Iterator[Part]:
    covered = Counter(id(entry) for tally in cases.tallies.values() for _, entry in tally.known)
    rows = [
        (
            ", ".join(entry.checks),
            _which(entry),
            *(covered[id(entry)], entry.date),
            entry.reason if cases.show_all else entry.reason.partition(". ")[0],
        )
        for entry in cases.known
        if covered[id(entry)]
    ]
    if rows:
        yield Table(("check", "rows", "findings", "date", "reason"), rows, f"known, by {KNOWN_FINDINGS}")
    unused = [(entry.place, ", ".join(entry.checks), _which(entry)) for entry in cases.unused_entries()]
    if unused:
        yield Table(("entry", "check", "rows"), unused, "entries without a finding: remove them")


def _which(entry: KnownFinding) -> str:
    return " ".join(word for word in (entry.kernel_type, entry.row) if word != ANY) or "all"


def _json(cases: Cases, status: int) -> dict[str, object]:
    return {
        "version": 1,
        "database": str(cases.database.path),
        "device": cases.database.device,
        "rows": cases.database.rows,
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
            for tally in cases.tallies.values()
        ],
        "known_findings_without_finding": [entry.place for entry in cases.unused_entries()],
    }
