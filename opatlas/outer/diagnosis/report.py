"""A diagnosis, one of its kernels, and two diagnoses side by side as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opatlas.outer.diagnosis.advice import advice
from opatlas.outer.diagnosis.changes import DiagnosisChanges
from opatlas.outer.diagnosis.diagnosis import Diagnosis, RankedKernel


def diagnosis_as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Returns facts, verdicts, rules without counters, and the whole ranking."""
    table, peaks, verdicts = diagnosis.table, diagnosis.peaks, diagnosis.verdicts
    over, share = diagnosis.memory_over_compute
    return {
        "place": str(table.place),
        "kind": "capture" if table.is_capture else "database",
        "device": table.device,
        "kernels": diagnosis.kernels,
        "launches": diagnosis.kernel_launches,
        "with_counted_launches": diagnosis.counted,
        "durations": diagnosis.sources,
        "left_out": table.left_out,
        "joined": table.joined,
        "kernel_us": diagnosis.kernel_us,
        "collectives": diagnosis.collectives,
        "collective_us": diagnosis.collective_us,
        "peaks": {
            "origin": peaks.origin,
            "bandwidth_gbps": peaks.peak.bandwidth_gbps,
            "tera_ops": dict(peaks.peak.tera_ops),
            "cube_cores": peaks.cube_cores,
            "vector_cores": peaks.vector_cores,
            "origin_of_cores": peaks.origin_of_cores,
        },
        "metric_groups": diagnosis.metric_groups,
        "with_ratios": diagnosis.with_ratios,
        "unbound": diagnosis.unbound,
        "pipes": diagnosis.pipes,
        "mte2_over_compute": {"kernels": over, "share_of_time": share},
        "waits": {"long": int(verdicts.long_waits.sum()), "share": float(verdicts.wait_share)},
        "verdicts": {
            verdict: {"kernels": count, "duration_us": diagnosis.us_of(verdict)}
            for verdict, count in diagnosis.counts.items()
        },
        "untested": [
            {
                "verdict": rule.verdict,
                "metric_group": rule.counters,
                "counters": lacking,
                "public_capture": rule.published,
            }
            for rule, lacking in diagnosis.untested().items()
        ],
        "ranking": [ranked_as_json(diagnosis, each) for each in diagnosis.ranking],
        "problems": table.problems,
    }


def ranked_as_json(diagnosis: Diagnosis, ranked: RankedKernel) -> dict[str, Any]:
    """Returns a kernel of the ranking with all findings."""
    return {
        **asdict(ranked),
        "line": diagnosis.place(ranked.line),
        "lost_is_known": ranked.lost_is_known,
        "findings": [
            {
                "verdict": rule.verdict,
                "test": rule.test,
                "limits": rule.limits,
                "source": rule.source,
                "cells": finding.cells,
                "what": advice()[rule.verdict].what,
                "apis": advice()[rule.verdict].apis,
            }
            for finding in diagnosis.findings(ranked.line)
            for rule in (finding.rule,)
        ],
        "counters": diagnosis.counters(ranked.line),
    }


def changes_as_json(changes: DiagnosisChanges) -> dict[str, Any]:
    """Returns what changed between two diagnoses."""
    return {
        "only_old": changes.only_old,
        "only_new": changes.only_new,
        "kernels": [{**asdict(each), "speed_up": each.speed_up} for each in changes.kernels],
    }
