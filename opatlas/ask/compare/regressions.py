"""Steps of rows over the runs of a database, for `opatlas history`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from opatlas.ask.compare.calls import RowCall
from opatlas.ask.compare.states import read_run
from opatlas.ask.compare.steps import LEAST_COMMON, LEAST_RUNS, Change, search
from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.data.origin import run_drivers, run_origins
from opatlas.errors import noted
from opatlas.grouping import grouped
from opatlas.row.columns import CACHE_STATE, IMPLEMENTATION, INSTRUMENT, STAND_IN
from opatlas.row.quality import Floats
from opatlas.row.record import RowName
from opatlas.row.rounds import LEAST_DIFFERENCE
from opatlas.row.signature import RowChoice, make_case_id


@dataclass(frozen=True)
class RowSeries:
    """The durations of a row in runs that compare: one device, cache state, instrument and implementation.

    Attributes:
        run_ids: the runs, the oldest first.
        durations_us: the duration in each run.
        noise: the mean standard error of a logarithm of a duration, by the spread of the samples of its run.
    """

    row: RowName
    run_ids: tuple[str, ...]
    durations_us: tuple[float, ...]
    noise: float

    @property
    def case_id(self) -> str:
        """The id of the row."""
        return make_case_id(self.row.kernel_type, self.row.signature)


@dataclass(frozen=True)
class RowChange:
    """A step of a row.

    Attributes:
        before_run, after_run: the last run before the step and the first after.
        before_us, after_us: the geometric means of the durations before and after, without what all rows have in
            common: as on the machine of the newest run.
        runs_before, runs_after: the numbers of runs that the means are of.
        is_newest: whether no later step follows.
    """

    series: RowSeries
    before_run: str
    after_run: str
    before_us: float
    after_us: float
    runs_before: int
    runs_after: int
    is_newest: bool

    @property
    def percent(self) -> float:
        """The growth of the duration in percent."""
        return (self.after_us / self.before_us - 1) * 100


@dataclass(frozen=True)
class Shift:
    """A change of all rows between two neighbouring runs: the machine's, or that of what all rows share.

    Attributes:
        rows: the number of rows that both runs have.
    """

    before_run: str
    after_run: str
    percent: float
    rows: int


@dataclass(frozen=True)
class Regressions:
    """The steps of a database.

    Attributes:
        runs: the runs with a history, the oldest first.
        disturbed: those whose manifests have disturbances; their durations do not decide.
        series: the rows with enough runs that compare.
        rows: the number of rows that any run measured.
        left_out: durations whose samples are bimodal, throttled or too noisy.
        spread: the standard deviation of a run's duration as a share of the duration, as the rows tell it.
        changes: the largest growth first.
        shifts: changes of all rows, which are in no step.
        facts: device, software and drivers of each run that has a manifest.
        problems: sentences about files that cannot be read.
    """

    runs: Sequence[str]
    disturbed: Sequence[str]
    series: Sequence[RowSeries]
    rows: int
    left_out: int
    spread: float
    changes: Sequence[RowChange]
    shifts: Sequence[Shift]
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    problems: Sequence[str] = ()

    def by_runs(self) -> dict[tuple[str, str], list[RowChange]]:
        """Returns the changes by the runs before and after; the most rows first."""
        found = grouped(((change.before_run, change.after_run), change) for change in self.changes)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def differences(self, before: str, after: str) -> list[str]:
        """Returns what differs between two runs: `torch 2.10.0 -> 2.11.0`. What either does not tell is left out."""
        ours, theirs = self.facts.get(before, {}), self.facts.get(after, {})
        return [f"{name} {value} -> {theirs[name]}" for name, value in ours.items() if theirs.get(name, value) != value]


def find_regressions(database: Database, chosen: RowChoice) -> Regressions:
    """Returns the steps of the chosen rows. Files that cannot be read become problems.

    Raises:
        OpAtlasError: names were given, and no run has such a row.
    """
    problems: list[str] = []
    manifests = read_manifests(database, problems)
    order = log.run_order(database, manifests)
    runs = sorted(log.runs(database), key=order.age)
    calls = _calls(database, runs, problems)
    rows = [row for row in calls if chosen.holds(row.kernel_type, row.signature)]
    chosen.expect(len(rows), f"{database.runs_dir}")
    devices = {run: ", ".join(sorted(manifest.device_names)) for run, manifest in manifests.items()}
    disturbed = _disturbed({run: manifest for run, manifest in manifests.items() if run in runs})
    deciding = [run for run in runs if run not in disturbed]
    series = [each for row, of_row in calls.items() for each in _series(row, of_row, devices, disturbed)]
    # All rows tell the spread and the shifts, not only those that are chosen.
    places = {run: place for place, run in enumerate(deciding)}
    values = np.full((len(series), len(deciding)), math.nan)
    for each, of_row in zip(series, values, strict=True):
        of_row[[places[run] for run in each.run_ids]] = np.log(each.durations_us)
    of_chosen = frozenset(rows)
    found = search(values, [each.noise for each in series], [each.row in of_chosen for each in series])
    changes = [_change(series[each.row], each, deciding) for each in found.changes]
    return Regressions(
        runs,
        [run for run in runs if run in disturbed],
        [each for each in series if each.row in of_chosen and len(each.run_ids) >= LEAST_RUNS],
        len(rows),
        sum(bool(call.why_ambiguous) for row in rows for call in calls[row].values()),
        found.spread,
        sorted(changes, key=lambda change: -change.percent),
        list(_shifts(values, found.common.tolist(), deciding)),
        {run: run_facts(manifest) for run, manifest in manifests.items()},
        problems,
    )


def _disturbances(manifest: Manifest) -> list[str]:
    """Returns what disturbed a run at its start or end."""
    states = (manifest.machine_at_start, manifest.machine_at_end)
    return list(dict.fromkeys(str(each) for state in states for each in state.get("disturbances", ())))


def _disturbed(manifests: Mapping[str, Manifest]) -> frozenset[str]:
    """Returns the runs with disturbances. What all runs have in the same words is a property of the machine."""
    found = {run: set(_disturbances(manifest)) for run, manifest in manifests.items()}
    always = set.intersection(*found.values()) if len(found) > 1 else set()
    return frozenset(run for run, disturbances in found.items() if disturbances - always)


def _shifts(values: Floats, common: Sequence[float], runs: Sequence[str]) -> Iterator[Shift]:
    """Yields the changes of what all rows have in common that are large enough to count."""
    known = ~np.isnan(values)
    for place, (before, after) in enumerate(pairwise(common)):
        rows = int((known[:, place] & known[:, place + 1]).sum())
        if abs(after - before) >= LEAST_DIFFERENCE and rows >= LEAST_COMMON:
            yield Shift(runs[place], runs[place + 1], math.expm1(after - before) * 100, rows)


def run_facts(manifest: Manifest) -> dict[str, str]:
    """Returns what may change durations from run to run, by name: device, software, driver, system, kernels, code."""
    origins = list(run_origins(manifest))
    facts = {"device": ", ".join(sorted(manifest.device_names)), "host": manifest.host}
    for origin in origins:
        facts.update(origin.versions)
        if origin.threads:
            facts["CPU threads"] = str(origin.threads)
    facts["driver"] = ", ".join(sorted(run_drivers(manifest)))
    facts["Python"] = manifest.python
    facts["system"] = manifest.system
    facts["disturbances"] = ", ".join(_disturbances(manifest)) or "none"
    facts["implementation"] = str(manifest.options.get("implementation") or "")
    facts["OpAtlas"] = " ".join(filter(None, [manifest.packages.get("opatlas", ""), manifest.code[:8]]))
    return {name: value for name, value in facts.items() if value}


def _calls(database: Database, runs: Sequence[str], problems: list[str]) -> dict[RowName, dict[str, RowCall]]:
    """Returns the measured calls of each row by run, in the order of the runs."""
    found: dict[RowName, dict[str, RowCall]] = {}
    for run in runs:
        with noted(problems):
            for kernel_type, of_type in read_run(database, run).items():
                for signature, call in of_type.items():
                    if call.duration is not None:
                        found.setdefault(RowName(kernel_type, signature), {})[run] = call
    return found


def _series(
    row: RowName, calls: Mapping[str, RowCall], devices: Mapping[str, str], disturbed: Collection[str]
) -> Iterator[RowSeries]:
    """Yields the series of a row: of runs that compare, and whose samples describe one state of the device."""
    conditions: dict[tuple[str, ...], dict[str, RowCall]] = {}
    for run, call in calls.items():
        implementation = call.cell(IMPLEMENTATION).partition(" ")[0]
        key = (devices.get(run, ""), *map(call.cell, (CACHE_STATE, INSTRUMENT, STAND_IN)), implementation)
        if not call.why_ambiguous and run not in disturbed:
            conditions.setdefault(key, {})[run] = call
    for of_one in conditions.values():
        durations = tuple(us for call in of_one.values() if (us := call.duration_us) is not None)
        noise = math.sqrt(sum(call.variance_of_mean for call in of_one.values()) / len(of_one))
        yield RowSeries(row, tuple(of_one), durations, noise)


def _change(series: RowSeries, change: Change, runs: Sequence[str]) -> RowChange:
    before_us, after_us = (math.exp(level) for level in change.levels)
    places = runs[change.before], runs[change.after]
    return RowChange(series, *places, before_us, after_us, *change.runs, change.is_newest)
