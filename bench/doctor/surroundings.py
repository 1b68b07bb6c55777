"""Probes of what bears on durations besides the device: limits of cores and memory, the cache flush, disturbances."""

from __future__ import annotations

from bench.devices.at_hand import devices_at_hand
from bench.devices.cgroups import available_memory, cpu_quota, memory_limit
from bench.devices.cores import affinity_cores, available_cores
from bench.devices.gpu_state import gpu_states
from bench.devices.machine_state import MachineWatch, machine_state
from bench.doctor.verdict import Target, Verdict, failed, passed


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


def disturbances(target: Target) -> Verdict:
    """What would make durations noisy now."""
    machine = machine_state()
    gpus = gpu_states(devices_at_hand(target.device or None), MachineWatch().own_processes(), opened=False)
    found = [*machine.disturbances(), *(phrase for gpu in gpus for phrase in gpu.disturbances())]
    if found:
        return failed(", ".join(found), "durations will be noisy: wait until it is gone, or measure elsewhere")
    return passed(f"none: {machine.load or 'the system tells no load'}", load=machine.load_1min)
