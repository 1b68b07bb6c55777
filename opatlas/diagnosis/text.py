"""The diagnosis on the terminal, and as JSON."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from opatlas.capture.capture_reader import DURATION
from opatlas.diagnosis.advice import advice
from opatlas.diagnosis.diagnosis import ROOFLINE, Diagnosis, KernelFinding, RankedKernel, origin_text
from opatlas.diagnosis.kernels import NAME
from opatlas.diagnosis.rules import KernelVerdict, VerdictRule, limit
from opatlas.model.schema import BASE, KERNEL_NAMES, MICROBENCH_DEVICE_KERNELS, SPAN
from opatlas.report.row_summary import microseconds_text
from opatlas.text import COLUMNS, align_numbers, percent_text, pluralize, shorten, wrap

#: Rows of the ranking that the terminal shows.
SHOWN = 10
#: The width of the names of facts, and the number of counters that a line names.
_NAME, _COLUMNS_SHOWN = 10, 4
_SOURCES_SHOWN = 3
_MARGIN = " " * _NAME


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the lines about a capture or a database: what was read, the verdicts, and the most time lost."""
    yield from _facts(diagnosis)
    yield ""
    yield from _verdict_lines(diagnosis)
    if untested := diagnosis.untested():
        yield ""
        yield from _untested_lines(diagnosis, untested)
    yield ""
    yield from _ranking_lines(diagnosis)


def _facts(diagnosis: Diagnosis) -> Iterator[str]:
    table, peaks, verdicts = diagnosis.table, diagnosis.peaks, diagnosis.verdicts
    word = "launch" if table.is_capture else "row"
    count = int((~verdicts.is_collective).sum())
    yield _fact("capture" if table.is_capture else "database", str(table.place))
    collectives = int(verdicts.is_collective.sum())
    without = f"; without {collectives:,} of collectives ({microseconds_text(diagnosis.collective_us)})"
    counted = diagnosis.counted if not table.is_capture else 0
    launches = int(diagnosis.launches[~verdicts.is_collective].sum())
    yield _fact(
        "kernels",
        pluralize(count, word, f"{word}es" if table.is_capture else "")
        + (f" with {pluralize(launches, 'launch', 'launches')}" if counted else "")
        + f", {microseconds_text(diagnosis.kernel_us)}"
        + (without if collectives else ""),
    )
    if not table.is_capture:
        yield _fact("durations", _sources_text(diagnosis))
        each = "each row counts as one launch: no capture counts them"
        others = f"; the other {pluralize(count - counted, 'row')} count once" if counted < count else ""
        yield _fact("weights", f"the launches of captures, in {pluralize(counted, 'row')}{others}" if counted else each)
    if table.left_out:
        yield _fact("left out", f"{table.left_out}: durations of two devices do not add")
    if table.joined:
        yield _fact("joined", table.joined)
    yield _fact("peaks", _peaks_text(diagnosis))
    if peaks.cube_cores or peaks.vector_cores:
        yield _fact(
            "cores",
            f"{peaks.cube_cores or 'unknown'} cube, {peaks.vector_cores or 'unknown'} vector ({peaks.origin_of_cores})",
        )
    if table.is_capture or table.counters:
        yield _fact("counters", ", ".join(diagnosis.metric_groups) or "none")
    if diagnosis.with_ratios:
        unbound = f"{diagnosis.unbound:,} of {diagnosis.with_ratios:,} with ratios bound by no pipe"
        pipes = ", ".join(f"{pipe.removesuffix('_ratio')} {number:,}" for pipe, number in diagnosis.pipes.items())
        yield _fact("pipes", f"{unbound}; busiest pipe of the others: {pipes or 'none'}")
        over, share = diagnosis.memory_over_compute
        half = limit(KernelVerdict.MEMORY_BOUND, "share_of_time")
        judged = "memory bound as a whole" if share > half else "not memory bound as a whole"
        of_time = f"{percent_text(share)} of the time (> {percent_text(half, 0)}: {judged})"
        yield _fact("memory", f"mte2 / max(vec, mac) > 1 in {over:,}, {of_time}")
    if not math.isnan(verdicts.wait_share):
        host = limit(KernelVerdict.HOST_BOUND, "share")
        late = pluralize(int(verdicts.long_waits.sum()), "launch", "launches")
        waits = f"waits > {limit(KernelVerdict.HOST_BOUND, 'us'):g} us before {late}"
        judged = "host-bound" if verdicts.wait_share > host else "not host-bound"
        share_text = f"{percent_text(verdicts.wait_share)} of the time is waiting"
        yield _fact("waits", f"{waits}; {share_text} (> {percent_text(host, 0)}: {judged})")


def _sources_text(diagnosis: Diagnosis) -> str:
    sources = [f"{count:,} {text}" for text, count in diagnosis.sources.items()]
    more = sum(list(diagnosis.sources.values())[_SOURCES_SHOWN:])
    return ", ".join(sources[:_SOURCES_SHOWN] + ([f"{more:,} of other sources"] if more else []))


def _peaks_text(diagnosis: Diagnosis) -> str:
    peaks = diagnosis.peaks
    if not peaks.are_known:
        return "not known: time lost is at most the duration (--peaks FILE)"
    rates = [f"{peaks.peak.bandwidth_gbps:,.0f} GB/s"] if peaks.peak.bandwidth_gbps else []
    rates += [f"{dtype} {rate:,g} T/s" for dtype, rate in peaks.peak.tera_ops.items() if "FLOAT8" not in dtype]
    return f"{', '.join(rates)} ({peaks.origin})"


def _fact(name: str, text: str) -> str:
    """Returns a name and a text that continues under itself."""
    return textwrap.fill(
        f"{name:{_NAME}}{text}", COLUMNS, subsequent_indent=_MARGIN, break_long_words=False, break_on_hyphens=False
    )


def _verdict_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields a table of the verdicts: how many kernels, and the share of the time; a kernel may have several."""
    word = "launches" if diagnosis.table.is_capture else "rows"
    rows = [("verdict", word, "time", "first")]
    firsts = Counter(diagnosis.verdicts.first.tolist())
    for verdict, count in diagnosis.counts.items():
        rows.append(
            (
                str(verdict),
                f"{count:,}",
                percent_text(diagnosis.us_of(verdict) / diagnosis.kernel_us),
                f"{firsts[verdict]:,}",
            )
        )
    if len(rows) == 1:
        yield "no rule holds of any kernel"
        return
    yield from align_numbers(rows, least=24)
    hits = diagnosis.verdicts.l2_hit_rate
    if np.isfinite(hits).any():
        low, article = (limit(KernelVerdict.L2_MISSES, name) for name in ("ratio", "article_ratio"))
        by_tool = f"{int((hits < low).sum()):,} below {percent_text(low, 0)} (npu-mfu-analyzer)"
        by_article = f"{int((hits < article).sum()):,} below {percent_text(article, 0)} (article)"
        yield wrap(f"L2 hit rate: {by_tool}, {by_article}; neither decides", indent=0)


def _untested_lines(diagnosis: Diagnosis, untested: Mapping[VerdictRule, Sequence[str]]) -> Iterator[str]:
    """Yields which verdicts lack which counters."""
    if not diagnosis.table.counters and not diagnosis.table.is_capture:
        names = ", ".join(rule.verdict for rule in untested)
        yield wrap(f"not tested, without an NPU profiler's counters: {names}", indent=0)
        return
    yield "not tested, since their counters are lacking:"
    for group in dict.fromkeys(rule.counters for rule in untested):
        rules = [rule for rule in untested if rule.counters == group]
        counters = list(dict.fromkeys(name for rule in rules for name in untested[rule]))
        more = ", ..." if len(counters) > _COLUMNS_SHOWN else ""
        public = "" if rules[0].published else "; no public capture has them"
        names = ", ".join(rule.verdict for rule in rules)
        yield wrap(f"{names}: {', '.join(counters[:_COLUMNS_SHOWN])}{more} ({group}{public})", indent=2)


def _ranking_lines(diagnosis: Diagnosis) -> Iterator[str]:
    ranking = diagnosis.ranking[:SHOWN]
    if not ranking:
        yield "no kernels but collectives, which get no verdict"
        return
    captured = diagnosis.table.is_capture
    has_launches = diagnosis.counted > 0
    counts = [["launches"] if has_launches else [], *([f"{each.launches:,}"] * has_launches for each in ranking)]
    cells: list[tuple[str, ...]] = [("the most time lost", "time", "share", "roofline", "lost")]
    cells += [(f"{each.rank:>2} {each.kernel_type}", *_ranked_cells(each)) for each in ranking]
    rows = [(name, *count, *others) for (name, *others), count in zip(cells, counts, strict=True)]
    width = COLUMNS - sum(2 + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])
    header, *lines = align_numbers([(shorten(name, width), *others) for name, *others in rows], least=18)
    yield header
    for each, line in zip(ranking, lines, strict=True):
        yield line
        yield shorten(f"   {each.verdict or 'no verdict'}: {each.shapes}", COLUMNS)
    if not captured:
        yield ""
        yield from _kernel_type_lines(diagnosis)
    if any(not each.lost_is_known for each in ranking):
        yield ""
        yield wrap("<: at most; the peaks of the device, or the work of the kernel, are not known", indent=0)
    first = dict.fromkeys(each.verdict for each in ranking if each.verdict is not None)
    if first:
        yield ""
        yield "what to do first (--row N shows rule, cells and API)"
    for verdict in first:
        yield wrap(f"{verdict}: {advice()[verdict].what}", indent=2)


def _kernel_type_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the kernel types that lose the most, with the verdict that most of their time has."""
    by_type: dict[str, list[RankedKernel]] = {}
    for each in diagnosis.ranking:
        by_type.setdefault(each.kernel_type, []).append(each)
    rows = [("by kernel type", "rows", "time", "lost", "most of it is")]
    for name in sorted(by_type, key=lambda name: -sum(each.lost_us for each in by_type[name]))[:SHOWN]:
        found = by_type[name]
        times: dict[str, float] = {}
        for each in found:
            verdict = str(each.verdict or "no verdict")
            times[verdict] = times.get(verdict, 0.0) + each.duration_us
        mark = "" if all(each.lost_is_known for each in found) else "<"
        us = microseconds_text(sum(each.duration_us for each in found))
        lost = microseconds_text(sum(each.lost_us for each in found))
        rows.append((shorten(name, 24), f"{len(found):,}", us, f"{mark}{lost}", max(times, key=times.__getitem__)))
    yield from align_numbers(rows, least=24)


def _ranked_cells(each: RankedKernel) -> tuple[str, ...]:
    roofline = "" if each.roofline is None else percent_text(each.roofline, 0)
    lost = ("" if each.lost_is_known else "<") + microseconds_text(each.lost_us)
    return microseconds_text(each.duration_us), percent_text(each.share), roofline, lost


def row_lines(diagnosis: Diagnosis, ranked: RankedKernel) -> Iterator[str]:
    """Yields everything about one kernel of the ranking: cells, verdicts with rule and source, advice with API."""
    line = ranked.line
    row = diagnosis.table.frame.iloc[line]
    yield _fact(f"{ranked.rank}", ranked.kernel_type)
    if diagnosis.table.is_capture:
        longest = f"the longest, {microseconds_text(float(row[DURATION]))}, is {diagnosis.place(line)}"
        yield _fact(
            "launches",
            f"{ranked.launches:,}, {microseconds_text(ranked.duration_us)}, {percent_text(ranked.share)}; {longest}",
        )
    else:
        yield _fact("row", diagnosis.place(line))
        times = f" x {pluralize(ranked.launches, 'launch', 'launches')}" if ranked.launches > 1 else ""
        yield _fact("duration", f"{microseconds_text(float(row[DURATION]))}{times}, {percent_text(ranked.share)}")
        yield _fact("source", origin_text(ranked.captured, ranked.device, ranked.by))
    for name in (NAME, *BASE, KERNEL_NAMES, MICROBENCH_DEVICE_KERNELS, SPAN):
        cell = row.get(name, "")
        if cell != "" and cell == cell:
            yield from textwrap.wrap(
                f"{name}: {_value(name, cell)}", COLUMNS, initial_indent=_MARGIN, subsequent_indent=_MARGIN
            )
    yield _fact("roofline", roofline_text(diagnosis, ranked))
    findings = diagnosis.findings(line)
    for finding in findings:
        yield ""
        yield from _finding_lines(finding)
    if not findings:
        yield ""
        yield "no rule holds"
    yield ""
    yield from _counter_lines(diagnosis, line)


def roofline_text(diagnosis: Diagnosis, ranked: RankedKernel) -> str:
    """Returns the share of the roofline of a kernel, and the time that its launches lose."""
    share = diagnosis.shares.share[ranked.line]
    lost = f"time lost: {'' if ranked.lost_is_known else 'at most '}{microseconds_text(ranked.lost_us)}"
    if math.isnan(share):
        return f"not known; {lost}"
    bound = "arithmetic" if diagnosis.shares.by_arithmetic[ranked.line] else "memory"
    gbps = diagnosis.shares.gbps[ranked.line]
    return f"{percent_text(share)} of the peak of {bound}, {gbps:,.0f} GB/s; {lost}"


def _finding_lines(finding: KernelFinding) -> Iterator[str]:
    rule, entry = finding.rule, advice()[finding.rule.verdict]
    yield _fact("verdict", f"{rule.verdict}{'' if rule.decides else ' (decides nothing)'}: {finding_cells(finding)}")
    yield _fact("rule", rule.test)
    yield _fact("source", rule.source)
    yield _fact("do", entry.what)
    for language, api in entry.apis.items():
        yield _fact("", f"{language}: {api}")
    if entry.document:
        yield _fact("", f"article: {entry.document}")


def finding_cells(finding: KernelFinding) -> str:
    """Returns the cells that a verdict comes from: `aiv_mte2_ratio 0.93, aiv_vec_ratio 0.2`."""
    return ", ".join(f"{name} {_value(name, value)}" for name, value in finding.cells.items())


def _counter_lines(diagnosis: Diagnosis, line: int) -> Iterator[str]:
    """Yields the counters, and beside some of them the ideal value of the article, which decides nothing."""
    values = [(name, f"{value:g}", "") for name, value in diagnosis.counters(line).items()]
    ideals = [
        (each.name, "" if each.value is None else f"{each.value:.3g}", each.ideal)
        for each in article_ideals(diagnosis, line)
    ]
    yield from align_numbers([("counter", "value", "article"), *ideals, *values], least=34)
    yield wrap(
        "article: ideal values of an article on bottlenecks of NPU kernels. No tool has them, and they decide nothing",
        indent=0,
    )


@dataclass(frozen=True)
class ArticleIdeal:
    """A figure of the article: its value for a kernel, None if the counter is missing, and its ideal value."""

    name: str
    value: float | None
    ideal: str


def article_ideals(diagnosis: Diagnosis, line: int) -> list[ArticleIdeal]:
    """Returns the four figures that the article on bottlenecks wants of a kernel."""
    row = diagnosis.table.frame.iloc[line]

    def cell(name: str, factor: float = 1.0) -> float | None:
        value = row.get(name, math.nan)
        return None if value != value else float(value) * factor

    hit_rate, gbps = float(diagnosis.verdicts.l2_hit_rate[line]), float(diagnosis.shares.gbps[line])
    return [
        ArticleIdeal("AICORE compute efficiency (%)", cell("cube_utilization(%)"), "> 60"),
        ArticleIdeal("L2 cache hit rate (%)", None if math.isnan(hit_rate) else hit_rate * 100, "> 85"),
        ArticleIdeal("vector compute ratio (%)", cell("aiv_vec_ratio", 100), "> 90"),
        ArticleIdeal("memory bandwidth used (GB/s)", None if math.isnan(gbps) else gbps, "> 300"),
    ]


def _value(name: str, value: str | float) -> str:
    if isinstance(value, str):
        return value
    return percent_text(value) if name == ROOFLINE else f"{value:.6g}"


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Returns the diagnosis as a JSON value: facts, verdicts, rules without counters, and the whole ranking."""
    verdicts = diagnosis.verdicts
    over, share = diagnosis.memory_over_compute
    return {
        "place": str(diagnosis.table.place),
        "kind": "capture" if diagnosis.table.is_capture else "database",
        "device": diagnosis.table.device,
        "kernels": int((~verdicts.is_collective).sum()),
        "launches": int(diagnosis.launches[~verdicts.is_collective].sum()),
        "with_counted_launches": diagnosis.counted,
        "durations": dict(diagnosis.sources),
        "left_out": diagnosis.table.left_out,
        "joined": diagnosis.table.joined,
        "kernel_us": diagnosis.kernel_us,
        "collectives": int(verdicts.is_collective.sum()),
        "collective_us": diagnosis.collective_us,
        "peaks": {
            "origin": diagnosis.peaks.origin,
            "bandwidth_gbps": diagnosis.peaks.peak.bandwidth_gbps,
            "tera_ops": dict(diagnosis.peaks.peak.tera_ops),
            "cube_cores": diagnosis.peaks.cube_cores,
            "vector_cores": diagnosis.peaks.vector_cores,
            "origin_of_cores": diagnosis.peaks.origin_of_cores,
        },
        "metric_groups": diagnosis.metric_groups,
        "with_ratios": diagnosis.with_ratios,
        "unbound": diagnosis.unbound,
        "pipes": dict(diagnosis.pipes),
        "mte2_over_compute": {"kernels": over, "share_of_time": share},
        "waits": {"long": int(verdicts.long_waits.sum()), "share": _finite(verdicts.wait_share)},
        "verdicts": {
            str(verdict): {"kernels": count, "duration_us": diagnosis.us_of(verdict)}
            for verdict, count in diagnosis.counts.items()
        },
        "untested": [
            {
                "verdict": str(rule.verdict),
                "metric_group": rule.counters,
                "counters": lacking,
                "public_capture": rule.published,
            }
            for rule, lacking in diagnosis.untested().items()
        ],
        "ranking": [ranked_json(diagnosis, each) for each in diagnosis.ranking],
        "problems": list(diagnosis.table.problems),
    }


def ranked_json(diagnosis: Diagnosis, ranked: RankedKernel) -> dict[str, Any]:
    """Returns a kernel of the ranking as a JSON value, with all findings."""
    content = asdict(ranked)
    content |= {
        "line": diagnosis.place(ranked.line),
        "verdict": ranked.verdict and str(ranked.verdict),
        "lost_is_known": ranked.lost_is_known,
        "findings": [
            {
                "verdict": str(finding.rule.verdict),
                "test": finding.rule.test,
                "limits": dict(finding.rule.limits),
                "source": finding.rule.source,
                "cells": dict(finding.cells),
                "what": advice()[finding.rule.verdict].what,
                "apis": dict(advice()[finding.rule.verdict].apis),
            }
            for finding in diagnosis.findings(ranked.line)
        ],
        "counters": diagnosis.counters(ranked.line),
    }
    return content


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value
