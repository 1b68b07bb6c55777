"""Probes that measure as `pytest bench/` does: rows, under msprof too, and an all_reduce of two ranks."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from opatlas import formats
from opatlas.files import TemporaryFolder
from opatlas.row.columns import DTYPE, INPUT_SLOTS, MESSAGE_BYTES, NUM_DEVICES, OUTPUT_SLOTS, TOPOLOGY_TIER
from opatlas.row.communication import ALL_REDUCE, bandwidth_gbps
from opatlas.row.errors import DeviceGone
from opatlas.row.quality import relative_noise, typical_mean
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec, available_devices, kind_named
from opatlas.run.group import GroupSpec
from opatlas.run.group_pool import GroupNodes, GroupPool
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.msprof_output import KEPT, read_output
from opatlas.run.msprof_sessions import MsprofBatches, MsprofSession, msprof_on_group
from opatlas.run.process.device_process import DeviceProcess, GroupProcess
from opatlas.run.registry import replays_of_bench
from opatlas.run.scheduler import ExcludedDevices, Scheduler

from .probe import Target, Verdict, failed, passed, skipped

_GROUP = GroupSpec(2)
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
_REMEDY = "see the limits above; the report (--report) has the tracebacks"
_MSPROF_REMEDY = (
    "see `dmesg`, `npu-smi info`, the step torch_npu, and whether msprof itself works (`msprof --output=/tmp/alone "
    "sleep 1`; source CANN's set_env.sh); --instrument npu-events measures without it; the report (--report) has it"
)
#: Samples of each row.
SAMPLES = 3
_ROW_S = 120.0


#: By kernel type, a row for each way in which kernels compute: element by element, along an axis, a matrix product.
ROWS: Mapping[str, Mapping[str, str]] = {
    kernel_type: dict(zip((*INPUT_SLOTS, *OUTPUT_SLOTS), cells, strict=True))
    for kernel_type, *cells in (
        ("Add", "16,64;16,64", "FLOAT;FLOAT", "ND;ND", "16,64", "FLOAT", "ND"),
        ("SoftmaxV2", "16,256", "FLOAT", "ND", "16,256", "FLOAT", "ND"),
        ("MatMulV2", "64,128;128,64", "FLOAT16;FLOAT16", "ND;ND", "64,64", "FLOAT16", "ND"),
    )
}


def replay(target: Target, instrument: str | None = None) -> Verdict:
    """Measures three rows with an instrument, by default the device's, which on an NPU is a session of msprof."""
    spec = available_devices(target.device or None)[0]
    settings = MeasureSettings(repeat_count=SAMPLES, instrument=instrument)
    under_msprof = kind_named(spec.kind).preferred_instrument(instrument) == MSPROF
    outcomes: dict[str, RowOutcome] = {}
    name = gone = ""
    with TemporaryFolder("doctor-msprof") as folder:
        profiles = folder / "profiles"

        def session() -> MsprofSession:
            return MsprofSession(
                lambda launcher: DeviceProcess(spec, settings, launcher), settings, profiles, keep_outputs=True
            )

        scheduler = MsprofBatches(session, tries_again=False) if under_msprof else DeviceProcess(spec, settings)
        functions = replays_of_bench()
        jobs = [
            Job(functions[each].__module__, "", functions[each].__name__, each, cells, _ROW_S)
            for each, cells in ROWS.items()
        ]
        try:
            name = scheduler.describe().name
            for job in jobs:
                scheduler.submit(job)
            outcomes.update((done.job.kernel_type, done.outcome) for done in scheduler.completed(jobs[-1].id))
        except DeviceGone as error:
            gone = str(error)
        finally:
            scheduler.close()
        tracebacks = {kernel_type: outcome.detail for kernel_type, outcome in outcomes.items() if outcome.detail}
        facts = {"tracebacks": tracebacks, **(_profile(profiles, target.files) if under_msprof else {})}
    if bad := [*_not_measured(outcomes), *filter(None, [gone])]:
        return failed("; ".join(bad), _MSPROF_REMEDY if under_msprof else _REMEDY, **facts)
    return passed(f"{name}: {_durations(outcomes)}", **facts)


def _not_measured(outcomes: Mapping[str, RowOutcome]) -> list[str]:
    """Returns why rows have no duration: `Add, SoftmaxV2: crashed: ...`; `outcomes` are by kernel type."""
    types: dict[str, list[str]] = defaultdict(list)
    for kernel_type, outcome in outcomes.items():
        if outcome.status is not Status.MEASURED:
            types[f"{outcome.status}: {_reason(outcome)}"].append(kernel_type)
    return [f"{', '.join(names)}: {fate}" for fate, names in types.items()]


def _reason(outcome: RowOutcome) -> str:
    """Returns the reason of an outcome without the folder of its profile, which a probe removes."""
    return outcome.reason.partition(KEPT)[0]


def _durations(outcomes: Mapping[str, RowOutcome]) -> str:
    """Returns `Add 1.90 us ±5.3 % (msprof), MatMulV2 (ran as MatMulV3) 3.10 us ±6.5 % (msprof)`."""
    return ", ".join(
        f"{kernel_type}{f' (ran as {measured.ran_as.kernel_type})' if measured.ran_as else ''} {_taken(measured)}"
        for kernel_type, outcome in outcomes.items()
        if (measured := outcome.measurement) is not None
    )


def _taken(measured: Measurement) -> str:
    us, noise = typical_mean(measured.samples_us), relative_noise(measured.samples_us)
    return f"{formats.duration(us)} {formats.noise(noise)} ({measured.instrument})"


def _profile(profiles: Path, files: Path | None) -> dict[str, object]:
    """Returns facts on msprof's output, whose summaries are kept for the report; without one the whole profile is."""
    output = read_output(profiles, exports=False)
    if files is not None:
        for path in output.summaries:
            shutil.copyfile(path, files / path.name)
        for folder in output.profiles:
            contents = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in contents}
            (files / f"{folder.name}.json").write_text(json.dumps(sizes, indent=1), encoding="utf-8")
            if not output.summaries and sum(sizes.values()) <= _MOST_BYTES:
                shutil.copytree(folder, files / folder.name, symlinks=True)
    types = Counter(launch.kernel_type for launch in output.launches)
    return {"types": dict(types), "problems": list(output.problems)}


def group(target: Target) -> Verdict:
    """Measures an all_reduce of two ranks: without a profiler, and as a replay measures it."""
    devices = available_devices(target.device or None)
    kind = kind_named(devices[0].kind)
    if not target.with_group:
        return skipped(f"two ranks over {kind.backend}: only with --group")
    if too_few := GroupNodes(devices).shortage(_GROUP, devices):
        shown = f" ({devices[0].pinned[0]} shows {len(devices)})" if devices[0].pinned else ""
        remedy = "make another device visible; only rows that need several devices are skipped here"
        return failed(f"two ranks: {too_few}{shown}", remedy)
    told: list[str] = []
    facts: dict[str, object] = {}
    # The first run has no profiler, so that a failure is one of the communication library.
    for instrument in dict.fromkeys((kind.events, None)):
        outcome = _all_reduce(devices, instrument)
        measured = outcome.measurement
        if outcome.status is not Status.MEASURED or measured is None:
            name = kind.group_instrument(instrument)
            ended = f"all_reduce over {kind.backend} with {name}: {outcome.status}: {_reason(outcome)}"
            remedy = f"measure groups with --instrument {kind.events}" if told else _REMEDIES[kind.backend]
            return failed("; ".join([*told, ended]), remedy, traceback=outcome.detail)
        bandwidth = bandwidth_gbps(_BYTES, measured.summary.median_us)
        told.append(f"all_reduce of {_BYTES >> 20} MiB over {kind.backend}: {_taken(measured)}, {bandwidth:.1f} GB/s")
        facts[f"{measured.instrument} us"] = measured.summary.median_us
    return passed("; ".join(told), **facts)


def _all_reduce(devices: Sequence[DeviceSpec], instrument: str | None) -> RowOutcome:
    """Runs an all_reduce in a new group, as a session of pytest does."""
    cells = {MESSAGE_BYTES: str(_BYTES), NUM_DEVICES: str(_GROUP.ranks), DTYPE: "DT_FLOAT", TOPOLOGY_TIER: "1"}
    function = "test_all_reduce"
    job = Job("opatlas.bench.test_collectives", "", function, ALL_REDUCE.kernel_type, cells, _ROW_S, group=_GROUP)
    settings = MeasureSettings(repeat_count=SAMPLES, cache="warm", instrument=instrument)
    with TemporaryFolder("doctor-group") as folder:

        def scheduler_of(spec: GroupSpec, devices: Sequence[DeviceSpec], settings: MeasureSettings) -> Scheduler:
            if settings.instrument == MSPROF:
                return msprof_on_group(spec, devices, settings, folder / "profiles")
            return GroupProcess(spec, devices, settings)

        pool = GroupPool(GroupNodes(devices), settings, ExcludedDevices(None), scheduler_of)
        try:
            return pool.run(job)
        finally:
            pool.close()
