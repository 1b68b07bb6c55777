"""Probe of a group: two ranks meet as the ranks of a replay do, and add up a message in an all_reduce."""

from __future__ import annotations

from bench.devices.at_hand import devices_at_hand
from bench.devices.kinds import KINDS
from bench.doctor.sample_rows import SAMPLES
from bench.doctor.verdict import Target, Verdict, failed, passed, skipped
from bench.groups.group import RANK_SPREAD
from bench.groups.pool import GroupPool
from bench.groups.spec import GroupSpec
from bench.instruments import EVENTS
from bench.job import Job, MeasureSettings
from bench.processes.device_pool import LeftOut
from database.communication import ALL_REDUCE, bandwidth_gbps
from database.schema import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER, Status

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
    """Whether two ranks meet, and an all_reduce of theirs gives the sum."""
    devices = devices_at_hand(target.device or None)
    kind = devices[0].kind
    backend = KINDS[kind].backend
    if not target.backend:
        return skipped(f"not asked for: --{backend} lets two ranks meet, as rows of several devices need it")
    if target.backend != backend:
        return failed(f"--{target.backend}: messages between devices of kind {kind} go by {backend}", f"--{backend}")
    cells = {MESSAGE_BYTES: str(_BYTES), NUM_DEVICES: str(_RANKS), DTYPE: "DT_FLOAT", TOPOLOGY_TIER: "1"}
    spec = GroupSpec(_RANKS)
    job = Job("bench.test_collectives", "", "test_all_reduce", ALL_REDUCE.kernel_type, cells, _ROW_S, group=spec)
    settings = MeasureSettings(repeat_count=SAMPLES, cache="warm", instrument=EVENTS.get(kind))
    pool = GroupPool(devices, settings, LeftOut(None))
    if too_few := pool.too_few_for(spec):
        shown = f" ({devices[0].pinned[0]} shows {len(devices)})" if devices[0].pinned else ""
        return failed(
            f"two ranks: {too_few}{shown}",
            "make another device visible; rows that need several devices are skipped here, all others are not",
        )
    try:
        outcome = pool.run(job)
        description = pool.describe()
    finally:
        pool.close()
    if outcome.status is not Status.MEASURED or outcome.measurement is None:
        return failed(
            f"two ranks over {backend}: the all_reduce ended as {outcome.status}: {outcome.reason}",
            _REMEDIES[backend],
            traceback=outcome.detail,
        )
    taken = outcome.measurement
    mean_us, spread_us = taken.summary.mean_us, taken.counters.get(RANK_SPREAD, 0.0)
    alone = description.facts.get("all_devices_visible")
    return passed(
        f"two ranks of {description.name} over {backend}: all_reduce of {_BYTES >> 20} MiB gives the sum, in "
        f"{mean_us:.1f} +- {taken.summary.std_us:.1f} us ({taken.instrument}; {bandwidth_gbps(_BYTES, mean_us):.1f} "
        f"GB/s; the ranks lie {spread_us:.1f} us apart)"
        + (f"; each rank sees all devices, for with one visible to each they did not meet: {alone}" if alone else ""),
        duration_us=mean_us,
        rank_spread_us=spread_us,
    )
