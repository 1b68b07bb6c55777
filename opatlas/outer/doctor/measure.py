"""Probes that measure as `pytest bench/` does: rows, under msprof too, and an all_reduce of two ranks."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas import formats
from opatlas.data.header import read_header
from opatlas.errors import TableError
from opatlas.files import TemporaryFolder
from opatlas.row.columns import (
    DTYPE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    MESSAGE_BYTES,
    NUM_DEVICES,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    TOPOLOGY_TIER,
)
from opatlas.row.communication import ALL_REDUCE, bandwidth_gbps
from opatlas.row.errors import DeviceGone
from opatlas.row.quality import relative_noise, typical_mean
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, available_devices, kind_named
from opatlas.run.group import RANK_SPREAD
from opatlas.run.group_spec import GroupSpec
from opatlas.run.groups.nodes import GroupNodes
from opatlas.run.groups.pool import GroupPool
from opatlas.run.groups.process import GroupProcess
from opatlas.run.instruments.attribution import BEGIN_MARK, END_MARK, MARK_TYPE, PendingSamples, dimensions, row_mark
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.run.msprof.executor import MsprofSession, msprof_on_group
from opatlas.run.msprof.pending import KEPT, MsprofOutput, read_output
from opatlas.run.process.device_pool import ExcludedDevices
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.process.executor import Executor

from .probe import Target, Verdict, failed, passed, skipped

_RANKS = 2
_BYTES = 1 << 20
#: The most frequent causes of groups that do not start, by communication library.
_REMEDIES = {
    "hccl": (
        "see whether the links are up (hccn_tool -i N -link -g for each device), whether HCCL_SOCKET_IFNAME or "
        "HCCL_IF_IP names an interface of this host, and what NPU logs say (~/ascend/log, with "
        "ASCEND_GLOBAL_LOG_LEVEL=1); rows of one device need no HCCL"
    ),
    "nccl": "run it again with NCCL_DEBUG=INFO, which tells what NCCL does; rows of one device need no NCCL",
    "gloo": "see whether GLOO_SOCKET_IFNAME names an interface of this host, and whether the host's name resolves",
}
_ENDED_PROCESS = {Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR}
#: A profile without a summary goes into the report unless it is larger.
_MOST_BYTES = 32 << 20
_WITHOUT = "--instrument npu-events measures without msprof meanwhile"
_SEND = "send us the report (--report), which holds the summary"
#: Samples of each row.
SAMPLES = 3
_ROW_S = 120.0


def _row(inputs: str, dtype: str, output: str) -> Mapping[str, str]:
    slots = inputs.count(";") + 1
    return {
        INPUT_SHAPES: inputs,
        INPUT_DTYPES: ";".join([dtype] * slots),
        INPUT_FORMATS: ";".join(["ND"] * slots),
        OUTPUT_SHAPES: output,
        OUTPUT_DTYPES: dtype,
        OUTPUT_FORMATS: "ND",
    }


#: By kernel type, a row for each way in which kernels compute: element by element, along an axis, a matrix product.
ROWS: Mapping[str, Mapping[str, str]] = {
    "Add": _row("16,64;16,64", "FLOAT", "16,64"),
    "SoftmaxV2": _row("16,256", "FLOAT", "16,256"),
    "MatMulV2": _row("64,128;128,64", "FLOAT16", "64,64"),
}


def job_of(kernel_type: str) -> Job:
    """Returns a new job that replays the row of a kernel type of ROWS."""
    function = replays_of_bench()[kernel_type]
    return Job(function.__module__, "", function.__name__, kernel_type, ROWS[kernel_type], _ROW_S)


def not_measured(outcomes: Mapping[str, RowOutcome]) -> list[str]:
    """Returns why rows have no duration: `Add, SoftmaxV2: crashed: ...`; `outcomes` are by kernel type."""
    types: dict[str, list[str]] = defaultdict(list)
    for kernel_type, outcome in outcomes.items():
        if outcome.status is not Status.MEASURED:
            types[f"{outcome.status}: {reason_of(outcome)}"].append(kernel_type)
    return [f"{', '.join(names)}: {fate}" for fate, names in types.items()]


def reason_of(outcome: RowOutcome) -> str:
    """Returns the reason of an outcome without the folder of its profile, which a probe removes."""
    return outcome.reason.partition(KEPT)[0]


def tracebacks(outcomes: Mapping[str, RowOutcome]) -> dict[str, str]:
    """Returns the tracebacks of rows that failed, by kernel type, for the report."""
    return {kernel_type: outcome.detail for kernel_type, outcome in outcomes.items() if outcome.detail}


def durations(outcomes: Mapping[str, RowOutcome]) -> str:
    """Returns `Add 1.90 us ±5.3 %, MatMulV2 (ran as MatMulV3) 3.10 us ±6.5 %`: means and noise of samples."""
    return ", ".join(
        f"{kernel_type}{f' (ran as {measured.ran_as.kernel_type})' if measured.ran_as else ''} "
        f"{formats.duration(typical_mean(measured.samples_us))} {formats.noise(relative_noise(measured.samples_us))}"
        for kernel_type, outcome in outcomes.items()
        if (measured := outcome.measurement) is not None
    )


def measure_row(device: str, instrument: str) -> Verdict:
    """Opens a device, checks a product of matrices, and measures a small row."""
    from opatlas.run.runner import Runner

    spec = available_devices(device)[0]
    runner = Runner(spec, MeasureSettings(repeat_count=SAMPLES, cache="warm", instrument=instrument))
    runner.probe()
    description = runner.describe()
    facts = {name: str(fact) for name, fact in description.facts.items()}
    outcome = runner.run(job_of("Add"))
    if outcome.status is not Status.MEASURED or outcome.measurement is None:
        found = f"{description.name}, Add 16,64;16,64: {outcome.status}: {outcome.reason}"
        return failed(found, facts=facts, traceback=outcome.detail)
    taken_us = typical_mean(outcome.measurement.samples_us)
    return passed(f"{description.name}, Add 16,64;16,64: {taken_us:.1f} us ({instrument})", facts=facts)


def replay(target: Target) -> Verdict:
    """Measures three rows with the device's default instrument, which on an NPU is a session of msprof."""
    spec = available_devices(target.device or None)[0]
    settings = MeasureSettings(repeat_count=SAMPLES)
    if kind_named(spec.kind).preferred_instrument(settings.instrument) == MSPROF:
        return _measure_under_msprof(spec, settings, target.files)
    process = DeviceProcess(spec, settings)
    try:
        outcomes = {kernel_type: process.run(job_of(kernel_type)) for kernel_type in ROWS}
        name = process.describe().name
    except DeviceGone as error:
        return failed(str(error))
    finally:
        process.close()
    if bad := not_measured(outcomes):
        remedy = "see the limits above; the report (--report) has the tracebacks"
        return failed("; ".join(bad), remedy, tracebacks=tracebacks(outcomes))
    used = ", ".join(sorted({o.measurement.instrument for o in outcomes.values() if o.measurement is not None}))
    return passed(f"{name}: {durations(outcomes)} ({used})", instrument=used)


def group(target: Target) -> Verdict:
    """Measures an all_reduce of two ranks: without a profiler, and as a replay measures it."""
    devices = available_devices(target.device or None)
    kind = devices[0].kind
    backend = kind_named(kind).backend
    if not target.with_group:
        return skipped(f"two ranks over {backend}: only with --group")
    spec = GroupSpec(_RANKS)
    if too_few := GroupPool(GroupNodes(devices), MeasureSettings(), ExcludedDevices(None)).shortage(spec):
        shown = f" ({devices[0].pinned[0]} shows {len(devices)})" if devices[0].pinned else ""
        return failed(
            f"two ranks: {too_few}{shown}",
            "make another device visible; only rows that need several devices are skipped here",
        )
    told: list[str] = []
    facts: dict[str, float] = {}
    unmet: object = None
    # The first run has no profiler, so that a failure is one of the communication library.
    for instrument in dict.fromkeys((kind_named(kind).events, None)):
        outcome, description = _all_reduce(devices, spec, instrument)
        taken = outcome.measurement
        if outcome.status is not Status.MEASURED or taken is None:
            name = kind_named(kind).group_instrument(instrument)
            ended = f"all_reduce over {backend} with {name}: {outcome.status}: {reason_of(outcome)}"
            remedy = f"measure groups with --instrument {kind_named(kind).events}" if told else _REMEDIES[backend]
            return failed("; ".join([*told, ended]), remedy, traceback=outcome.detail)
        median_us, spread_us = taken.summary.median_us, taken.counters.get(RANK_SPREAD, 0.0)
        told.append(
            f"all_reduce of {_BYTES >> 20} MiB over {backend}: {formats.duration(median_us)} "
            f"{formats.noise(relative_noise(taken.samples_us))} ({taken.instrument}; "
            f"{bandwidth_gbps(_BYTES, median_us):.1f} GB/s; {spread_us:.1f} us between ranks)"
        )
        facts[f"{taken.instrument} us"] = median_us
        unmet = description.facts.get("all_devices_visible")
    if unmet:
        told.append(f"each rank sees all devices, since ranks of one device did not meet: {unmet}")
    return passed("; ".join(told), **facts)


def _all_reduce(
    devices: Sequence[DeviceSpec], spec: GroupSpec, instrument: str | None
) -> tuple[RowOutcome, DeviceDescription]:
    """Runs an all_reduce in a new group, as a session of pytest does."""
    cells = {MESSAGE_BYTES: str(_BYTES), NUM_DEVICES: str(_RANKS), DTYPE: "DT_FLOAT", TOPOLOGY_TIER: "1"}
    job = Job(
        "opatlas.bench.test_collectives", "", "test_all_reduce", ALL_REDUCE.kernel_type, cells, _ROW_S, group=spec
    )
    settings = MeasureSettings(repeat_count=SAMPLES, cache="warm", instrument=instrument)
    with TemporaryFolder("doctor-group") as folder:

        def executor_of(spec: GroupSpec, devices: Sequence[DeviceSpec], settings: MeasureSettings) -> Executor:
            if settings.instrument == MSPROF:
                return msprof_on_group(spec, devices, settings, folder / "profiles")
            return GroupProcess(spec, devices, settings)

        pool = GroupPool(GroupNodes(devices), settings, ExcludedDevices(None), executor_of)
        try:
            return pool.run(job), pool.describe()
        finally:
            pool.close()


@dataclass(frozen=True)
class RecordedSession:
    """A session of msprof, and its results.

    Attributes:
        outcomes: by kernel type.
        pending: the reports of the device process on the launched rows, by kernel type.
        output: the output of msprof.
    """

    outcomes: Mapping[str, RowOutcome]
    pending: Mapping[str, PendingSamples]
    output: MsprofOutput


def _measure_under_msprof(spec: DeviceSpec, settings: MeasureSettings, files: Path | None) -> Verdict:
    """Measures the rows in one session of msprof, and checks its profile.

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
    session = MsprofSession(
        lambda launcher: DeviceProcess(spec, settings, launcher), settings, folder, keep_outputs=True
    )
    try:
        session.describe()
    except DeviceGone:
        session.close()
        raise
    launched: list[RowOutcome] = []

    def note(outcome: RowOutcome) -> bool:
        launched.append(outcome)
        return False

    jobs = [job_of(kernel_type) for kernel_type in ROWS]
    outcomes = session.run(jobs, note).outcomes
    return RecordedSession(
        {job.kernel_type: outcomes[job.id] for job in jobs if job.id in outcomes},
        {job.kernel_type: one.pending for job, one in zip(jobs, launched, strict=False) if one.pending is not None},
        read_output(folder, exports=False),
    )


def check_session(session: RecordedSession) -> Verdict:
    """Returns the first finding of the checks; without a finding, a summary of the profile."""
    output = session.output
    facts = {
        "header": [", ".join(_header(path)) for path in output.summaries[:1]],
        "types": {name: str(count) for name, count in Counter(each.kernel_type for each in output.launches).items()},
        "unreadable": list(output.unreadable),
        "left_out": list(output.left_out),
        "tracebacks": tracebacks(session.outcomes),
    }
    for detail, remedy in _problems(session):
        return failed(detail, remedy, **facts)
    marks = sum(_marks(session.pending).values())
    torn = f", {len(output.left_out)} torn lines" if output.left_out else ""
    kernels = f"{marks} of {marks} marks, {len(output.launches)} kernels{torn}"
    return passed(f"{durations(session.outcomes)} ({MSPROF}); {kernels}", **facts)


def _header(path: Path) -> Sequence[str]:
    try:
        return [name.strip() for name in read_header(path).names]
    except TableError:
        return []


def _problems(session: RecordedSession) -> Iterator[tuple[str, str]]:
    """Yields what is wrong, with its remedy; each test assumes that those before it found nothing."""
    output, without = session.output, f"the probe npu shows whether a row runs without msprof; {_WITHOUT}"
    ended = {name: one for name, one in session.outcomes.items() if one.status in _ENDED_PROCESS}
    if ended:
        yield "; ".join(not_measured(ended)), f"see `dmesg` and `npu-smi info`; {without}"
    refused = {name: one for name, one in session.outcomes.items() if name not in session.pending}
    if refused:
        yield "; ".join(not_measured(refused)), without
    why = "; ".join(not_measured(session.outcomes))
    if not output.profiles:
        yield f"msprof wrote no PROF_ folder: {why}", f"is there room in the folder for temporary files? {_WITHOUT}"
    if not output.summaries:
        remedy = (
            "msprof exports with the python3 on PATH, which must be one that CANN supports; the report (--report) "
            "holds what msprof printed, and the profile"
        )
        yield f"msprof recorded the rows, and exported no op_summary: {why}", f"{remedy}; {_WITHOUT}"
    if output.unreadable:
        yield f"op_summary cannot be read: {output.unreadable[0]}", _SEND
    if not output.launches:
        yield "op_summary holds no kernel", f"was the device process recorded? {_SEND}; {_WITHOUT}"
    if not any(any(map(str.isdigit, launch.dimensions)) for launch in output.launches):
        yield (
            f"op_summary has no input shapes (N/A in all of {len(output.launches)} rows), by which marks are found",
            f"does a msprof.ini, or PROFILING_OPTIONS in the environment, lower --task-time=l1? {_SEND}; {_WITHOUT}",
        )
    # A mark is a tensor that is negated (Neg, or NegAiCore in some versions of CANN).
    own = Counter(one.dimensions for one in output.launches if one.kernel_type.startswith(MARK_TYPE))
    wanted = _marks(session.pending)
    absent = {shape: count - own[shape] for shape, count in wanted.items() if own[shape] < count}
    if absent:
        gone, shapes = sum(absent.values()), " and ".join(sorted(absent)[:2])
        detail = f"op_summary lacks {gone} of {sum(wanted.values())} marks (Neg of {shapes}), which tell samples apart"
        yield detail, f"{_SEND}; {_WITHOUT}"
    if why:
        yield why, _SEND


def _marks(pending: Mapping[str, PendingSamples]) -> Counter[str]:
    """Returns how often each mark was launched, by its dimensions."""
    marks: Counter[str] = Counter()
    for row in pending.values():
        marks[dimensions(row_mark(row.number))] += 1
        marks[dimensions(BEGIN_MARK)] += row.samples
        marks[dimensions(END_MARK)] += row.samples
    return marks


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
