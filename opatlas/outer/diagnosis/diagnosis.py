"""The diagnosis of a capture or a database: verdicts, the time that each kernel loses, and the ranking by it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from opatlas.capture.capture_reader import DEVICE as DEVICE_ID, DURATION, STEP, TYPE, WAIT
from opatlas.capture.single_launches import Timeline, numbered_steps
from opatlas.row.columns import ACCELERATOR_CORE, BASE, INPUT_DTYPES, INPUT_SHAPES, QUALITY
from opatlas.row.quality import Floats, Positions
from opatlas.row.slots import EMPTY_WORDS

from . import kernels as launch_table
from .peaks import DevicePeaks, known_peaks, roofline_shares
from .verdicts import L2_HIT_RATE, KernelVerdict, VerdictRule, apply_rules, verdict_rules

ROOFLINE = "roofline"
#: What the cores read from the memory and write into it, by counters of the metric group Memory.
_OF_MEMORY = re.compile(r"ai[cv]_main_mem_(read|write)_bw\(GB/s\)")
#: Columns of rules that are no counters.
_NO_COUNTERS = (DURATION, ACCELERATOR_CORE, ROOFLINE, L2_HIT_RATE)


@dataclass(frozen=True)
class KernelFinding:
    """A verdict on a kernel, with its rule and the cells that the rule read, by the file's names of columns."""

    rule: VerdictRule
    cells: Mapping[str, str | float]


@dataclass(frozen=True)
class RankedKernel:
    """Equal launches of a capture with one verdict, or a row of a database.

    Attributes:
        rank: from 1, by time lost.
        line: the line of the longest launch in the table.
        launches: the number of launches; of a row that captures do not count, 1.
        duration_us: the sum of their durations.
        captured: whether the duration is that of a capture, and not of a replay.
        device: the device that ran it; "" if unknown.
        by: the implementation that was replayed; "" for a capture, or if unknown.
        share: the part of all durations, without collectives.
        roofline: share of the roofline, by time; None if it is not known.
        lost_us: duration x (1 - roofline); the whole duration where the roofline is not known.
        verdict: the verdict to act on; None if none holds.
    """

    rank: int
    line: int
    kernel_type: str
    shapes: str
    dtypes: str
    launches: int
    duration_us: float
    captured: bool
    device: str
    by: str
    share: float
    roofline: float | None
    lost_us: float
    verdict: KernelVerdict | None

    @property
    def lost_is_known(self) -> bool:
        """Whether `lost_us` is more than an upper limit."""
        return self.roofline is not None


#: What `CapturedTimeline.times` has of each step or phase.
_TIMES = {
    "steps": ("step", "nunique"),
    "launches": ("step", "size"),
    **{name: (name, "sum") for name in ("busy_us", "gaps_us", "before_us")},
    "host_us": ("host_us", lambda us: us.sum(min_count=1)),
    "longest_us": ("idle_us", "max"),
}


@dataclass(frozen=True)
class CapturedTimeline:
    """The timeline of one device in a capture.

    Attributes:
        capture: the file, and the device where it tells one.
        launches: in the order of their start, by the line in the table: `type`, `step` and `phase`; `start_us` after
            the first start, `us`; `busy_us` and `idle_us` as in `Timeline`, the latter as `before_us` for the first
            launch of a step, else as `gaps_us`, and as `host_us` if the host launched in it (NaN: not recorded).
        is_excerpt: whether rows are missing.
    """

    capture: str
    launches: pd.DataFrame
    is_excerpt: bool

    def times(self, by: str) -> pd.DataFrame:
        """Returns the times by `step` or `phase`. Busy time, gaps and those before steps add up to the span."""
        return self.launches.groupby(by, sort=False).agg(**_TIMES).reset_index()

    def longest_gaps(self, most: int) -> pd.DataFrame:
        """Returns the longest idle times, each with the type after which and before which it is."""
        types = self.launches["type"]
        gaps = self.launches[["step", "idle_us", "host_us"]].assign(after=types.shift(), before=types)
        return gaps[gaps["idle_us"] > 0].nlargest(most, "idle_us")


class Diagnosis:
    """The verdicts on the kernels of a place.

    Attributes:
        table: the kernels.
        peaks: of the device.
        shares: of the roofline, of each kernel.
        verdicts: on each kernel.
        is_kernel: whether each line is a kernel, and no collective.
        launches: how often each kernel was launched; 1 where no capture counts it.
        duration_us: the duration of all launches of each kernel.
        lost_us: the time that these lose; the whole duration where the roofline is not known.
        kernel_us: the sum of all durations, without collectives.
    """

    def __init__(self, table: launch_table.KernelLines, peaks: DevicePeaks | None = None) -> None:
        self.table = table
        self.peaks = (known_peaks(table.device) if peaks is None else peaks).with_cores_of(table.frame)
        self.shares = roofline_shares(table.frame, self.peaks.peak)
        self.verdicts = apply_rules(table, self.peaks, self.shares)
        self.is_kernel = ~self.verdicts.is_collective
        self.launches: Floats = np.fmax(table.frame[launch_table.LAUNCHES].to_numpy(np.float64), 1.0)
        self.duration_us: Floats = table.frame[DURATION].to_numpy(np.float64) * self.launches
        self.lost_us: Floats = self.duration_us * (1 - np.clip(np.nan_to_num(self.shares.share), 0, 1))
        self.kernel_us = float(self.duration_us[self.is_kernel].sum())

    @property
    def counted(self) -> int:
        """The number of rows, without collectives, whose launches captures count."""
        return int((self.table.frame[launch_table.LAUNCHES].notna().to_numpy() & self.is_kernel).sum())

    @property
    def kernel_launches(self) -> int:
        """The number of launches, without collectives."""
        return int(self.launches[self.is_kernel].sum())

    @property
    def collective_us(self) -> float:
        """The sum of the durations of collectives."""
        return float(self.duration_us[~self.is_kernel].sum())

    @cached_property
    def ranking(self) -> list[RankedKernel]:
        """All kernels but collectives, by the time that they lose."""
        kept = np.flatnonzero(self.is_kernel)
        frame = self.table.frame
        names = [name for name in (TYPE, *BASE[2:], launch_table.BLOCK_DIM) if name in frame.columns]
        keys = [frame[name] for name in names] if self.table.is_capture else [frame[launch_table.ROW]]
        of = pd.DataFrame(dict(enumerate([*keys, pd.Series(self.verdicts.first)]))).iloc[kept]
        codes = of.groupby(list(of.columns), sort=False, dropna=False).ngroup().to_numpy()
        by_group = np.argsort(codes, kind="stable")
        ends = np.flatnonzero(np.diff(codes[by_group])) + 1
        groups = np.split(kept[by_group], ends) if len(kept) else []
        lost = [float(self.lost_us[lines].sum()) for lines in groups]
        order = sorted(range(len(groups)), key=lambda i: (-lost[i], groups[i][0]))
        return [self._ranked(rank, groups[i], lost[i]) for rank, i in enumerate(order, 1)]

    def _ranked(self, rank: int, lines: Positions, lost_us: float) -> RankedKernel:
        us, share, cell = self.duration_us[lines], self.shares.share[lines], self.table.cell
        longest = int(lines[int(np.argmax(us))])
        return RankedKernel(
            rank=rank,
            line=longest,
            kernel_type=str(cell(TYPE, longest)),
            shapes=str(cell(INPUT_SHAPES, longest)),
            dtypes=str(cell(INPUT_DTYPES, longest)),
            launches=int(self.launches[lines].sum()),
            duration_us=float(us.sum()),
            captured=bool(cell(launch_table.CAPTURED, longest)),
            device=str(cell(launch_table.DEVICE, longest)),
            by=str(cell(launch_table.BY, longest)),
            share=float(us.sum()) / self.kernel_us,
            roofline=float((us * share).sum() / us.sum()) if np.isfinite(share).all() else None,
            lost_us=lost_us,
            verdict=self.verdicts.first[longest] or None,
        )

    def findings(self, line: int) -> list[KernelFinding]:
        """Returns all verdicts on a kernel, the most important one first."""
        holding = [rule for verdict, rule in verdict_rules().items() if self.verdicts.holds[verdict][line]]
        return [KernelFinding(rule, self._cells(line, rule)) for rule in holding]

    def _cells(self, line: int, rule: VerdictRule) -> Mapping[str, str | float]:
        own = {ROOFLINE: self.shares.share, L2_HIT_RATE: self.verdicts.l2_hit_rate}
        cells: dict[str, str | float] = {}
        for name in rule.columns:
            value = float(own[name][line]) if name in own else self.table.cell(name, line)
            if value != "" and value == value:
                cells[self.table.source_name(name, line)] = value if isinstance(value, str) else float(value)
        if rule.verdict is KernelVerdict.NOT_ENOUGH_WORK:
            cube = self.peaks.cube_cores if self.table.cell(ACCELERATOR_CORE, line) in ("AI_CORE", "MIX_AIC") else None
            cells["cores"] = cube or self.peaks.vector_cores or 0
        return cells

    def counters(self, line: int) -> dict[str, float]:
        """Returns the counters of a kernel that have a number, by the file's names."""
        values = {name: float(self.table.cell(name, line)) for name in self.table.counters}
        return {self.table.source_name(name, line): value for name, value in values.items() if value == value}

    def ideals(self, line: int) -> dict[str, tuple[float | None, str]]:
        """Returns the four figures that the article on bottlenecks wants of a kernel, each with its ideal value.

        A figure is None if its counter is missing; without counters of the bandwidth it is that of the least bytes. No
        tool has these ideals, and they decide nothing.
        """
        of_memory = [self.table.cell(name, line) for name in self.table.counters if _OF_MEMORY.fullmatch(name)]
        gbps = float(np.nansum(of_memory)) if np.isfinite(of_memory).any() else float(self.shares.gbps[line])

        def cell(name: str, factor: float) -> float:
            return float(self.table.frame[name].iloc[line]) * factor if name in self.table.frame else math.nan

        figures = {
            "AICORE compute efficiency (%)": (cell("cube_utilization(%)", 1), "> 60"),
            "L2 cache hit rate (%)": (float(self.verdicts.l2_hit_rate[line]) * 100, "> 85"),
            "vector compute ratio (%)": (cell("aiv_vec_ratio", 100), "> 90"),
            "memory bandwidth used (GB/s)": (gbps, "> 300"),
        }
        return {name: (None if math.isnan(value) else value, ideal) for name, (value, ideal) in figures.items()}

    @cached_property
    def sources(self) -> Mapping[str, int]:
        """Where durations are from, as `captured on Ascend910B3`, with the rows of each; the most frequent first."""
        names = [
            name
            for name in (launch_table.CAPTURED, launch_table.DEVICE, launch_table.BY)
            if name in self.table.frame.columns
        ]
        counts = Counter(self.table.frame[self.is_kernel][names].itertuples(index=False, name=None))
        return {origin_text(*each): count for each, count in counts.most_common()}

    def place(self, line: int) -> str:
        """Returns where a kernel is from: file and line, or start on the profiler's clock; or the id of a row."""
        if not self.table.is_capture:
            return str(self.table.cell(launch_table.ROW, line))
        file, at = str(self.table.cell(launch_table.FILE, line)), int(self.table.cell(launch_table.LINE, line))
        return f"{file}:{at}" if file.lower().endswith(".csv") else f"{file} at {at // 1000}.{at % 1000:03} us"

    @cached_property
    def counts(self) -> Mapping[KernelVerdict, int]:
        """The number of kernels of which each verdict holds, in the order of importance; without zeros."""
        counts = {verdict: int(self.verdicts.holds[verdict].sum()) for verdict in verdict_rules()}
        return {verdict: count for verdict, count in counts.items() if count}

    @cached_property
    def timelines(self) -> list[CapturedTimeline]:
        """The timeline of each device of each capture; none of captures without start times, and of databases.

        Of captures that were joined the first one has it.
        """
        frame = self.table.frame
        if launch_table.START_US not in frame:
            return []
        known = frame[frame[launch_table.START_US].notna()]
        if self.table.joined:
            known = known[known[launch_table.FILE] == frame[launch_table.FILE].iloc[0]]
        groups = known.groupby(
            [name for name in (launch_table.FILE, DEVICE_ID) if name in known], sort=False, dropna=False
        )
        return [
            _timeline(" ".join(map(str, key)), own.sort_values(launch_table.START_US, kind="stable"))
            for key, own in groups
        ]

    @property
    def idle_us(self) -> float:
        """The time without a kernel; of captures that tell what waits for the host, only that."""
        launches = [each.launches for each in self.timelines]
        return float(sum(each["host_us"].fillna(each["idle_us"]).sum() for each in launches))

    def us_of(self, verdict: KernelVerdict) -> float:
        """Returns the sum of the durations of the kernels of which a verdict holds."""
        return float(self.duration_us[self.verdicts.holds[verdict]].sum())

    def untested(self) -> dict[VerdictRule, list[str]]:
        """Returns the rules whose counters the table lacks, with these counters."""
        lacking: dict[VerdictRule, list[str]] = {}
        for rule in verdict_rules().values():
            columns = [name for name in rule.columns if name not in _NO_COUNTERS]
            if rule.counters and not any(map(self.table.has, columns)):
                lacking[rule] = [name for name in columns if name != QUALITY]
        return lacking


def _timeline(capture: str, launches: pd.DataFrame) -> CapturedTimeline:
    unknown = pd.Series(np.nan, launches.index)
    duration_us, wait_us, queued_us = (launches.get(name, unknown) for name in (DURATION, WAIT, launch_table.QUEUED_US))
    # Only waits that the profiler computed tell of rows that are missing.
    wait_us = wait_us if queued_us.isna().all() else unknown
    start_ns = np.round(launches[launch_table.START_US].to_numpy(np.float64) * 1000).astype(np.int64)
    times = Timeline(start_ns, *(each.to_numpy(np.float64) for each in (duration_us, wait_us, queued_us)))
    words = launches[STEP].astype(str).str.strip() if STEP in launches else pd.Series("", launches.index)
    words = words.where(~words.str.upper().isin(EMPTY_WORDS), "")
    steps = numbered_steps(words.tolist())
    opens = np.diff(steps, prepend=steps[0]) > 0
    labels = [word for word in dict.fromkeys(words) if word] or [""]
    found = pd.DataFrame(
        {
            "type": launches[TYPE],
            "step": np.array(labels, dtype=object)[steps],
            "phase": "all",
            "start_us": launches[launch_table.START_US],
            "us": duration_us,
            "busy_us": times.busy_us,
            "idle_us": times.idle_us,
            "gaps_us": np.where(opens, 0, times.idle_us),
            "before_us": np.where(opens, times.idle_us, 0),
            "host_us": np.nan if times.launch_bound is None else np.where(times.launch_bound, times.idle_us, 0),
        }
    )
    if labels != [""]:
        kernels = found[["step"]].assign(type=launches[TYPE], shapes=launches[INPUT_SHAPES]).drop_duplicates()
        by_step = kernels.groupby("step", sort=False)
        phases = {step: _phase(zip(own["type"], own["shapes"], strict=True)) for step, own in by_step}
        found["phase"] = found["step"].map(phases)
    return CapturedTimeline(capture, found, times.is_excerpt)


def _phase(kernels: Iterable[tuple[str, str]]) -> str:
    try:
        # A package of its own, which may have been deleted.
        from opatlas.outer.superkernel.structure import StepPhase, phase_of
    except ModuleNotFoundError:
        return "steps"
    phase = phase_of(kernels)
    return "steps" if phase is StepPhase.UNKNOWN else str(phase)


def origin_text(captured: bool, device: str = "", by: str = "") -> str:
    """Returns whether a duration was captured or replayed, on which device, and by what."""
    where = f" on {device}" if device else " on an unknown device"
    return f"captured{where}" if captured else f"replayed{where}" + (f" by {by}" if by else "")


def diagnose(place: Path, peaks: DevicePeaks | None = None) -> Diagnosis:
    """Returns the diagnosis of a database or of captures.

    Args:
        peaks: of the device; None for those of a database's device, by its data sheet.

    Raises:
        OpAtlasError: the path has neither, or none of its files can be read.
    """
    return Diagnosis(launch_table.read_kernels(place), peaks)
