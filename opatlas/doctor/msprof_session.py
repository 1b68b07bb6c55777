"""One session of msprof with three rows, through the code that replays rows, and what is wrong with its profile.

A replay reads msprof's summary by marks, shapes and types. Each thing that can be wrong there is looked for by
itself, so that the user learns which one it is.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

from opatlas.capture.captures import Launch, op_summaries, profile_folders, read_launches
from opatlas.devices.device import DeviceSpec
from opatlas.doctor.sample_rows import (
    ROWS,
    durations,
    job_of,
    not_measured,
    tracebacks,
)
from opatlas.doctor.verdict import (
    Fact,
    Verdict,
    failed,
    passed,
)
from opatlas.engine.job import RowOutcome
from opatlas.errors import TableError
from opatlas.files import TemporaryFolder
from opatlas.instruments.attribution import BEGIN_MARK, END_MARK, MARK_TYPE, PendingSamples, dimensions, row_mark
from opatlas.instruments.instrument import MSPROF, MeasureSettings
from opatlas.isolation.device_process import DeviceProcess
from opatlas.isolation.msprof.executor import MsprofSession
from opatlas.model.errors import DeviceGone
from opatlas.model.schema import Status
from opatlas.store.header import read_header

_ENDED_PROCESS = {Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR}
#: A whole profile goes into the report where it cannot be read and is no larger.
_MOST_BYTES = 32 << 20
#: No kernel is as short, in microseconds: launching one takes the device longer.
_LEAST_US = 0.05
#: Start times and durations are rounded, and clocks differ.
_TOLERANCE = 1.5
_SHOWN = 6
_WITHOUT = "--instrument npu-events measures without msprof meanwhile"
_SEND = "send us the report (--report), which holds the summary"


@dataclass(frozen=True)
class _Profile:
    """What a session left.

    Attributes:
        outcomes: by kernel type.
        launched: what the device process says of rows that it launched, by kernel type.
        rows_s: host time from the start of the device process to the end of the last row.
        folders, summaries: msprof's PROF_* folders, and the op_summary files in them.
        headers: of the summaries.
        launches: all kernels of the summaries, by their start.
        unreadable: why a summary cannot be read.
        left_out: lines of summaries that cannot be read, which a replay does without.
    """

    outcomes: Mapping[str, RowOutcome]
    launched: Mapping[str, PendingSamples]
    rows_s: float
    folders: Sequence[Path]
    summaries: Sequence[Path]
    headers: Sequence[tuple[str, ...]]
    launches: Sequence[Launch]
    unreadable: list[str]
    left_out: list[str]


def measured(spec: DeviceSpec, settings: MeasureSettings, files: Path | None) -> Verdict:
    """Measures three rows in one session of msprof.

    Args:
        files: where the summary is left for the report; None: nowhere.
    """
    with TemporaryFolder("doctor-msprof") as folder:
        began = monotonic()
        session = MsprofSession(
            lambda launcher: DeviceProcess(spec, settings, launcher), settings, folder / "profiles", keep_outputs=True
        )
        try:
            session.describe()
        except DeviceGone as error:
            session.close()
            return failed(
                str(error),
                f"run `msprof --output=/tmp/msprof-alone sleep 1`, which tells whether msprof itself works; {_WITHOUT}",
            )
        opened = monotonic()
        launched: dict[int, PendingSamples] = {}
        ended_rows = opened

        def note(outcome: RowOutcome) -> bool:
            nonlocal ended_rows
            ended_rows = monotonic()
            if outcome.pending is not None:
                launched[len(seen)] = outcome.pending
            seen.append(outcome)
            return False

        seen: list[RowOutcome] = []
        jobs = [job_of(kernel_type) for kernel_type in ROWS]
        outcomes = session.run(jobs, note).outcomes
        exported = monotonic()
        profile = _read(
            {job.kernel_type: outcomes[job.id] for job in jobs if job.id in outcomes},
            {jobs[place].kernel_type: one for place, one in launched.items()},
            folder / "profiles",
            ended_rows - began,
        )
        took = {"opened_s": opened - began, "rows_s": ended_rows - opened, "export_s": exported - ended_rows}
        verdict = _judged(profile, took)
        if files is not None:
            _keep(profile, files, whole=not profile.summaries)
    return verdict


def _read(
    outcomes: Mapping[str, RowOutcome], launched: Mapping[str, PendingSamples], output: Path, rows_s: float
) -> _Profile:
    folders = profile_folders(output) if output.is_dir() else []
    summaries = [path for folder in folders for path in op_summaries(folder)]
    headers: list[tuple[str, ...]] = []
    launches: list[Launch] = []
    unreadable: list[str] = []
    left_out: list[str] = []
    for path in summaries:
        try:
            headers.append(tuple(name.strip() for name in read_header(path).names))
            read = read_launches(path)
        except TableError as error:
            unreadable.append(str(error))
            continue
        launches += read.launches
        left_out += read.problems
    launches.sort(key=lambda launch: launch.start_ns)
    return _Profile(outcomes, launched, rows_s, folders, summaries, headers, launches, unreadable, left_out)


def _judged(profile: _Profile, took_s: Mapping[str, float]) -> Verdict:
    types = Counter(launch.kernel_type for launch in profile.launches)
    facts: dict[str, Fact] = {
        **{name: round(seconds, 2) for name, seconds in took_s.items()},
        "header": [", ".join(header) for header in profile.headers],
        "types": {name: str(count) for name, count in types.most_common()},
        "unreadable": profile.unreadable,
        "left_out": profile.left_out,
        "tracebacks": tracebacks(profile.outcomes),
    }
    for check in _CHECKS:
        for detail, remedy in check(profile):
            return failed(detail, remedy, **facts)
    wanted, own = _marks(profile.launched), _negations(profile)
    marks = sum(min(own[shape], count) for shape, count in wanted.items())
    header = profile.headers[0]
    named = [name for name in ("Device_id", "Block Num", "Block Dim", "OP State") if name in header]
    shown = ", ".join(name for name, _ in types.most_common(_SHOWN))
    torn = f" (lines that cannot be read: {len(profile.left_out)})" if profile.left_out else ""
    kernels = f"{len(profile.launches)} kernels{torn} of {len(types)} types"
    return passed(
        f"{durations(profile.outcomes)} ({MSPROF}); op_summary of {len(header)} columns (with {', '.join(named)}), "
        f"{marks} of {sum(wanted.values())} marks with their shapes, {kernels} ({shown}"
        f"{', ...' if len(types) > _SHOWN else ''}); {took_s['opened_s']:.0f} s to start, "
        f"{took_s['rows_s']:.0f} s for the rows, {took_s['export_s']:.0f} s to end and export",
        **facts,
    )


Problems = Iterator[tuple[str, str]]


def _process_ended(profile: _Profile) -> Problems:
    ended = {name: one for name, one in profile.outcomes.items() if one.status in _ENDED_PROCESS}
    if ended:
        remedy = "look into `dmesg` and at `npu-smi info`; the probe npu tells whether a row runs without msprof"
        yield "; ".join(not_measured(ended)), f"{remedy}; {_WITHOUT}"


def _not_launched(profile: _Profile) -> Problems:
    refused = {name: one for name, one in profile.outcomes.items() if name not in profile.launched}
    if refused:
        yield "; ".join(not_measured(refused)), "the probe npu tells whether a row runs without msprof"


def _no_summary(profile: _Profile) -> Problems:
    why = "; ".join(not_measured(profile.outcomes))
    if not profile.folders:
        yield f"msprof wrote no PROF_ folder: {why}", f"is there room in the folder for temporary files? {_WITHOUT}"
    elif not profile.summaries:
        remedy = (
            "msprof exports with the python3 on PATH, which must be one that CANN supports; the report (--report) "
            "holds what msprof printed, and the profile"
        )
        yield f"msprof recorded the rows, and exported no op_summary: {why}", f"{remedy}; {_WITHOUT}"


def _not_readable(profile: _Profile) -> Problems:
    if profile.unreadable:
        more = f" (and {len(profile.unreadable) - 1} more)" if len(profile.unreadable) > 1 else ""
        yield f"op_summary cannot be read: {profile.unreadable[0]}{more}", _SEND


def _no_shapes(profile: _Profile) -> Problems:
    if not profile.launches:
        yield "op_summary holds no kernel", f"was the device process recorded? {_SEND}; {_WITHOUT}"
    elif not any(map(_has_shape, profile.launches)):
        yield (
            f"op_summary has no input shapes (N/A in all of {len(profile.launches)} rows), by which marks are found",
            f"does a msprof.ini, or PROFILING_OPTIONS in the environment, lower --task-time=l1? {_SEND}; {_WITHOUT}",
        )


def _no_marks(profile: _Profile) -> Problems:
    wanted, own = _marks(profile.launched), _negations(profile)
    absent = {shape: count - own[shape] for shape, count in wanted.items() if own[shape] < count}
    if absent:
        gone, shapes = sum(absent.values()), " and ".join(sorted(absent)[:2])
        detail = f"op_summary lacks {gone} of {sum(wanted.values())} marks (Neg of {shapes}), which tell samples apart"
        yield detail, f"{_SEND}; {_WITHOUT}"


def _wrong_unit(profile: _Profile) -> Problems:
    """Between the marks of a sample the device runs one kernel after the other, which takes as long as they do."""
    begin, end = dimensions(BEGIN_MARK), dimensions(END_MARK)
    spans: list[tuple[float, float]] = []
    began: Launch | None = None
    for launch in profile.launches:
        if launch.dimensions == begin:
            began, busy_us = launch, 0.0
        if began is not None and launch.dimensions == end:
            spans.append((busy_us, (launch.start_ns - began.start_ns) / 1000))
            began = None
        elif began is not None:
            busy_us += launch.duration_us
    if too_long := [pair for pair in spans if pair[0] > pair[1] * _TOLERANCE]:
        busy_us, span_us = too_long[0]
        found = f"kernels of {busy_us:.1f} us lie in {span_us:.1f} us between the start times of two marks"
        yield f"durations are not in microseconds: {found}", _SEND
    typical = median(launch.duration_us for launch in profile.launches)
    if typical < _LEAST_US:
        yield f"durations are not in microseconds: half of the kernels take less than {typical:g} us", _SEND
    recorded_s = (profile.launches[-1].start_ns - profile.launches[0].start_ns) / 1e9
    if recorded_s > profile.rows_s * _TOLERANCE:
        found = f"they span {recorded_s:.0f} s, and the rows took {profile.rows_s:.0f} s"
        yield f"start times are not in microseconds: {found}", _SEND


def _not_measured(profile: _Profile) -> Problems:
    if bad := not_measured(profile.outcomes):
        yield "; ".join(bad), _SEND


#: In the order in which one thing rests on another.
_CHECKS: tuple[Callable[[_Profile], Problems], ...] = (
    _process_ended,
    _not_launched,
    _no_summary,
    _not_readable,
    _no_shapes,
    _no_marks,
    _wrong_unit,
    _not_measured,
)


def _has_shape(launch: Launch) -> bool:
    return any(map(str.isdigit, launch.dimensions))


def _marks(launched: Mapping[str, PendingSamples]) -> Counter[str]:
    """Returns how often each mark was launched, by its dimensions."""
    marks: Counter[str] = Counter()
    for row in launched.values():
        marks[dimensions(row_mark(row.number))] += 1
        marks[dimensions(BEGIN_MARK)] += row.samples
        marks[dimensions(END_MARK)] += row.samples
    return marks


def _negations(profile: _Profile) -> Counter[str]:
    """Returns how often a tensor was negated, by its dimensions: some versions of CANN call the type NegAiCore."""
    return Counter(one.dimensions for one in profile.launches if one.kernel_type.startswith(MARK_TYPE))


def _keep(profile: _Profile, files: Path, whole: bool) -> None:
    """Copies the summaries, or a whole profile that has none, for the report."""
    for path in profile.summaries:
        shutil.copyfile(path, files / path.name)
    for folder in profile.folders:
        contents = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        sizes = [(path.relative_to(folder), path.stat().st_size) for path in contents]
        listing = "".join(f"{size} {path}\n" for path, size in sorted(sizes))
        (files / f"{folder.name}.txt").write_text(listing, encoding="utf-8")
        if whole and sum(size for _, size in sizes) <= _MOST_BYTES:
            shutil.copytree(folder, files / folder.name, symlinks=True)
