"""A diagnosis, its timeline, and one of its kernels, as tables and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from opatlas.capture.capture_reader import DURATION, NAME
from opatlas.errors import UsageError
from opatlas.formats import microseconds, percent
from opatlas.grouping import grouped
from opatlas.row.columns import BASE, KERNEL_NAMES, MICROBENCH_DEVICE_KERNELS, SPAN
from opatlas.show.result import Column, Fields, Part, Table

from .diagnosis import CapturedTimeline, Diagnosis, KernelFinding, RankedKernel, origin_text
from .verdicts import KernelVerdict, limit, verdict_rules

T = TypeVar("T")
#: The gaps of a timeline that are told, and the kernels of the ranking whose verdicts come first.
GAPS, FIRST = 10, 10
#: Shapes without the empty slots.
SHAPES = Column("shapes", lambda cell: "; ".join(filter(None, cell.split(";"))))


def chosen(ranking: Sequence[T], rank: int) -> T:
    """Returns the element of a rank, from 1. Raises UsageError."""
    if rank > len(ranking):
        raise UsageError(f"--row {rank}: the ranking has no such kernel: choose 1 to {len(ranking)}")
    return ranking[rank - 1]


def diagnosis_parts(found: Diagnosis) -> Iterator[Part]:
    """Yields facts, the ranking, verdicts with what to do, the timeline, and what the verdicts rest on."""
    yield from _facts(found)
    yield _ranking(found)
    yield _verdicts(found)
    yield from _timeline_tables(found)
    if not found.table.is_capture:
        yield Table(("durations", "rows"), list(found.sources.items()), detail=True)
    yield peak_fields(found)
    untested = grouped((rule.counters, rule.verdict) for rule in found.untested())
    groups = [(counters, ", ".join(verdicts)) for counters, verdicts in untested.items()]
    yield Table(("counters of", "verdicts"), groups, "not tested, without counters", detail=True)


def _verdicts(found: Diagnosis) -> Table:
    """Returns the verdicts with what to do: those of the first kernels of the ranking lead."""
    launches = Counter(found.verdicts.first.tolist())
    first = dict.fromkeys(each.verdict for each in found.ranking[:FIRST] if each.verdict is not None)
    if found.ranking and found.idle_us > found.ranking[0].lost_us:
        first = {KernelVerdict.HOST_BOUND: None, **first}
    counts = found.counts
    rows = [
        (
            *(verdict, counts.get(verdict), found.us_of(verdict) / found.kernel_us, launches[verdict]),
            verdict_rules()[verdict].advice.what,
        )
        for verdict in dict.fromkeys([*first, *counts])
    ]
    of = "launches" if found.table.is_capture else "rows"
    columns = ("verdict", of, Column("time", percent), Column("first", wide=True), "what to do")
    return Table(columns, rows, "verdicts, and what to do first")


def _facts(found: Diagnosis) -> Iterator[Fields]:
    table, verdicts = found.table, found.verdicts
    counted = "" if table.is_capture else f"counted in {found.counted:,} rows"
    collectives = int(verdicts.is_collective.sum())
    yield Fields(
        {
            "device": table.device or None,
            "rows": None if table.is_capture else int(found.is_kernel.sum()),
            "launches": (found.kernel_launches, counted) if table.is_capture or found.counted else None,
            "duration(us)": microseconds(found.kernel_us),
            "idle(us)": microseconds(sum(float(each.launches["idle_us"].sum()) for each in found.timelines))
            if found.timelines
            else None,
            "collectives": (collectives, f"{microseconds(found.collective_us)} us, not judged")
            if collectives
            else None,
        },
        title=str(table.place),
    )
    waits = f"waits > {limit(KernelVerdict.HOST_BOUND, 'us'):g} us"
    long_waits = (int(verdicts.long_waits.sum()), f"{percent(verdicts.wait_share)} of the time")
    facts = {
        "joined": table.joined or None,
        "left out": table.left_out or None,
        waits: None if math.isnan(verdicts.wait_share) else long_waits,
    }
    yield Fields(facts, "counters and waits", detail=True)


def peak_fields(found: Diagnosis) -> Fields:
    """Returns the peaks and the cores of the device."""
    peaks = found.peaks
    return Fields(
        {
            "memory(GB/s)": peaks.peak.bandwidth_gbps,
            **{f"{dtype}(T/s)": rate for dtype, rate in peaks.peak.tera_ops.items()},
            "cube cores": peaks.cube_cores and (peaks.cube_cores, peaks.origin_of_cores),
            "vector cores": peaks.vector_cores and (peaks.vector_cores, peaks.origin_of_cores),
        },
        title=f"peaks: {peaks.origin or 'not known, give --peaks'}",
        detail=True,
    )


def _ranking(found: Diagnosis) -> Table:
    known = any(each.lost_is_known for each in found.ranking)
    columns = (
        *("#", "kernel type", SHAPES, Column("launches", wide=not found.counted)),
        *("time(us)", Column("share", percent, wide=known)),
        *(Column("roofline", percent, wide=not known), Column("lost(us)", microseconds, wide=not known), "verdict"),
    )
    rows = [
        (
            *(each.rank, each.kernel_type, each.shapes, each.launches, each.duration_us, each.share, each.roofline),
            *(each.lost_us if each.lost_is_known else None, each.verdict),
        )
        for each in found.ranking
    ]
    of_all = (
        "; all of it counts where the roofline is not known"
        if not all(each.lost_is_known for each in found.ranking)
        else ""
    )
    title = f"most time{f' lost{of_all}' if known else ''} (--row N shows all about a kernel)"
    return Table(columns, rows, title)


def _timeline_tables(found: Diagnosis) -> Iterator[Part]:
    """Yields for each device busy and idle time by phase, and the longest gaps."""
    timelines = [timeline_as_json(found, each) for each in found.timelines]
    several = Column("capture", wide=len(timelines) < 2)
    title = "timeline; before: gaps before steps; host: gaps in which the host launched the next kernel"
    shown = {
        "phases": (title, ("phase", "steps", "launches", "busy_us", "gaps_us", "before_us", "host_us", "longest_us")),
        "gaps": ("longest gaps", ("idle_us", "after", "before", "step", "host_us", "line")),
    }
    for part, (name, keys) in shown.items():
        rows = [(each["capture"], *(row[key] for key in keys)) for each in timelines for row in each[part]]
        columns = [Column(key.replace("_us", "(us)"), _us if key.endswith("_us") else str) for key in keys]
        yield Table([several, *columns], rows, name, detail=True)
    excerpts = [each["capture"] for each in timelines if each["is_excerpt"]]
    yield from (f"{capture} is an excerpt: gaps are of missing rows" for capture in excerpts)


def _us(value: float) -> str:
    return "" if math.isnan(value) else microseconds(value)


def timeline_as_json(found: Diagnosis, of: CapturedTimeline) -> dict[str, Any]:
    """Returns times by phase and step, and the longest gaps of a timeline, in microseconds."""
    gaps = of.longest_gaps(GAPS)
    return {
        "capture": of.capture,
        "is_excerpt": of.is_excerpt,
        "span_us": float(of.launches[["busy_us", "idle_us"]].to_numpy().sum()),
        "phases": of.times("phase").to_dict("records"),
        "steps": of.times("step").to_dict("records"),
        "gaps": gaps.assign(line=list(map(found.place, gaps.index))).to_dict("records"),
    }


def kernel_parts(found: Diagnosis, ranked: RankedKernel) -> Iterator[Part]:
    """Yields everything about one kernel of the ranking: its verdicts with rule, advice and APIs; counters, cells."""
    line = ranked.line
    cells = found.table.frame.iloc[line]
    share = float(found.shares.share[line])
    names = (NAME, *BASE, KERNEL_NAMES, MICROBENCH_DEVICE_KERNELS, SPAN)
    yield Fields(
        {
            "duration(us)": microseconds(float(cells[DURATION])),
            "launches": f"{ranked.launches:,}",
            "time(us)": (microseconds(ranked.duration_us), f"{percent(ranked.share)} of all"),
            "lost(us)": (microseconds(ranked.lost_us), "" if ranked.lost_is_known else "at most"),
            "roofline": None if math.isnan(share) else (percent(share), found.shares.bound(line)),
            "shapes": SHAPES.text(ranked.shapes),
            "longest launch" if found.table.is_capture else "row": found.place(line),
            "source": None if found.table.is_capture else origin_text(ranked.captured, ranked.device, ranked.by),
        },
        title=f"{ranked.rank} {ranked.kernel_type}",
    )
    for number, each in enumerate(found.findings(line)):
        yield _finding(each, found.table.device, detail=number > 0)
    told = {name: str(cell) for name in names if (cell := cells.get(name, "")) != "" and cell == cell}
    yield Fields(told, "cells", detail=True)
    ideals = [(name, value, ideal) for name, (value, ideal) in found.ideals(line).items()]
    counters = [(name, value, "") for name, value in found.counters(line).items()]
    yield Table(("counter", "value", "ideal of the article"), [*ideals, *counters])


def _finding(finding: KernelFinding, device: str, *, detail: bool) -> Fields:
    rule = finding.rule
    cells = {name: cell if isinstance(cell, str) else f"{cell:.6g}" for name, cell in finding.cells.items()}
    do = {"do": rule.advice.what, **rule.advice.apis_of(device), "article": rule.advice.document or None}
    return Fields({**cells, "rule": rule.test, "source": rule.source, **do}, str(rule.verdict), detail)


def diagnosis_as_json(found: Diagnosis) -> dict[str, Any]:
    """Returns facts, verdicts, rules without counters, and the whole ranking."""
    table, peaks, verdicts = found.table, found.peaks, found.verdicts
    return {
        "place": str(table.place),
        "kind": "capture" if table.is_capture else "database",
        "device": table.device,
        "kernels": int(found.is_kernel.sum()),
        "launches": found.kernel_launches,
        "with_counted_launches": found.counted,
        "durations": found.sources,
        "left_out": table.left_out,
        "joined": table.joined,
        "kernel_us": found.kernel_us,
        "collectives": int(verdicts.is_collective.sum()),
        "collective_us": found.collective_us,
        "peaks": {
            "origin": peaks.origin,
            "bandwidth_gbps": peaks.peak.bandwidth_gbps,
            "tera_ops": dict(peaks.peak.tera_ops),
            "cube_cores": peaks.cube_cores,
            "vector_cores": peaks.vector_cores,
            "origin_of_cores": peaks.origin_of_cores,
        },
        "waits": {"long": int(verdicts.long_waits.sum()), "share": verdicts.wait_share},
        "verdicts": {
            verdict: {"kernels": count, "duration_us": found.us_of(verdict)} for verdict, count in found.counts.items()
        },
        "untested": [
            {"verdict": rule.verdict, "metric_group": rule.counters, "counters": lacking}
            for rule, lacking in found.untested().items()
        ],
        "timelines": [timeline_as_json(found, each) for each in found.timelines],
        "ranking": [ranked_as_json(found, each) for each in found.ranking],
        "problems": table.problems,
    }


def ranked_as_json(found: Diagnosis, ranked: RankedKernel) -> dict[str, Any]:
    """Returns a kernel of the ranking with all findings."""
    return {
        **asdict(ranked),
        "line": found.place(ranked.line),
        "lost_is_known": ranked.lost_is_known,
        "findings": [
            {
                "verdict": rule.verdict,
                "test": rule.test,
                "limits": rule.limits,
                "source": rule.source,
                "cells": finding.cells,
                "what": rule.advice.what,
                "apis": rule.advice.apis,
            }
            for finding in found.findings(ranked.line)
            for rule in (finding.rule,)
        ],
        "counters": found.counters(ranked.line),
    }
