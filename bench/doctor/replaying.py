"""Probes that measure rows as `pytest bench/` does: in a device process, with the instrument that it would take."""

from __future__ import annotations

from bench.devices.at_hand import devices_at_hand
from bench.doctor import msprof_session
from bench.doctor.sample_rows import ROWS, SAMPLES, durations, job_of, not_measured, tracebacks
from bench.doctor.verdict import Target, Verdict, failed, passed
from bench.errors import DeviceGone
from bench.instruments import MSPROF, OFFERED, choose
from bench.job import DeviceSpec, MeasureSettings
from bench.processes.device_process import DeviceProcess


def replay(target: Target) -> Verdict:
    """Whether three rows are measured with the device's default instrument, which on an NPU is a session of msprof."""
    spec = devices_at_hand(target.device or None)[0]
    settings = MeasureSettings(repeat_count=SAMPLES)
    if choose(spec.kind, settings.instrument) == MSPROF:
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
        return failed("; ".join(bad), tracebacks=tracebacks(outcomes))
    used = ", ".join(sorted({o.measurement.instrument for o in outcomes.values() if o.measurement is not None}))
    best = next(iter(OFFERED[spec.kind]))
    missing = "" if used == best else f"; {best}, which measures better, is missing: {_why_missing(spec, best)}"
    return passed(f"{name}: {durations(outcomes)} ({used}){missing}", instrument=used)


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
