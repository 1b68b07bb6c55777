"""Finds the scopes of a capture that a SuperKernel may fuse, and predicts what each gains.

A scope is what `with superkernel_scope(...)` encloses: a module of a layer, a layer, or all layers. A SuperKernel saves
the gaps between kernels, and costs a synchronization of all cores at each. docs/diagnosis.md has the rules.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.errors import UsageError
from opatlas.options import real
from opatlas.superkernel.advice import ScopeAdvice, advise
from opatlas.superkernel.analysis import ScopeAnalysis, analyse
from opatlas.superkernel.comparison import NOT_IN_CAPTURES, CheckState, SuperKernelComparison, compare_captures
from opatlas.superkernel.gains import GATE, PUBLIC_GAINS, GainModel, ScopeVerdict
from opatlas.superkernel.kernel_types import StepPhase, read_module_map
from opatlas.superkernel.report import analysis_as_json, comparison_as_json
from opatlas.superkernel.scopes import StepSource
from opatlas.superkernel.timeline import read_timeline
from opatlas.text import align_numbers, percent_text, pluralize, show, wrap

_microseconds = real("a number of microseconds from 0 on", lambda value: math.isfinite(value) and value >= 0)
_TYPES_SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 done, also if every scope is refused; 1 a check of --against failed, or a file could not be "
        "read or written; 2 wrong usage"
    )
    parser.add_argument(
        "capture",
        type=Path,
        metavar="CAPTURE",
        help="a kernel_details or op_summary file, or a folder with one; with --against a folder with one for each run",
    )
    parser.add_argument(
        "--module-map",
        type=Path,
        metavar="FILE",
        help='YAML of patterns and modules, such as "*self_attn*": attention; a pattern fits the name or the type of a '
        "kernel, a module is attention, moe or ffn (default: modules are told by kernel types)",
    )
    parser.add_argument(
        "--phase",
        choices=("prefill", "decode", "training"),
        help="what the steps compute (default: told by the kernel types of each step)",
    )
    parser.add_argument(
        "--cap",
        type=_microseconds,
        default=GainModel.cap_us,
        metavar="US",
        help="the longest gap that a SuperKernel saves; what is above it waits for the host, and a graph removes it; "
        "an assumption, docs/diagnosis.md (default: %(default)s)",
    )
    parser.add_argument(
        "--sync",
        type=_microseconds,
        default=GainModel.sync_us,
        metavar="US",
        help="what a synchronization of all cores costs between two kernels; an assumption, which with gaps of 1.9 us "
        "gives the gain of graph-autofusion's example (default: %(default)s)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="OTHER",
        help="captures without SuperKernels: compare CAPTURE, which has them (default: find scopes in CAPTURE)",
    )
    add_json(parser, "everything that is found")


def run(arguments: argparse.Namespace) -> int:
    """Shows the scopes, or a comparison, and returns the exit status that the help explains. Raises OpAtlasError."""
    if arguments.against is not None:
        return _compare(arguments)
    module_of = None if arguments.module_map is None else read_module_map(arguments.module_map)
    phase = None if arguments.phase is None else StepPhase(arguments.phase)
    timeline = read_timeline(arguments.capture)
    analysis = analyse(timeline, GainModel(arguments.cap, arguments.sync), module_of=module_of, phase=phase)
    advice = advise(analysis)
    if not write_or_print_json(arguments.json, analysis_as_json(analysis, advice)):
        show("\n".join(analysis_lines(analysis, advice)))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    if arguments.module_map or arguments.phase:
        raise UsageError(f"{'--module-map' if arguments.module_map else '--phase'} takes no effect with --against")
    comparison = compare_captures(arguments.against, arguments.capture)
    if not write_or_print_json(arguments.json, comparison_as_json(comparison)):
        show("\n".join(_comparison_lines(comparison)))
    return 1 if comparison.verdict is CheckState.FAILED else 0


def analysis_lines(analysis: ScopeAnalysis, advice: ScopeAdvice) -> Iterator[str]:
    """Yields the report of an analysis, within 80 columns."""
    timeline = analysis.timeline
    yield f"{timeline.path}"
    phases = ", ".join(f"{count} of {phase}" for phase, count in analysis.phases.items())
    streams = len([stream for stream in timeline.streams if stream])
    by = "" if analysis.step_source is StepSource.NOTHING else f", by {analysis.step_source}"
    yield wrap(
        f"{len(timeline.launches):,} kernels on {pluralize(streams, 'known stream')}; "
        f"{pluralize(analysis.steps, 'step')}: {phases}{by}",
        indent=0,
    )
    if timeline.wait_pairs:
        fits = timeline.wait_pairs - timeline.wait_mismatches
        yield f"no row is missing before {fits:,} of {timeline.wait_pairs:,} kernels, by their waits"
    bound, model = analysis.stretches, analysis.model
    yield ""
    yield "upper bound, between collectives, AI CPU kernels, other streams and steps:"
    yield (
        f"  {pluralize(bound.stretches, 'stretch', 'stretches')} of {bound.kernels:,} kernels: "
        f"{bound.duration_us / 1000:,.1f} ms, gaps {bound.gaps_us / 1000:,.1f} ms"
    )
    yield f"  {percent_text(bound.raw_ceiling):>7}  all gaps"
    capped = percent_text(bound.capped_ceiling)
    yield f"  {capped:>7}  gaps up to {model.cap_us:g} us; the rest is the host's: a graph removes it"
    yield f"  {percent_text(bound.saved_ceiling):>7}  the same less {model.sync_us:g} us for each synchronization"
    yield ""
    yield "what splits a SuperKernel"
    for cut in analysis.cuts:
        named = ", ".join(f"{name} {count:,}" for name, count in cut.kernel_types[:_TYPES_SHOWN])
        more = len(cut.kernel_types) - _TYPES_SHOWN
        yield wrap(
            f"{cut.count:>7,}  {cut.reason}: {named}{f', {more} more' if more > 0 else ''}".rstrip(": "), indent=0
        )
    if analysis.collectives:
        yield f"  {analysis.collectives:,} supported collectives split none"
    yield ""
    for layers in analysis.layers:
        yield f"{layers.layers / analysis.steps:g} layers of {len(layers.kernel_types)} kernels each in a step"
    shares = ", ".join(f"{module} {percent_text(share)}" for module, share in analysis.module_shares.items())
    if shares:
        yield f"share of device time: {shares}"
    yield from _scope_lines(analysis)
    for note in analysis.notes:
        yield wrap(f"note: {note}", indent=0)
    yield ""
    if analysis.refusals:
        for refusal in analysis.refusals:
            yield wrap(f"refused: {refusal}", indent=0)
        return
    yield wrap(f"{advice.model}: {'; '.join(advice.answers)}", indent=0)
    if not advice.order:
        yield "no scope may be tried"
        return
    yield ""
    yield from (f"    {line}" for line in advice.snippet)
    yield ""
    for number, line in enumerate(advice.experiments):
        yield wrap(f"{number}. {line}", indent=2)


def _scope_lines(analysis: ScopeAnalysis) -> Iterator[str]:
    yield ""
    what = "the step" if analysis.analysed == 1 else f"a step, as the mean of {analysis.analysed}"
    yield f"scopes of {what} ({analysis.step_us:,.1f} us); fused: in an SK of two or more"
    header = ("scope", "each", "kernels", "fused", "SK", "us", "gaps", "saved", "ceiling", "step")
    rows = [
        (
            str(gain.kind),
            f"{gain.occurrences:,.4g}",
            f"{gain.kernels:,.0f}",
            f"{gain.fused_kernels:,.0f}",
            f"{gain.super_kernels:,.0f}",
            f"{gain.duration_us:,.1f}",
            f"{gain.gaps_us:,.1f}",
            f"{gain.saved_us:,.1f}",
            percent_text(gain.ceiling),
            percent_text(gain.step_share),
        )
        for gain in analysis.scopes
    ]
    yield from align_numbers([header, *rows], least=10)
    host = max((gain.host_us for gain in analysis.scopes), default=0.0)
    if host > 0:
        yield wrap(f"  of the gaps, up to {host:,.1f} us are above {analysis.model.cap_us:g} us: the host's", indent=2)
    yield ""
    if not analysis.refusals:
        for verdict in (ScopeVerdict.WORTH_TRYING, ScopeVerdict.BELOW_GATE):
            named = ", ".join(str(gain.kind) for gain in analysis.scopes if gain.verdict is verdict)
            if named:
                yield wrap(f"{verdict} (the gate is {percent_text(GATE, 0)} of a step): {named}", indent=0)
        for gain in analysis.scopes:
            if gain.verdict is ScopeVerdict.REFUSED:
                yield wrap(f"refused: {gain.kind}: {gain.reason}", indent=0)
    for public in PUBLIC_GAINS:
        yield wrap(f"measured by others: {percent_text(public.gain, 2)} ({public.what})", indent=0)


def _comparison_lines(comparison: SuperKernelComparison) -> Iterator[str]:
    yield f"old  {comparison.old.path}"
    yield f"new  {comparison.new.path}"
    for times, word in ((comparison.old, "old"), (comparison.new, "new")):
        yield (
            f"{word}  {pluralize(len(times.runs), 'run')}, {pluralize(sum(map(len, times.runs)), 'step')}, "
            f"mean {times.mean_us:,.2f} us, variation {percent_text(times.variation)}"
        )
    yield ""
    width = max(len(check.name) for check in comparison.checks)
    for check in comparison.checks:
        yield wrap(f"{check.name:{width}}  {check.state}: {check.text}", indent=0)
    for public in PUBLIC_GAINS:
        yield wrap(f"measured by others: {percent_text(public.gain, 2)} ({public.what})", indent=0)
    for note in comparison.notes:
        yield wrap(f"note: {note}", indent=0)
    yield ""
    yield f"verdict: {comparison.verdict}"
    yield wrap(NOT_IN_CAPTURES, indent=0)
