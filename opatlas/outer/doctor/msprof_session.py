"""A session of msprof with three rows, run as a replay runs it, and checks of its profile.

A replay reads msprof's summary by marks, shapes and types. A check for each of these names what is wrong.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

from opatlas.capture.single_launches import Launch
from opatlas.data.header import read_header
from opatlas.errors import TableError
from opatlas.files import TemporaryFolder
from opatlas.outer.doctor.probe import Fact, Verdict, failed, passed
from opatlas.outer.doctor.sample_rows import ROWS, durations, job_of, not_measured, tracebacks
from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments.attribution import BEGIN_MARK, END_MARK, MARK_TYPE, PendingSamples, dimensions, row_mark
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import RowOutcome
from opatlas.run.msprof.pending import MsprofOutput, read_output
from opatlas.run.msprof.sessions import MsprofSession
from opatlas.run.process.device_process import DeviceProcess

_ENDED_PROCESS = {Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR}
#: A profile without a summary goes into the report unless it is larger.
_MOST_BYTES = 32 << 20
#: The duration of an empty kernel is longer, in microseconds.
_LEAST_US = 0.05
#: Factor for rounded start times and durations, and for clocks that differ.
_TOLERANCE = 1.5
_WITHOUT = "--instrument npu-events measures without msprof meanwhile"
_SEND = "send us the report (--report), which holds the summary"


@dataclass(frozen=True)
class RecordedSession:
    """A session of msprof, and its results.

    Attributes:
        outcomes: by kernel type.
        pending: the reports of the device process on the launched rows, by kernel type.
        output: the output of msprof.
        opened_s, rows_s, export_s: host time of the start of the device process, of the rows, and of its end with
            msprof's export.
    """

    outcomes: Mapping[str, RowOutcome]
    pending: Mapping[str, PendingSamples]
    output: MsprofOutput
    opened_s: float
    rows_s: float
    export_s: float

    @property
    def header(self) -> Sequence[str]:
        """The columns of the first summary; empty where no summary has a header."""
        for path in self.output.summaries[:1]:
            with suppress(TableError):
                return [name.strip() for name in read_header(path).names]
        return []


def measure_rows(spec: DeviceSpec, settings: MeasureSettings, files: Path | None) -> Verdict:
    """Measures three rows in one session of msprof, and checks its profile.

    Args:
        files: a folder for a copy of the summary, for the report; None: no copy.
    """
    with TemporaryFolder("doctor-msprof") as folder:
        try:
            session = record_session(spec, settings, folder / "profiles")
        except DeviceGone as error:
            remedy = "run `msprof --output=/tmp/msprof-alone sleep 1` to see whether msprof itself works"
            return failed(str(error), f"{remedy}; {_WITHOUT}")
        if files is not None:
            _keep(session.output, files)
        return check_session(session)


def record_session(spec: DeviceSpec, settings: MeasureSettings, folder: Path) -> RecordedSession:
    """Runs the rows of ROWS in one session of msprof, which writes into a folder.

    Raises:
        DeviceGone: the device process does not start.
    """
    began = monotonic()
    session = MsprofSession(
        lambda launcher: DeviceProcess(spec, settings, launcher), settings, folder, keep_outputs=True
    )
    try:
        session.describe()
    except DeviceGone:
        session.close()
        raise
    opened = monotonic()
    jobs = [job_of(kernel_type) for kernel_type in ROWS]
    launched: dict[int, RowOutcome] = {}
    try:
        # Where the device fails meanwhile, the rows before have their outcomes.
        with suppress(DeviceGone):
            launched.update((job.id, session.launch(job)) for job in jobs)
    finally:
        ended_rows = monotonic()
        session.end()
    outcomes = launched | {job.id: outcome for job, outcome in session.read()[0]}
    exported = monotonic()
    return RecordedSession(
        {job.kernel_type: outcomes[job.id] for job in jobs if job.id in outcomes},
        {job.kernel_type: pending for job in jobs if job.id in launched and (pending := launched[job.id].pending)},
        read_output(folder, exports=False),
        opened_s=opened - began,
        rows_s=ended_rows - opened,
        export_s=exported - ended_rows,
    )


def check_session(session: RecordedSession) -> Verdict:
    """Returns the first finding of the checks; without a finding, a summary of the profile."""
    output = session.output
    types = Counter(launch.kernel_type for launch in output.launches)
    facts: dict[str, Fact] = {
        **{name: round(getattr(session, name), 2) for name in ("opened_s", "rows_s", "export_s")},
        "header": [", ".join(session.header)],
        "types": {name: str(count) for name, count in types.most_common()},
        "unreadable": list(output.unreadable),
        "left_out": list(output.left_out),
        "tracebacks": tracebacks(session.outcomes),
    }
    for check in _CHECKS:
        for detail, remedy in check(session):
            return failed(detail, remedy, **facts)
    wanted, own = _marks(session.pending), _negations(output)
    marks = sum(min(own[shape], count) for shape, count in wanted.items())
    kernels = f"{marks} of {sum(wanted.values())} marks, {len(output.launches)} kernels"
    torn = f", {len(output.left_out)} torn lines" if output.left_out else ""
    return passed(f"{durations(session.outcomes)} ({MSPROF}); {kernels}{torn}", **facts)


Problems = Iterator[tuple[str, str]]


def _process_ended(session: RecordedSession) -> Problems:
    ended = {name: one for name, one in session.outcomes.items() if one.status in _ENDED_PROCESS}
    if ended:
        remedy = "see `dmesg` and `npu-smi info`; the probe npu shows whether a row runs without msprof"
        yield "; ".join(not_measured(ended)), f"{remedy}; {_WITHOUT}"


def _not_launched(session: RecordedSession) -> Problems:
    refused = {name: one for name, one in session.outcomes.items() if name not in session.pending}
    if refused:
        yield "; ".join(not_measured(refused)), "the probe npu shows whether a row runs without msprof"


def _no_summary(session: RecordedSession) -> Problems:
    why = "; ".join(not_measured(session.outcomes))
    if not session.output.profiles:
        yield f"msprof wrote no PROF_ folder: {why}", f"is there room in the folder for temporary files? {_WITHOUT}"
    elif not session.output.summaries:
        remedy = (
            "msprof exports with the python3 on PATH, which must be one that CANN supports; the report (--report) "
            "holds what msprof printed, and the profile"
        )
        yield f"msprof recorded the rows, and exported no op_summary: {why}", f"{remedy}; {_WITHOUT}"


def _not_readable(session: RecordedSession) -> Problems:
    if unreadable := session.output.unreadable:
        more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
        yield f"op_summary cannot be read: {unreadable[0]}{more}", _SEND


def _no_shapes(session: RecordedSession) -> Problems:
    launches = session.output.launches
    if not launches:
        yield "op_summary holds no kernel", f"was the device process recorded? {_SEND}; {_WITHOUT}"
    elif not any(map(_has_shape, launches)):
        yield (
            f"op_summary has no input shapes (N/A in all of {len(launches)} rows), by which marks are found",
            f"does a msprof.ini, or PROFILING_OPTIONS in the environment, lower --task-time=l1? {_SEND}; {_WITHOUT}",
        )


def _no_marks(session: RecordedSession) -> Problems:
    wanted, own = _marks(session.pending), _negations(session.output)
    absent = {shape: count - own[shape] for shape, count in wanted.items() if own[shape] < count}
    if absent:
        gone, shapes = sum(absent.values()), " and ".join(sorted(absent)[:2])
        detail = f"op_summary lacks {gone} of {sum(wanted.values())} marks (Neg of {shapes}), which tell samples apart"
        yield detail, f"{_SEND}; {_WITHOUT}"


def _wrong_unit(session: RecordedSession) -> Problems:
    """Compares durations with start times: the kernels between two marks run one after the other."""
    launches = session.output.launches
    begin, end = dimensions(BEGIN_MARK), dimensions(END_MARK)
    spans: list[tuple[float, float]] = []
    began: Launch | None = None
    for launch in launches:
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
    typical = median(launch.duration_us for launch in launches)
    if typical < _LEAST_US:
        yield f"durations are not in microseconds: half of the kernels take less than {typical:g} us", _SEND
    recorded_s = (launches[-1].start_ns - launches[0].start_ns) / 1e9
    took_s = session.opened_s + session.rows_s
    if recorded_s > took_s * _TOLERANCE:
        found = f"they span {recorded_s:.0f} s, and the rows took {took_s:.0f} s"
        yield f"start times are not in microseconds: {found}", _SEND


def _not_measured(session: RecordedSession) -> Problems:
    if bad := not_measured(session.outcomes):
        yield "; ".join(bad), _SEND


#: Each check assumes that the checks before it found nothing.
_CHECKS: tuple[Callable[[RecordedSession], Problems], ...] = (
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


def _marks(pending: Mapping[str, PendingSamples]) -> Counter[str]:
    """Returns how often each mark was launched, by its dimensions."""
    marks: Counter[str] = Counter()
    for row in pending.values():
        marks[dimensions(row_mark(row.number))] += 1
        marks[dimensions(BEGIN_MARK)] += row.samples
        marks[dimensions(END_MARK)] += row.samples
    return marks


def _negations(output: MsprofOutput) -> Counter[str]:
    """Returns how often a tensor was negated (Neg, or NegAiCore in some versions of CANN), by its dimensions."""
    return Counter(one.dimensions for one in output.launches if one.kernel_type.startswith(MARK_TYPE))


def _keep(output: MsprofOutput, files: Path) -> None:
    """Copies the summaries for the report, or the whole profile where there is no summary."""
    for path in output.summaries:
        shutil.copyfile(path, files / path.name)
    for folder in output.profiles:
        contents = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        sizes = [(path.relative_to(folder), path.stat().st_size) for path in contents]
        listing = "".join(f"{size} {path}\n" for path, size in sorted(sizes))
        (files / f"{folder.name}.txt").write_text(listing, encoding="utf-8")
        if not output.summaries and sum(size for _, size in sizes) <= _MOST_BYTES:
            shutil.copytree(folder, files / folder.name, symlinks=True)
