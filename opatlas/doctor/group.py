"""Probe of a group: two ranks meet as the ranks of a replay do, and add up a message in an all_reduce."""

from __future__ import annotations

from collections.abc import Sequence

from opatlas.devices.device import KINDS, DeviceDescription, DeviceSpec
from opatlas.devices.discovery import available_devices
from opatlas.doctor.sample_rows import SAMPLES, reason_of
from opatlas.doctor.verdict import (
    Fact,
    Target,
    Verdict,
    failed,
    passed,
    skipped,
)
from opatlas.engine.group import RANK_SPREAD
from opatlas.engine.group_spec import GroupSpec
from opatlas.engine.job import Job, RowOutcome
from opatlas.files import TemporaryFolder
from opatlas.instruments.instrument import EVENTS, MSPROF, MeasureSettings, choose_group_instrument
from opatlas.isolation.executor import ExcludedDevices, Executor
from opatlas.isolation.groups.pool import GroupPool
from opatlas.isolation.groups.process import GroupProcess
from opatlas.isolation.msprof.executor import msprof_on_group
from opatlas.model.communication import ALL_REDUCE, bandwidth_gbps
from opatlas.model.schema import (
    DTYPE,
    MESSAGE_BYTES,
    NUM_DEVICES,
    TOPOLOGY_TIER,
    Status,
)

_RANKS = 2
_BYTES = 1 << 20
_ROW_S = 120.0
#: By the library that carries messages: what keeps ranks from meeting, most often.
_REMEDIES = {
    "hccl": (
        "see whether the links are up (hccn_tool -i N -link -g for each device), whether HCCL_SOCKET_IFNAME or "
        "HCCL_IF_IP names an interface of this host, and what NPU logs say (~/ascend/log, with "
        "ASCEND_GLOBAL_LOG_LEVEL=1); rows of one device need no HCCL"
    ),
    "nccl": "run it again with NCCL_DEBUG=INFO, which tells what NCCL does; rows of one device need no NCCL",
    "gloo": "see whether GLOO_SOCKET_IFNAME names an interface of this host, and whether the host's name resolves",
}


def group(target: Target) -> Verdict:
    """Whether two ranks meet, and their all_reduce gives the sum: without a profiler, and as a replay measures it."""
    devices = available_devices(target.device or None)
    kind = devices[0].kind
    backend = KINDS[kind].backend
    if not target.backend:
        return skipped(f"not asked for: --{backend} lets two ranks meet, as rows of several devices need it")
    if target.backend != backend:
        return failed(f"--{target.backend}: messages between devices of kind {kind} go by {backend}", f"--{backend}")
    spec = GroupSpec(_RANKS)
    if too_few := GroupPool(devices, MeasureSettings(), ExcludedDevices(None)).too_few_for(spec):
        shown = f" ({devices[0].pinned[0]} shows {len(devices)})" if devices[0].pinned else ""
        return failed(
            f"two ranks: {too_few}{shown}",
            "make another device visible; rows that need several devices are skipped here, all others are not",
        )
    told: list[str] = []
    facts: dict[str, Fact] = {}
    alone: object = None
    # Without a profiler first: what fails then is the library that carries messages.
    for instrument in dict.fromkeys((EVENTS.get(kind), None)):
        outcome, description = _all_reduced(devices, spec, instrument)
        taken = outcome.measurement
        if outcome.status is not Status.MEASURED or taken is None:
            name = choose_group_instrument(kind, instrument)
            before = f"{told[0]}; under {name}" if told else f"two ranks over {backend}:"
            without = f"--instrument {EVENTS.get(kind)} measures rows of groups without {name}"
            return failed(
                f"{before} the all_reduce ended as {outcome.status}: {reason_of(outcome)}",
                without if told else _REMEDIES[backend],
                traceback=outcome.detail,
            )
        mean_us, spread_us = taken.summary.mean_us, taken.counters.get(RANK_SPREAD, 0.0)
        first = f"two ranks of {description.name} over {backend}: all_reduce of {_BYTES >> 20} MiB gives the sum, in "
        told.append(
            f"{first if not told else ''}{mean_us:.1f} +- {taken.summary.std_us:.1f} us ({taken.instrument}; "
            f"{bandwidth_gbps(_BYTES, mean_us):.1f} GB/s; the ranks lie {spread_us:.1f} us apart)"
        )
        facts[f"{taken.instrument} us"] = mean_us
        alone = description.facts.get("all_devices_visible")
    if alone:
        told.append(f"each rank sees all devices, for with one visible to each they did not meet: {alone}")
    return passed("; ".join(told), **facts)


def _all_reduced(
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

        pool = GroupPool(devices, settings, ExcludedDevices(None), executor_of)
        try:
            return pool.run(job), pool.describe()
        finally:
            pool.close()
