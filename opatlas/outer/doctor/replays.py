"""Probes that measure as `pytest bench/` does: rows in a device process, and an all_reduce between two ranks."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from opatlas import formats
from opatlas.capture.single_launches import read_launches
from opatlas.files import TemporaryFolder
from opatlas.outer.doctor import msprof_session
from opatlas.outer.doctor.probe import Fact, Target, Verdict, failed, passed, skipped
from opatlas.outer.doctor.sample_rows import ROWS, SAMPLES, durations, job_of, not_measured, reason_of, tracebacks
from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import ALL_REDUCE, bandwidth_gbps
from opatlas.row.errors import DeviceGone
from opatlas.row.quality import relative_noise
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, available_devices, kind_named, open_device
from opatlas.run.group import RANK_SPREAD
from opatlas.run.group_spec import GroupSpec
from opatlas.run.groups.pool import GroupNodes, GroupPool
from opatlas.run.groups.process import GroupProcess
from opatlas.run.instruments.attribution import ProfiledSamples, dimensions
from opatlas.run.instruments.instrument import (
    MSPROF,
    TORCH_NPU_PROFILER,
    MeasureSettings,
    StopRule,
)
from opatlas.run.job import Job, RowOutcome
from opatlas.run.msprof.sessions import msprof_on_group
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.scheduler import ExcludedDevices, Scheduler

_RANKS = 2
_BYTES = 1 << 20
_ROW_S = 120.0
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


def replay(target: Target) -> Verdict:
    """Measures three rows with the device's default instrument, which on an NPU is a session of msprof."""
    spec = available_devices(target.device or None)[0]
    settings = MeasureSettings(repeat_count=SAMPLES)
    if kind_named(spec.kind).preferred_instrument(settings.instrument) == MSPROF:
        return msprof_session.measure_rows(spec, settings, target.files)
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
    best = next(iter(kind_named(spec.kind).instruments))
    missing = "" if used == best else f"; no {best}: {_why_missing(spec, best)}"
    return passed(f"{name}: {durations(outcomes)} ({used}){missing}", instrument=used)


def npu_profiler(target: Target) -> Verdict:
    """Measures a call with torch_npu's profiler, and counts the kernels that the profiler loses at its beginning."""
    import torch

    from opatlas.run.instruments.npu_profilers import LEAD_IN, LEAD_IN_KERNELS, TorchNpuProfiler

    settings = MeasureSettings(instrument=TORCH_NPU_PROFILER)
    spec = available_devices(target.device or None)[0]
    device, profiler = open_device(spec, settings), TorchNpuProfiler(spec.kind, settings.aic_metrics)
    summand = torch.ones(16, 64, device=device.torch_device)
    with TemporaryFolder("doctor-profile") as folder:
        rule = StopRule(repeat_count=SAMPLES, time_limit_s=settings.time_limit_s)
        samples = profiler.sample_in(folder, lambda: torch.add(summand, summand), None, rule)
        details = sorted(folder.rglob("kernel_details.csv"))
        launches = [launch for path in details for launch in read_launches(path).launches]
        for number, path in enumerate(details):
            if target.files is not None:
                shutil.copyfile(path, target.files / f"{number}-{path.name}")
    types = {name: str(count) for name, count in Counter(launch.kernel_type for launch in launches).most_common()}
    found = samples.profiled
    if not isinstance(found, ProfiledSamples):
        why = found.reason if found is not None else "nothing was read"
        return failed(
            f"{TORCH_NPU_PROFILER}: {why}", "--instrument msprof or npu-events measures without it", types=types
        )
    calls_us = [sum(launch.duration_us for launch in call) for call in found.calls]
    lost = LEAD_IN_KERNELS - sum(launch.dimensions == dimensions(LEAD_IN) for launch in launches)
    ran_as = ", ".join({launch.kernel_type: 0 for launch in found.calls[0]})
    detail = f"Add (ran as {ran_as}) {fmean(calls_us):.1f} us; {lost} of {LEAD_IN_KERNELS} first kernels lost"
    return passed(detail, types=types, lost=lost)


def _why_missing(spec: DeviceSpec, instrument: str) -> str:
    """Returns why a device process cannot open an instrument."""
    process = DeviceProcess(spec, MeasureSettings(instrument=instrument))
    try:
        process.describe()
    except DeviceGone as error:
        return str(error)
    finally:
        process.close()
    return "it opened at a second try"


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
    facts: dict[str, Fact] = {}
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
