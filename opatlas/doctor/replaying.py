"""Probes that measure rows as `pytest bench/` does: in a device process, with the instrument that it would take."""

from __future__ import annotations

import shutil
from collections import Counter
from statistics import fmean
from time import monotonic

from opatlas.capture.captures import read_launches
from opatlas.devices.device import DeviceSpec, open_device
from opatlas.devices.discovery import available_devices
from opatlas.doctor import msprof_session
from opatlas.doctor.sample_rows import (
    ROWS,
    SAMPLES,
    durations,
    job_of,
    not_measured,
    tracebacks,
)
from opatlas.doctor.verdict import (
    Target,
    Verdict,
    failed,
    passed,
)
from opatlas.files import TemporaryFolder
from opatlas.instruments.attribution import ProfiledSamples, dimensions
from opatlas.instruments.instrument import INSTRUMENTS, MSPROF, TORCH_NPU_PROFILER, MeasureSettings, choose_instrument
from opatlas.instruments.stop_rule import StopRule
from opatlas.isolation.device_process import DeviceProcess
from opatlas.model.errors import DeviceGone


def replay(target: Target) -> Verdict:
    """Whether three rows are measured with the device's default instrument, which on an NPU is a session of msprof."""
    spec = available_devices(target.device or None)[0]
    settings = MeasureSettings(repeat_count=SAMPLES)
    if choose_instrument(spec.kind, settings.instrument) == MSPROF:
        return msprof_session.measured(spec, settings, target.files)
    process = DeviceProcess(spec, settings)
    try:
        outcomes = {kernel_type: process.run(job_of(kernel_type)) for kernel_type in ROWS}
        name = process.describe().name
    except DeviceGone as error:
        return failed(str(error))
    finally:
        process.close()
    if bad := not_measured(outcomes):
        remedy = "what the probes above tell of limits may be why; the report (--report) has the tracebacks"
        return failed("; ".join(bad), remedy, tracebacks=tracebacks(outcomes))
    used = ", ".join(sorted({o.measurement.instrument for o in outcomes.values() if o.measurement is not None}))
    best = next(iter(INSTRUMENTS[spec.kind]))
    missing = "" if used == best else f"; {best}, which measures better, is missing: {_why_missing(spec, best)}"
    return passed(f"{name}: {durations(outcomes)} ({used}){missing}", instrument=used)


def npu_profiler(target: Target) -> Verdict:
    """Whether torch_npu's own profiler records what is launched, and how much it loses at its beginning."""
    import torch

    from opatlas.instruments.npu_profilers import LEAD_IN, LEAD_IN_KERNELS, sampled

    settings = MeasureSettings(instrument=TORCH_NPU_PROFILER)
    device = open_device(available_devices(target.device or None)[0], settings)
    summand = torch.ones(16, 64, device=device.torch_device)
    began = monotonic()
    with TemporaryFolder("doctor-profile") as folder:
        rule = StopRule(repeat_count=SAMPLES, time_limit_s=settings.time_limit_s)
        samples = sampled(folder, settings.aic_metrics, lambda: torch.add(summand, summand), None, rule)
        details = sorted(folder.rglob("kernel_details.csv"))
        launches = [launch for path in details for launch in read_launches(path).launches]
        for number, path in enumerate(details):
            if target.files is not None:
                shutil.copyfile(path, target.files / f"{number}-{path.name}")
    took_s = monotonic() - began
    types = {name: str(count) for name, count in Counter(launch.kernel_type for launch in launches).most_common()}
    found = samples.profiled
    if not isinstance(found, ProfiledSamples):
        why = found.reason if found is not None else "nothing was read"
        return failed(f"{TORCH_NPU_PROFILER}: {why}", "--instrument msprof or npu-events does without", types=types)
    calls_us = [sum(launch.duration_us for launch in call) for call in found.calls]
    lost = LEAD_IN_KERNELS - sum(launch.dimensions == dimensions(LEAD_IN) for launch in launches)
    return passed(
        f"Add took {fmean(calls_us):.1f} us ({TORCH_NPU_PROFILER}, {len(calls_us)} samples from {min(calls_us):.1f} to "
        f"{max(calls_us):.1f} us), launched as {', '.join({launch.kernel_type: 0 for launch in found.calls[0]})}; the "
        f"profiler lost {lost} of the {LEAD_IN_KERNELS} kernels that are launched first for it to lose; {took_s:.0f} s",
        types=types,
        lost=lost,
    )


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
