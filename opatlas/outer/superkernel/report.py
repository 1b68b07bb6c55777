"""An analysis and a comparison as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opatlas.outer.superkernel.advice import ScopeAdvice
from opatlas.outer.superkernel.analysis import ScopeAnalysis
from opatlas.outer.superkernel.comparison import StepTimes, SuperKernelComparison
from opatlas.outer.superkernel.gains import GATE, PUBLIC_GAINS
from opatlas.outer.superkernel.kernel_types import known_types


def analysis_as_json(analysis: ScopeAnalysis, advice: ScopeAdvice) -> dict[str, Any]:
    """Returns everything that an analysis found, for JSON."""
    timeline, bound = analysis.timeline, analysis.stretches
    return {
        "capture": str(timeline.path),
        "kernels": len(timeline.launches),
        "streams": dict(timeline.streams),
        "main_stream": timeline.main_stream,
        "wait_pairs": timeline.wait_pairs,
        "wait_mismatches": timeline.wait_mismatches,
        "is_excerpt": timeline.is_excerpt,
        "steps": analysis.steps,
        "steps_by": analysis.step_source,
        "phases": dict(analysis.phases),
        "analysed_steps": analysis.analysed,
        "step_us": analysis.step_us,
        **asdict(analysis.model),
        "gate": GATE,
        "upper_bound": {
            **asdict(bound),
            "raw_ceiling": bound.raw_ceiling,
            "capped_ceiling": bound.capped_ceiling,
            "saved_ceiling": bound.saved_ceiling,
        },
        "cuts": [
            {
                "reason": cut.reason,
                "count": cut.count,
                "kernel_types": dict(cut.kernel_types),
                "sources": cut.sources,
            }
            for cut in analysis.cuts
        ],
        "supported_collectives": analysis.collectives,
        "supported_collectives_source": known_types().collectives.source,
        "layers": [asdict(kind) for kind in analysis.layers],
        "module_shares": analysis.module_shares,
        "scopes": [{**asdict(gain), "host_us": gain.host_us} for gain in analysis.scopes],
        "measured_by_others": [asdict(each) for each in PUBLIC_GAINS],
        "refusals": analysis.refusals,
        "notes": analysis.notes,
        "advice": asdict(advice),
    }


def comparison_as_json(comparison: SuperKernelComparison) -> dict[str, Any]:
    """Returns a comparison for JSON."""
    return {
        "old": _times(comparison.old),
        "new": _times(comparison.new),
        "gain": comparison.gain,
        "gate": GATE,
        "checks": [asdict(check) for check in comparison.checks],
        "measured_by_others": [asdict(each) for each in PUBLIC_GAINS],
        "notes": comparison.notes,
        "verdict": comparison.verdict,
    }


def _times(times: StepTimes) -> dict[str, Any]:
    return {
        "path": str(times.path),
        "runs": times.runs,
        "mean_us": times.mean_us,
        "variation": times.variation,
        "class": times.steadiness,
        "super_kernels": times.super_kernels,
    }
