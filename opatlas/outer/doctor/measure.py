"""Probes that measure as `pytest bench/` does: rows, under msprof too, and an all_reduce of two ranks."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from opatlas import formats
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
from opatlas.run.group import RANK_SPREAD, GroupSpec
from opatlas.run.groups.pool import GroupNodes, GroupPool
from opatlas.run.groups.process import GroupProcess
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.msprof_output import KEPT, MsprofOutput, read_output
from opatlas.run.msprof_sessions import MsprofSession, msprof_on_group
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.registry import replays_of_bench
from opatlas.run.scheduler import ExcludedDevices, Scheduler

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
#: A profile without a summary goes into the report unless it is larger.
_MOST_BYTES = 32 << 20
_WITHOUT = "--instrument npu-events measures without msprof meanwhile"
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

        def scheduler_of(spec: GroupSpec, devices: Sequence[DeviceSpec], settings: MeasureSettings) -> Scheduler:
            if settings.instrument == MSPROF:
                return msprof_on_group(spec, devices, settings, folder / "profiles")
            return GroupProcess(spec, devices, settings)

        pool = GroupPool(GroupNodes(devices), settings, ExcludedDevices(None), scheduler_of)
        try:
            return pool.run(job), pool.describe()
        finally:
            pool.close()


def _measure_under_msprof(spec: DeviceSpec, settings: MeasureSettings, files: Path | None) -> Verdict:
    """Measures the rows in one session of msprof.

    Args:
        files: a folder for a copy of the summary, for the report; None: no copy.
    """
    with TemporaryFolder("doctor-msprof") as folder:
        session = MsprofSession(
            lambda launcher: DeviceProcess(spec, settings, launcher), settings, folder / "profiles", keep_outputs=True
        )
        try:
            session.describe()
        except DeviceGone as error:
            session.close()
            remedy = "run `msprof --output=/tmp/msprof-alone sleep 1` to see whether msprof itself works"
            return failed(str(error), f"{remedy}; {_WITHOUT}")
        jobs = {kernel_type: job_of(kernel_type) for kernel_type in ROWS}
        found: dict[int, RowOutcome] = {}
        try:
            # Where the device fails meanwhile, the rows before have their outcomes.
            with suppress(DeviceGone):
                found.update((job.id, session.launch(job)) for job in jobs.values())
        finally:
            session.end()
        found |= {job.id: outcome for job, outcome in session.read()[0]}
        outcomes = {kernel_type: found[job.id] for kernel_type, job in jobs.items() if job.id in found}
        output = read_output(folder / "profiles", exports=False)
        if files is not None:
            _keep(output, files)
        types = Counter(launch.kernel_type for launch in output.launches)
        facts = {
            "types": {name: str(count) for name, count in types.most_common()},
            "unreadable": list(output.unreadable),
            "left_out": list(output.left_out),
            "tracebacks": tracebacks(outcomes),
        }
    if bad := not_measured(outcomes):
        remedy = "send us the report (--report), which holds the summary of msprof, or the profile without one"
        return failed("; ".join(bad), f"see `dmesg`, `npu-smi info` and the probe npu; {_WITHOUT}; {remedy}", **facts)
    return passed(f"{durations(outcomes)} ({MSPROF}); {len(output.launches)} kernels", **facts)


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
