"""Measures 30 rows of a database on this machine, and says whether the durations of the database hold here.

DB is a folder or the name of a device. The rows are those of its calibration.json, which --choose writes; without that
file they are chosen for this time. They are measured as `pytest bench/` measures rows, into a temporary folder: DB does
not change.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opatlas.calibration.fit import FamilyFit, FitVerdict, MachineFit, RowFit, compare
from opatlas.calibration.rows import (
    CALIBRATION,
    CalibrationDuration,
    CalibrationRow,
    choose,
    read_set,
    stored_durations,
    write_set,
)
from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.combine.row_devices import database_device
from opatlas.devices.discovery import available_devices, database_name
from opatlas.errors import OpAtlasError, usage_errors
from opatlas.files import TemporaryFolder
from opatlas.installation import require_extra
from opatlas.isolation.fresh_python import import_environment, module_command
from opatlas.model.location import device_kind, implementation_of
from opatlas.model.named_databases import database_folder
from opatlas.model.schema import CACHE_STATE, INSTRUMENT
from opatlas.progress import Progress
from opatlas.report.plots.timed_rows import expect_tables
from opatlas.store.database import Database
from opatlas.store.manifest import read_manifests
from opatlas.store.row_copy import add_rows, is_of_duration
from opatlas.text import four_digits, percent_text, pluralize, print_problems, shorten, show, table_lines, wrap

#: No status is 1 or 2, the statuses of errors.
_STATUS = {FitVerdict.SAME: 0, FitVerdict.SCALED: 3, FitVerdict.UNUSABLE: 4}
_ROWS_SHOWN = 5
_LONGEST_ID = 60
#: pytest's exit statuses of a session whose rows ran, whether or not all were measured.
_RAN = (0, 1)
#: The end of what a session printed, for an error.
_LINES_SHOWN = 15
#: A line of the progress of a session.
_PROGRESS = re.compile(r"(\d+)/\d+ rows ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 same; 3 scaled; 4 do not use; 1 the rows could not be measured, or a file could not be read; "
        "2 wrong usage"
    )
    parser.add_argument(
        "database",
        nargs="?",
        metavar="DB",
        help="folder of {KernelType}.csv files, or name of a device (default: the device of this machine)",
    )
    parser.add_argument(
        "--choose",
        action="store_true",
        help=f"choose the rows, write them to {CALIBRATION} in DB, and measure nothing (default: off)",
    )
    add_json(parser, "the result with all rows")


def run(arguments: argparse.Namespace) -> int:
    """Measures and compares, and returns the exit status that the help explains. Raises OpAtlasError."""
    with usage_errors():
        folder = database_folder(arguments.database or database_name(available_devices(None)))
        expect_tables(folder)
        if implementation_of(folder)[0]:
            raise OpAtlasError(f"{folder}: of an implementation: name the database of the device, which has its rows")
    if arguments.choose:
        rows = _choose(folder)
        show(f"{write_set(folder, rows)}: {pluralize(len(rows), 'row')}")
        show("\n".join(table_lines([(row.family, row.case_id) for row in rows])))
        return 0
    rows = read_set(folder) or _choose(folder)
    fit = _measure(folder, stored_durations(folder, rows))
    if not write_or_print_json(arguments.json, _plain(fit)):
        show("\n".join(_lines(fit)))
    return _STATUS[fit.verdict]


def _choose(folder: Path) -> list[CalibrationRow]:
    with Progress(len(Database(folder).kernel_types()), "kernel types", label="choose") as progress:
        return choose(folder, progress.advance)


def _measure(folder: Path, stored: Sequence[CalibrationDuration]) -> MachineFit:
    """Measures rows in a session of its own, and compares them with the database. Raises OpAtlasError."""
    require_extra("bench", "`opatlas calibrate`", "pytest", "xdist", "pytest_benchmark", "torch")
    name = database_device(folder)
    kind = device_kind(name)
    try:
        # A session would use all devices of the machine: the first one is examined.
        device = available_devices(kind)[0]
    except OpAtlasError:
        raise OpAtlasError(
            f"{folder}: no device of the kind of {name} is here: run it on the machine to be examined "
            "(`opatlas doctor` tells what is missing)"
        ) from None
    (cache,), (instrument,) = ({each.cells[name] for each in stored} for name in (CACHE_STATE, INSTRUMENT))
    with TemporaryFolder("calibrate") as scratch:
        database = Database(scratch / "measured")
        add_rows(database, _without_durations(stored))
        command = module_command("opatlas.cli.main", "bench", f"--database-path={database.path}", f"--device={kind}")
        command += [f"--cache={cache}", f"--instrument={instrument}", "-q", "-p", "no:cacheprovider"]
        environment = import_environment() | dict([device.pinned] if device.pinned else [])
        print(f"measuring {pluralize(len(stored), 'row')} on {device}", file=sys.stderr)
        status, lines = _run_session(command, environment, len(stored))
        if status not in _RAN:
            shown = "\n".join(lines[-_LINES_SHOWN:])
            raise OpAtlasError(f"the rows could not be measured (exit status {status}):\n{shown}")
        problems: list[str] = []
        runs = read_manifests(database, problems)
        fit = compare(folder, stored, database.path, read_manifests(Database(folder), problems), runs.values())
    print_problems(problems)
    return fit


def _run_session(command: Sequence[str], environment: Mapping[str, str], rows: int) -> tuple[int, list[str]]:
    """Runs a session with its progress on the terminal, and returns its exit status and the lines that it printed."""
    lines = []
    with (
        Progress(rows, "rows", label="calibrate") as progress,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
        ) as session,
    ):
        assert session.stdout is not None
        for line in session.stdout:
            lines.append(line.rstrip())
            if done := _PROGRESS.match(line):
                progress.advance(int(done[1]) - progress.done)
    return session.returncode, lines


def _without_durations(stored: Sequence[CalibrationDuration]) -> dict[str, list[Mapping[str, str]]]:
    """Returns the rows of a set by kernel type, without what was measured."""
    rows: dict[str, list[Mapping[str, str]]] = {}
    for each in stored:
        kernel_type = each.row.kernel_type
        cells = {name: cell for name, cell in each.cells.items() if not is_of_duration(kernel_type, name)}
        rows.setdefault(kernel_type, []).append(cells)
    return rows


def _plain(fit: MachineFit) -> dict[str, object]:
    return {
        "database": str(fit.database),
        "verdict": fit.verdict,
        "factors": fit.factors,
        "stored_on": fit.stored_on,
        "measured_on": fit.measured_on,
        "differences": fit.differences,
        "is_other_device": fit.is_other_device,
        "disturbances": fit.disturbances,
        "families": [
            {
                "family": each.family,
                "verdict": each.verdict,
                "ratio": each.ratio,
                "interval": each.interval,
                "spread": each.spread,
                "limit": each.limit,
                "unusable": each.unusable,
                "rows": [_plain_row(row) for row in each.rows],
            }
            for each in fit.families
        ],
    }


def _plain_row(row: RowFit) -> dict[str, object]:
    return {
        "case_id": row.row.case_id,
        "stored_us": row.stored_us,
        "measured_us": row.measured_us,
        "ratio": row.ratio,
        "half_width": row.half_width,
        "is_within": row.is_within,
        "reason": row.reason,
    }


def _lines(fit: MachineFit) -> Iterator[str]:
    rows = fit.rows
    yield f"{fit.database}: {pluralize(len(rows), 'row')} measured again"
    yield wrap(f"database: {'; '.join(fit.stored_on) or 'of unknown origin'}", indent=2)
    yield wrap(f"here: {fit.measured_on}", indent=2)
    yield from (wrap(f"differs: {each}", indent=2) for each in fit.differences)
    yield from (wrap(f"disturbed: {each}", indent=2) for each in fit.disturbances)
    yield ""
    header = ("family", "rows", "here / database", "90 %", "spread", "same up to", "verdict")
    yield from table_lines([header, *map(_family_cells, fit.families)])
    measured = [row for row in rows if row.ratio is not None]
    within = sum(row.is_within for row in measured)
    yield ""
    yield f"{within} of {len(measured)} rows lie within the interval that `opatlas query` tells"
    outside = sorted((row for row in measured if not row.is_within), key=lambda row: -abs((row.ratio or 0) - 1))
    shown = [
        (
            shorten(row.row.case_id, _LONGEST_ID),
            f"{four_digits(row.stored_us)} us",
            f"{four_digits(row.measured_us or 0)} us",
            f"{row.ratio:.2f}",
        )
        for row in outside[:_ROWS_SHOWN]
    ]
    yield from table_lines([("the farthest", "database", "here", "ratio"), *shown]) if shown else ()
    for row in rows:
        if row.ratio is None:
            yield wrap(f"not measured: {row.row.case_id}: {row.reason}", indent=2)
    yield ""
    yield wrap(f"{fit.verdict}: {_meaning(fit)}", indent=0)


def _family_cells(family: FamilyFit) -> tuple[str, ...]:
    counts = f"{len(family.ratios)}/{len(family.rows)}"
    if family.ratio is None or family.interval is None:
        return family.family, counts, "", "", "", "", str(family.verdict)
    low, high = family.interval
    spread = "" if family.spread is None else percent_text(family.spread)
    limit = percent_text(family.limit)
    return (
        *(family.family, counts, _ratio(family.ratio), f"{_ratio(low)} to {_ratio(high)}", spread, limit),
        str(family.verdict),
    )


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else four_digits(value)


def _meaning(fit: MachineFit) -> str:
    """Returns what follows from the verdict."""
    other = "this is another device than that of the database; " if fit.is_other_device else ""
    again = "; this machine was disturbed: try again when it is quiet" if fit.disturbances else ""
    return f"{other}{_meaning_of_ratios(fit)}{again if fit.verdict is not FitVerdict.SAME else ''}"


def _meaning_of_ratios(fit: MachineFit) -> str:
    if fit.verdict is FitVerdict.SAME:
        return "this machine differs from the database no more than machines of its type do"
    if fit.verdict is FitVerdict.SCALED and fit.factors is not None:
        low, high = fit.factors
        told = f"{low:.3f}" if high - low < 0.005 else f"{low:.3f} to {high:.3f}, by family"
        return f"durations here are those of the database times {told}"
    unusable: dict[str, list[str]] = {}
    for family in fit.families:
        if family.unusable:
            unusable.setdefault(family.unusable, []).append(family.family)
    reasons = "; ".join(f"{reason} of {', '.join(families)}" for reason, families in unusable.items())
    return f"{reasons}: measure the rows that you need here (opatlas bench)"
