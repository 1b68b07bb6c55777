"""This machine against a database: the ratios of the rows of a calibration set, by family, and whether the data fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from statistics import median

from opatlas.calibration.rows import CalibrationDuration, CalibrationRow
from opatlas.combine.provenance import MeasurementOrigin, run_drivers, run_origins
from opatlas.compare.calls import NO_CALL, ComparedCall, read_calls
from opatlas.model.schema import RUN_ID, Status
from opatlas.model.signature import make_case_id
from opatlas.query.result import NORMAL_90
from opatlas.store.manifest import Manifest

#: Ratios with a larger spread follow no factor.
STEADY = 0.10
_DEVICE = "device"
#: The least confidence of an interval of a median.
_CONFIDENCE = 0.90


class FitVerdict(str, Enum):
    """Whether durations of a database hold on this machine, from the best to the worst."""

    SAME = "same"  # within the differences of machines of the type
    SCALED = "scaled"  # by a steady factor
    UNUSABLE = "do not use"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class RowFit:
    """A row of the set in the database and here.

    Attributes:
        row: the row.
        stored_us: its duration in the database, in microseconds.
        measured_us: its duration here; None if it was not measured, or is not comparable.
        reason: why there is no duration; "" if there is one.
        half_width: half of the 90 % interval of the ratio on another machine of the type, samples here included.
    """

    row: CalibrationRow
    stored_us: float
    measured_us: float | None
    reason: str
    half_width: float

    @property
    def ratio(self) -> float | None:
        """The duration here / that of the database; None without a duration."""
        return None if self.measured_us is None else self.measured_us / self.stored_us

    @property
    def is_within(self) -> bool:
        """Whether the ratio is within its interval."""
        return self.ratio is not None and abs(self.ratio - 1) <= self.half_width


@dataclass(frozen=True)
class FamilyFit:
    """The rows of a family.

    Attributes:
        family: its name.
        rows: its rows.
    """

    family: str
    rows: Sequence[RowFit]

    @cached_property
    def ratios(self) -> Sequence[float]:
        """The ratios of the measured rows, the smallest first."""
        return sorted(ratio for row in self.rows if (ratio := row.ratio) is not None)

    @property
    def ratio(self) -> float | None:
        """The median ratio; None without measured rows."""
        return median(self.ratios) if self.ratios else None

    @property
    def spread(self) -> float | None:
        """1.4826 times the median distance of the ratios from their median, as a share of it: robust, and equal to the
        standard deviation of normally distributed ratios. None for fewer than two."""
        middle = self.ratio
        if middle is None or len(self.ratios) < 2:
            return None
        return 1.4826 * median(abs(ratio / middle - 1) for ratio in self.ratios)

    @property
    def interval(self) -> tuple[float, float] | None:
        """A 90 % interval of the family's median ratio, by the sign test; all ratios, if they are too few for it."""
        return median_interval(self.ratios) if self.ratios else None

    @property
    def limit(self) -> float:
        """The median of the half widths of the rows."""
        return median(row.half_width for row in self.rows)

    @property
    def unusable(self) -> str:
        """Why the durations of the database do not hold here, by any factor; "" if they do."""
        if self.spread is None or len(self.ratios) <= len(self.rows) / 2:
            return "too few rows were measured"
        return "no steady factor" if self.spread > STEADY else ""

    @property
    def verdict(self) -> FitVerdict:
        """SAME if the median ratio is within `limit` of 1; else SCALED, if the ratios have a spread up to STEADY."""
        if self.unusable or self.ratio is None:
            return FitVerdict.UNUSABLE
        return FitVerdict.SAME if abs(self.ratio - 1) <= self.limit else FitVerdict.SCALED


@dataclass(frozen=True)
class MachineFit:
    """This machine against a database.

    Attributes:
        database: the folder.
        stored_on, measured_on: device and software of the rows in the database, and here.
        is_other_device: whether the device here has another name.
        differences: what differs, as `torch 2.13.0 here, 2.11.0 in the database`.
        disturbances: what disturbed the measurement here.
        families: the families of the set.
    """

    database: Path
    stored_on: Sequence[str]
    measured_on: str
    is_other_device: bool
    differences: Sequence[str]
    disturbances: Sequence[str]
    families: Sequence[FamilyFit]

    @property
    def rows(self) -> Sequence[RowFit]:
        return [row for family in self.families for row in family.rows]

    @property
    def verdict(self) -> FitVerdict:
        """The worst verdict of a family."""
        return max((family.verdict for family in self.families), key=list(FitVerdict).index)

    @property
    def factors(self) -> tuple[float, float] | None:
        """The smallest and the largest ratio of the usable families; None if there is none."""
        found = [each.ratio for each in self.families if each.ratio and each.verdict is not FitVerdict.UNUSABLE]
        return (min(found), max(found)) if found else None


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Returns an interval of the median of what ordered values are samples of, by the sign test.

    The interval from the k-th smallest to the k-th largest of n values misses the median with the probability
    2 (C(n, 0) + ... + C(n, k - 1)) / 2^n; k is the largest for which that is up to 10 %, and at least 1.
    """
    count, missing, skipped = len(ordered), 0.0, 0
    for k in range(count // 2):
        missing += 2 * math.comb(count, k) / 2**count
        if missing > 1 - _CONFIDENCE:
            break
        skipped = k
    return ordered[skipped], ordered[count - 1 - skipped]


def compare(
    database: Path,
    stored: Sequence[CalibrationDuration],
    measured: Path,
    stored_runs: Mapping[str, Manifest],
    measured_runs: Iterable[Manifest],
) -> MachineFit:
    """Compares the rows that were measured here with the rows of a database.

    Args:
        stored: what the database has of the rows of the set.
        measured: the folder of the database with the rows that were measured here.
        stored_runs, measured_runs: the manifests of both.

    Raises:
        OpAtlasError: a file cannot be read.
    """
    kernel_types = dict.fromkeys(each.row.kernel_type for each in stored)
    calls = {
        make_case_id(kernel_type, signature): call
        for kernel_type in kernel_types
        for signature, call in read_calls(measured, kernel_type).items()
    }
    fits = [_row_fit(each, calls.get(each.row.case_id, NO_CALL)) for each in stored]
    families = {fit.row.family: [other for other in fits if other.row.family == fit.row.family] for fit in fits}
    theirs = [stored_runs[run] for run in {each.cells.get(RUN_ID, "") for each in stored} if run in stored_runs]
    ours = list(measured_runs)
    differences = _differences(_facts(theirs), _facts(ours))
    told = [phrase for run in ours for phrase in run.machine_at_start.get("disturbances", ())]
    return MachineFit(
        database,
        sorted({str(origin) for run in theirs for origin in run_origins(run)}),
        ", ".join(dict.fromkeys(str(origin) for run in ours for origin in run_origins(run))),
        _DEVICE in differences,
        list(differences.values()),
        list(dict.fromkeys(map(str, told))),
        [FamilyFit(name, rows) for name, rows in families.items()],
    )


def _row_fit(stored: CalibrationDuration, call: ComparedCall) -> RowFit:
    measured_us, reason = call.sum_us, call.reason
    if measured_us is None:
        reason = f"{call.status}: {reason}" if reason else call.status
    elif call.is_composition and stored.is_judged:
        measured_us, reason = None, f"here it is a {call.stand_in}"
    error = NORMAL_90 * math.sqrt(call.variance_of_mean) if call.status == Status.MEASURED.value else 0.0
    half_width = math.hypot(stored.half_width, error)
    return RowFit(stored.row, stored.median_us, measured_us, "" if measured_us is not None else reason, half_width)


def _differences(theirs: Mapping[str, set[str]], ours: Mapping[str, set[str]]) -> dict[str, str]:
    """Returns the facts that differ, by their names; what one side does not know does not differ."""
    found = {}
    for name in ours:
        if name in theirs and ours[name] != theirs[name]:
            here, there = (", ".join(sorted(each[name])) for each in (ours, theirs))
            found[name] = f"{name} {here} here, {there} in the database"
    return found


def _facts(runs: Iterable[Manifest]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for run in runs:
        for origin in run_origins(run):
            for name, value in _of_origin(origin).items():
                found.setdefault(name, set()).add(value)
        for driver in filter(None, run_drivers(run)):
            found.setdefault("driver", set()).add(driver)
    return found


def _of_origin(origin: MeasurementOrigin) -> dict[str, str]:
    threads = {"CPU threads": str(origin.threads)} if origin.threads else {}
    return {_DEVICE: origin.device, **threads, **origin.versions}
