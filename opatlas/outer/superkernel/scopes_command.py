"""`opatlas diagnose --superkernel`: the scopes of a capture, and runs with and without SuperKernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

from opatlas.capture.capture_discovery import find_captures, kind_of_capture, op_summaries
from opatlas.capture.launches import is_collective
from opatlas.capture.single_launches import Launch, LaunchTimeline, read_launches
from opatlas.errors import OpAtlasError, TableError
from opatlas.formats import microseconds, percent
from opatlas.row.quality import standard_deviation
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.text import Word, pluralize

from .advice import CHECKS, LEAST_RUNS, MOST_RUNS, ScopeAdvice, advise, analysis_as_json
from .scopes import GATE, ScopeAnalysis, analyse
from .structure import StepPhase, StepSource, find_structure, known_types, matches, phase_of

#: Sums of two such times are int64.
_MOST_NS = 1 << 61
#: The line of each step in the output of cann-recipes-infer: "deepseek-v3 inference time cost of decode is 31.50 ms".
_STEP_LINE = re.compile(r"(\S+) inference time cost of (prefill|decode) is ([\d.]+) ?ms")
_LOGS = (".log", ".txt")
#: A step that takes so many times the median compiles or warms up.
_WARM_UP = 2.0


class CheckState(Word):
    """What a check found, from the best to the worst."""

    PASSED = "passed"
    BELOW_GATE = "gain below gate"
    NOT_GIVEN = "not given"
    FAILED = "failed"


@dataclass(frozen=True)
class ValidationCheck:
    """One of the guide's checks."""

    name: str
    state: CheckState
    text: str


def steadiness(variation: float) -> str:
    """Returns the class that the guide has for a coefficient of variation (0.05 is 5 %)."""
    if variation < 0.05:
        return "excellent"
    if variation < 0.10:
        return "good"
    return "more runs needed" if variation <= 0.20 else "too unsteady"


@dataclass(frozen=True)
class StepTimes:
    """The durations of steps in the captures or logs at a path.

    Attributes:
        runs: the steps' durations of each run, in microseconds.
        super_kernels: the launches of SuperKernels; None if a log does not tell.
        samples_us: the mean of each run; the steps of a single run.
        variation: the coefficient of variation of the samples; 0 for one sample.
    """

    path: str
    runs: Sequence[Sequence[float]]
    super_kernels: int | None

    @property
    def samples_us(self) -> Sequence[float]:
        return tuple(map(fmean, self.runs)) if len(self.runs) > 1 else self.runs[0]

    @property
    def mean_us(self) -> float:
        return fmean(self.samples_us)

    @property
    def variation(self) -> float:
        return standard_deviation(self.samples_us, self.mean_us) / self.mean_us if self.mean_us else 0.0


def read_timeline(path: Path) -> LaunchTimeline:
    """Reads a kernel_details or op_summary file, or the only one below a folder.

    Streams that a kernel_details lacks are taken from the op_summary files beside it, by name and start.

    Raises:
        OpAtlasError: there is no capture, or the folder has several.
        TableError: the file cannot be read, is no capture, was taken at level 0, or has no launches.
    """
    files = captures_at(path)
    if len(files) > 1:
        raise OpAtlasError(f"{path}: {len(files)} captures, and a timeline is that of one device: name one: {files[0]}")
    return read_file(files[0])


def captures_at(path: Path) -> list[Path]:
    """Returns the capture files at a path. Raises OpAtlasError."""
    if not path.exists():
        raise OpAtlasError(f"{path}: no such file or folder: name a capture, or the folder that the profiler wrote")
    return find_captures(path).files


def read_file(path: Path) -> LaunchTimeline:
    """Reads one capture file. Raises TableError."""
    read = kind_of_capture(path).launches(path)
    launches = tuple(launch for launch in read.launches if 0 <= launch.start_ns < _MOST_NS and launch.duration_us >= 0)
    problems = read.problems
    if impossible := len(read.launches) - len(launches):
        problems += (f"{path}: {pluralize(impossible, 'launch', 'launches')} with an impossible time: left out",)
    devices = sorted({launch.device for launch in launches})
    if len(devices) > 1:
        raise TableError(
            path,
            f"launches of the devices {', '.join(devices)}",
            "Keep the rows of one device: each has its own timeline",
        )
    if not launches:
        raise TableError(path, "no launches", "Take the capture again")
    if not all(launch.stream or is_collective(launch.kernel_type, launch.cells) for launch in launches):
        launches = _with_streams(path, launches)
    return LaunchTimeline(path, launches, problems)


def _with_streams(path: Path, launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """Returns launches with the streams of the op_summary files of the same profile, where these have the launch."""
    folder = path.resolve().parent
    of_profiler = folder.name == "ASCEND_PROFILER_OUTPUT"
    files = op_summaries(folder.parent) if of_profiler else sorted(folder.glob("*op_summary*.csv"))
    streams = {
        (launch.name, launch.start_ns): launch.stream
        for file in files
        if file.resolve() != path.resolve()
        for launch in read_launches(file).launches
    }
    return tuple(
        launch if launch.stream else replace(launch, stream=streams.get((launch.name, launch.start_ns), ""))
        for launch in launches
    )


def _steps_of_captures(paths: Sequence[Path], notes: list[str]) -> Iterator[StepTimes]:
    """Yields the steps of the captures at each path; `notes` receives what these do not tell."""
    timelines = [[(each, find_structure(each)) for each in map(read_file, captures_at(path))] for path in paths]
    every = [pair for own in timelines for pair in own]
    notes += [problem for each, _ in every for problem in each.problems]
    in_steps = all(structure.step_source is not StepSource.NOTHING for _, structure in every)
    if not in_steps:
        notes.append("a capture does not tell its steps: each counts as one step, so all must hold equally many")
    for path, own in zip(paths, timelines, strict=True):
        runs = [_steps_us(each, structure.ranges if in_steps else []) for each, structure in own]
        yield StepTimes(str(path), runs, sum(_super_kernels(each) for each, _ in own))


def _steps_us(timeline: LaunchTimeline, ranges: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Returns the time from the first start to the last end of each step of decode; `ranges` has all steps."""
    others = (StepPhase.PREFILL, StepPhase.TRAINING)
    decode = [each for each in ranges if phase_of(timeline.kernels[slice(*each)]) not in others]
    return tuple(
        float(timeline.end_ns[start:stop].max() - timeline.start_ns[start]) / 1000
        for start, stop in decode or ranges or [(0, len(timeline.launches))]
    )


def _super_kernels(timeline: LaunchTimeline) -> int:
    kernels = timeline.launches
    return sum(each.kernel_type == "SuperKernel" or each.name.startswith("te_superkernel") for each in kernels)


def _logs_at(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(each for each in path.iterdir() if each.suffix in _LOGS)
    return [path] if path.suffix in _LOGS else []


def _steps_of_logs(paths: Sequence[Path], notes: list[str]) -> Iterator[StepTimes]:
    """Yields the steps of decode in the logs at each path. Raises OpAtlasError for a log without any."""
    for path in paths:
        runs = []
        for log in _logs_at(path):
            found = _STEP_LINE.findall(log.read_text("utf-8", "replace"))
            steps = [float(ms) * 1000 for _, phase, ms in found if phase == "decode"]
            if not steps:
                line = "NAME inference time cost of decode is 31.50 ms"
                raise OpAtlasError(f"{log}: has no step of decode: its lines have to be as {line!r}, or give a capture")
            kept = [us for us in steps if us <= _WARM_UP * median(steps)]
            if len(kept) < len(steps):
                left_out = pluralize(len(steps) - len(kept), "step")
                notes.append(f"{log.name}: {left_out} above {_WARM_UP:g} medians left out: it compiles or warms up")
            runs.append(kept)
            for model in dict.fromkeys(name.lower() for name, *_ in found):
                known = known_types().families.items()
                notes += [f"{name} models: try {each.told}" for name, each in known if matches(model, each.names)]
        yield StepTimes(str(path), runs, None)


def _checks(old: StepTimes, new: StepTimes, gain: float) -> Iterator[ValidationCheck]:
    state = CheckState.PASSED if gain > GATE else CheckState.BELOW_GATE if gain > 0 else CheckState.FAILED
    yield ValidationCheck("gain", state, f"{percent(gain, 2)} of a step; the gate is more than {percent(GATE, 0)}")
    for name, times in (("steps of old", old), ("steps of new", new)):
        what, samples = "run" if len(times.runs) > 1 else "step", len(times.samples_us)
        if samples < 2:
            text, state = f"one {what} has no variation: take {LEAST_RUNS} runs or more", CheckState.NOT_GIVEN
        else:
            found = steadiness(times.variation)
            variation = f"variation {percent(times.variation)} of {pluralize(samples, what)}: {found}"
            text = f"mean {times.mean_us:,.2f} us, {variation}"
            state = CheckState.PASSED if found in ("excellent", "good") else CheckState.FAILED
        yield ValidationCheck(name, state, text)
    if old.super_kernels is None or new.super_kernels is None:
        # Logs do not tell.
        return
    state, text = CheckState.FAILED, "new has none: no scope was fused"
    if old.super_kernels:
        text = f"old has {old.super_kernels:,}: it is no baseline"
    elif new.super_kernels:
        state, text = CheckState.PASSED, f"{new.super_kernels:,} in new"
    yield ValidationCheck("SuperKernel rows", state, text)


#: The kernel types that are named beside a cut.
_TYPES_SHOWN = 3


def find_scopes(capture: Path) -> Result:
    """Returns the scopes of a capture. Raises OpAtlasError."""
    timeline = read_timeline(capture)
    analysis = analyse(timeline)
    advice = advise(analysis)
    return Result(list(_parts(timeline, analysis, advice)), analysis_as_json(timeline, analysis, advice))


def compare_scopes(old: Path, new: Path) -> Result:
    """Compares runs without and with SuperKernels, both captures or both logs; a folder has a file for each run.

    Raises:
        OpAtlasError: there is no capture or log, or it cannot be read.
    """
    notes: list[str] = []
    steps_of = _steps_of_logs if _logs_at(old) and _logs_at(new) else _steps_of_captures
    before, after = steps_of((old, new), notes)
    times = {"old": before, "new": after}
    gain = 1 - after.mean_us / before.mean_us if before.mean_us else 0.0
    for word, of in times.items():
        if len(of.runs) < LEAST_RUNS:
            notes.append(f"{word}: {pluralize(len(of.runs), 'run')}; the guide asks for {LEAST_RUNS} to {MOST_RUNS}")
    checks = list(_checks(before, after, gain))
    verdict = max((check.state for check in checks), key=list(CheckState).index)
    content = {
        **{
            word: {**asdict(of), "mean_us": of.mean_us, "variation": of.variation, "class": steadiness(of.variation)}
            for word, of in times.items()
        },
        "gain": gain,
        "gate": GATE,
        "checks": [asdict(check) for check in checks],
        "notes": notes,
        "verdict": verdict,
    }
    columns = ("of", "runs", "steps", "mean(us)", Column("variation", percent), "class", "SK", "path")
    rows = [
        (
            *(word, len(of.runs), sum(map(len, of.runs)), of.mean_us, of.variation, steadiness(of.variation)),
            *(of.super_kernels, of.path),
        )
        for word, of in times.items()
    ]
    why = [(each.name, each.state, None if each.state is CheckState.PASSED else each.text) for each in checks]
    parts: list[Part] = [
        Table(columns, rows),
        Table(("check", "state", "why"), why),
        Fields({"gain": percent(gain), "gate": percent(GATE), "verdict": str(verdict)}),
        *(f"note: {note}" for note in dict.fromkeys(notes)),
        _commands(("compile", "function")),
    ]
    return Result(parts, content, status=1 if verdict is CheckState.FAILED else 0)


def _commands(names: Sequence[str]) -> Table:
    return Table(
        ("check", "passed if", "command"),
        [(name, *CHECKS[name]) for name in names],
        "to check by a command",
        detail=True,
    )


def _parts(timeline: LaunchTimeline, analysis: ScopeAnalysis, advice: ScopeAdvice) -> Iterator[Part]:
    yield Fields(
        {
            "kernels": len(timeline.launches),
            "known streams": len([stream for stream in timeline.streams if stream]),
            "steps": (analysis.steps, f"by {analysis.steps_by}"),
            **{f"steps of {phase}": count for phase, count in analysis.phases.items()},
            "step(us)": microseconds(analysis.step_us),
            "rows missing before": (timeline.wait_mismatches, f"of {timeline.wait_pairs:,} kernels with waits"),
            "supported collectives": analysis.supported_collectives,
        },
        title=str(timeline.path),
    )
    yield _scopes(analysis)
    yield from (f"refused: {refusal}" for refusal in analysis.refusals)
    yield from (f"note: {note}" for note in analysis.notes)
    if not analysis.refusals:
        yield from _advice(advice)
    cuts = [(cut.reason, cut.count, _first_types(cut.kernel_types)) for cut in analysis.cuts]
    yield Table(("reason", "count", "kernel types"), cuts, title="what splits a SuperKernel", detail=True)
    layers = [(kind.layers / analysis.steps, len(kind.kernel_types)) for kind in analysis.layers]
    yield Table(("layers in a step", "kernels of each"), layers, detail=True)
    shares = list(analysis.module_shares.items())
    yield Table(("module", Column("share of time", percent)), shares, detail=True)


def _advice(advice: ScopeAdvice) -> Iterator[Part]:
    yield Table((advice.model,), [(answer,) for answer in advice.answers])
    if advice.order:
        yield "\n".join(f"    {line}" for line in advice.snippet)
        yield Table(("#", "from small to large"), list(enumerate(advice.experiments)), detail=True)
        yield Table(("#", "from the top down"), list(enumerate(advice.top_down)), detail=True)
        yield _commands(list(CHECKS))
    yield Table(("if it is", "try"), [(name, each.told) for name, each in advice.families.items()], detail=True)


def _first_types(kernel_types: Mapping[str, int]) -> str:
    named = [f"{name} {count:,}" for name, count in list(kernel_types.items())[:_TYPES_SHOWN]]
    return ", ".join(named + ["..."] * (len(kernel_types) > _TYPES_SHOWN))


def _scopes(analysis: ScopeAnalysis) -> Table:
    us = ("duration(us)", "gaps(us)", Column("host(us)", wide=True), "saved(us)")
    shares = (Column("of scope", percent, wide=True), Column("of step", percent))
    return Table(
        ("scope", "each", "kernels", "fused", "SK", *us, *shares, "try", Column("why", wide=True)),
        [
            (
                *(gain.kind, gain.occurrences, gain.kernels, gain.fused_kernels, gain.super_kernels),
                *(gain.duration_us, gain.gaps_us, gain.host_us, gain.saved_us, gain.ceiling, gain.step_share),
                *(gain.verdict, gain.reason),
            )
            for gain in analysis.scopes
        ],
        title=f"scopes of a step; the gate is {percent(GATE)} of it",
    )
