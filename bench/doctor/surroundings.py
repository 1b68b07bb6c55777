"""Probes of what bears on durations besides the device: limits of cores and memory, the cache flush, disturbances."""

from __future__ import annotations

from statistics import median
from time import perf_counter

from bench.devices.at_hand import devices_at_hand
from bench.devices.cgroups import available_memory, cpu_quota, memory_limit
from bench.devices.cores import affinity_cores, available_cores, usable_cores
from bench.devices.cpu_flush import CpuFlush, plan_flush
from bench.devices.gpu_state import gpu_states
from bench.devices.machine_state import MachineWatch, machine_state, needed_cores
from bench.doctor.verdict import Target, Verdict, failed, passed, skipped

_FLUSHES = 7
#: With twenty samples a row spends a second in flushes.
_DEAR_MS = 50.0


def limits(target: Target) -> Verdict:
    """Cores and memory that this process may use."""
    quota, limit, left = cpu_quota(), memory_limit(), available_memory()
    usable = affinity_cores()
    cores = f"{available_cores()} of {usable} cores" if available_cores() < usable else f"{usable} cores"
    cpu = "no CPU quota" if quota is None else f"CPU quota {quota:g} cores"
    memory = "no memory limit" if limit is None else f"memory limit {limit / 2**30:.1f} GiB"
    if left is not None:
        memory += f", {left / 2**30:.1f} GiB of it left"
    return passed(f"{cores}, {cpu}, {memory}", cpu_quota=quota, memory_limit_bytes=limit, memory_left_bytes=left)


def flush(target: Target) -> Verdict:
    """What it costs to flush the caches of the CPU before each cold sample."""
    if (kind := devices_at_hand(target.device or None)[0].kind) != "cpu":
        return skipped(f"rows are replayed on {kind}: its L2 cache is flushed whole")
    import torch

    threads = available_cores()
    torch.set_num_threads(threads)
    plan = plan_flush(usable_cores(), threads)
    flushed, row, took_ms = CpuFlush(plan), [torch.ones(1 << 18)], []
    for _ in range(_FLUSHES):
        start = perf_counter()
        flushed(row)
        took_ms.append(1000 * (perf_counter() - start))
    ms = median(took_ms)
    size = "not told" if plan.cache_bytes is None else f"{plan.cache_bytes >> 20} MiB"
    ways = " and evicts the row's tensors line by line" if plan.by_line else ""
    hint = " (--cache warm leaves it out)" if ms > _DEAR_MS else ""
    return passed(
        f"{plan.caches} last-level cache{'' if plan.caches == 1 else 's'} ({size}): a flush reads "
        f"{plan.read_bytes >> 20} MiB{ways}, {ms:.1f} ms a sample{hint}",
        read_bytes=plan.read_bytes,
        flush_ms=ms,
    )


def disturbances(target: Target) -> Verdict:
    """What would make durations noisy now."""
    machine = machine_state()
    devices = devices_at_hand(target.device or None)
    gpus = gpu_states(devices, MachineWatch().own_processes(), opened=False)
    found = [*machine.disturbances(needed_cores(devices)), *(phrase for gpu in gpus for phrase in gpu.disturbances())]
    if found:
        return failed(", ".join(found), "durations will be noisy: wait until it is gone, or measure elsewhere")
    return passed(f"none: {machine.load or 'the system tells no load'}", load=machine.load_1min)
