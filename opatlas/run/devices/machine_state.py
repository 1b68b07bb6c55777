"""Observes disturbances of measurements on this machine: load, steal, other processes, the governor, CPU quotas.

Values come from /proc, /sys and cgroups. A value that the system does not provide is None.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import ROOT, Periods, cpu_periods, cpu_quota, read_text, usable_cores
from opatlas.text import parse_real, parse_whole

#: With more runnable threads of other processes than this, a thread of a row probably has to wait for a core.
LOAD_LIMIT = 0.5
#: Work of other processes, in cores. A quarter of a core takes ten of every forty milliseconds, which affects samples.
OTHER_CORES_LIMIT = 0.25
#: Share of the time in which the hypervisor ran other machines on the cores. One percent exceeds 0.5 %, the error
#: below which the stop rule considers a mean precise.
STEAL_LIMIT_PERCENT = 1.0
#: The only governor that keeps the clock frequency while a core is idle between samples.
STEADY_GOVERNOR = "performance"
#: Length of a window in which the kernel's ticks of 10 ms resolve 5 % of a core.
_WINDOW_S = 0.2
#: Period of the load average.
_LOAD_S = 60.0


@dataclass(frozen=True)
class MachineState:
    """The state of the machine in a time window that ends now.

    Attributes:
        window_s: length of the window in seconds.
        machine_cores: number of online cores of the machine.
        cores: number of cores that this process may use.
        load_1min: load average over a minute.
        own_cores: average number of cores that this process and its descendants kept busy in the window.
        other_cores: average number of usable cores that all other processes kept busy in the window.
        steal_percent: share of the window in which a hypervisor ran other machines on the usable cores.
        governors: frequency governors of the usable cores; () if the system has none.
        turbo: whether clocks may exceed the nominal frequency.
        quota_cores: average number of cores that the CPU quota of the process's groups allows.
        quota_periods: numbers of periods and of throttled periods of that quota in the window.
    """

    window_s: float
    machine_cores: int
    cores: int
    load_1min: float | None = None
    own_cores: float | None = None
    other_cores: float | None = None
    steal_percent: float | None = None
    governors: tuple[str, ...] = ()
    turbo: bool | None = None
    quota_cores: float | None = None
    quota_periods: Periods | None = None

    @property
    def load(self) -> str:
        """Returns the load average in words; "" if the system has none."""
        cores = f"{self.machine_cores} core{'' if self.machine_cores == 1 else 's'}"
        return "" if self.load_1min is None else f"load {self.load_1min:.1f} on {cores}"

    @property
    def other_load(self) -> float | None:
        """Returns the load average without this process and its descendants."""
        if self.load_1min is None:
            return None
        # The kernel's average decays over a minute, so that the last seconds have a small weight.
        own = (self.own_cores or 0.0) * (1 - math.exp(-self.window_s / _LOAD_S))
        return max(self.load_1min - own, 0.0)

    def disturbances(self, needed_cores: int | None = None) -> list[str]:
        """Returns a phrase with numbers for each likely disturbance; [] on a quiet machine.

        Args:
            needed_cores: number of usable cores that the session needs (`needed_cores`); None: all.
        """
        found = []
        needed = self.cores if needed_cores is None else min(needed_cores, self.cores)
        # Other load does not disturb if enough cores for the session stay idle.
        if self.other_load is not None and self.other_load > self.machine_cores - needed + LOAD_LIMIT:
            found.append(self.load)
        if self.other_cores is not None and self.other_cores > self.cores - needed + OTHER_CORES_LIMIT:
            found.append(f"other processes keep {self.other_cores:.1f} of {self.cores} cores busy")
        if self.steal_percent is not None and self.steal_percent > STEAL_LIMIT_PERCENT:
            found.append(f"the hypervisor takes {self.steal_percent:.1f} % of the time (steal)")
        if unsteady := [name for name in self.governors if name != STEADY_GOVERNOR]:
            found.append(f"governor {', '.join(unsteady)}")
        if self.quota_cores is not None and self.quota_cores < needed:
            found.append(f"CPU quota {self.quota_cores:g} of {self.cores} cores")
        if self.quota_periods is not None and self.quota_periods.throttled:
            periods = self.quota_periods
            found.append(f"the CPU quota was used up in {periods.throttled} of {periods.all} periods")
        return found


def needed_cores(devices: Sequence[DeviceSpec]) -> int | None:
    """Returns the number of cores that a session on these devices needs; None: all, because a device is the CPU."""
    if any(device.kind == "cpu" for device in devices):
        return None
    # One core for each device launches kernels, and one core runs pytest.
    return 2 * len(devices)


class MachineWatch:
    """Reports the state of the machine since its previous report, or since the watch was created."""

    def __init__(self, root: Path = ROOT, own_pid: int | None = None) -> None:
        """
        Args:
            root: folder that holds /proc and /sys.
            own_pid: id of the session's process, whose descendants belong to the session; None: this process.
        """
        self._root = root
        self._own_pid = own_pid or os.getpid()
        self._last = self._read_clocks()

    def state(self) -> MachineState:
        """Returns the state in the window since the last call."""
        root, before, now = self._root, self._last, self._read_clocks()
        self._last = now
        usable = usable_cores()
        window_s = max(now.at - before.at, 1e-3)
        busy = steal = total = 0
        for cpu in usable & now.of_cpus.keys() & before.of_cpus.keys():
            ticks = now.of_cpus[cpu] - before.of_cpus[cpu]
            busy, steal, total = busy + ticks.busy, steal + ticks.steal, total + ticks.total
        own_cores = other_cores = None
        if now.own_s is not None and before.own_s is not None:
            own_cores = max(now.own_s - before.own_s, 0.0) / window_s
            if total:
                other_cores = max(busy / total * len(usable) - own_cores, 0.0)
        return MachineState(
            window_s=window_s,
            machine_cores=max(len(now.of_cpus), len(usable)),
            cores=len(usable),
            load_1min=parse_real(_word(root / "proc/loadavg")),
            own_cores=own_cores,
            other_cores=other_cores,
            steal_percent=100 * steal / total if total else None,
            governors=_governors(usable, root),
            turbo=_turbo(root),
            quota_cores=cpu_quota(root),
            quota_periods=_between(before.periods, now.periods),
        )

    def own_processes(self) -> set[int]:
        """Returns the ids of the session's process and its descendants."""
        return set(_own_seconds(self._own_pid, self._root))

    def _read_clocks(self) -> _Clocks:
        own = _own_seconds(self._own_pid, self._root)
        return _Clocks(
            at=time.monotonic(),
            of_cpus=_ticks_of_cpus(self._root),
            own_s=sum(own.values()) if own else None,
            periods=cpu_periods(self._root),
        )


def machine_state() -> MachineState:
    """Returns the state during this call, which takes a fifth of a second."""
    watch = MachineWatch()
    time.sleep(_WINDOW_S)
    return watch.state()


@dataclass(frozen=True)
class _Ticks:
    """Ticks of one core since the machine was started; usually 10 ms each."""

    busy: int
    steal: int
    total: int

    def __sub__(self, before: _Ticks) -> _Ticks:
        return _Ticks(self.busy - before.busy, self.steal - before.steal, self.total - before.total)


@dataclass(frozen=True)
class _Clocks:
    """Counters at one moment; the difference of two moments describes a window."""

    at: float
    of_cpus: Mapping[int, _Ticks]
    own_s: float | None
    periods: Periods | None


def _ticks_of_cpus(root: Path) -> dict[int, _Ticks]:
    """Reads the ticks of each core: lines `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`."""
    ticks = {}
    for line in _lines(root / "proc/stat"):
        name, *words = line.split()
        cpu = parse_whole(name.removeprefix("cpu"))
        # user and nice include the time of guests.
        counts = [parse_whole(word) or 0 for word in words[:8]]
        if name.startswith("cpu") and cpu is not None and len(counts) == 8:
            user, nice, system, idle, iowait, irq, softirq, steal = counts
            busy = user + nice + system + irq + softirq
            ticks[cpu] = _Ticks(busy, steal, busy + idle + iowait + steal)
    return ticks


def _own_seconds(own_pid: int, root: Path) -> dict[int, float]:
    """Returns the CPU seconds of a process, its descendants and ended children; {} if the system has no /proc."""
    parents: dict[int, int] = {}
    seconds: Counter[int] = Counter()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for folder in (root / "proc").glob("[0-9]*"):
        # Only the name may hold blanks and parentheses. After it: state, parent, ..., utime, stime, cutime, cstime.
        words = " ".join(_lines(folder / "stat")).rpartition(")")[2].split()
        pid = parse_whole(folder.name)
        if pid is not None and len(words) > 14:
            parents[pid] = parse_whole(words[1]) or 0
            seconds[pid] = sum(parse_whole(word) or 0 for word in words[11:15])
    own = {own_pid} & parents.keys()
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return {pid: seconds[pid] * tick_s for pid in own}


def _governors(cpus: set[int], root: Path) -> tuple[str, ...]:
    folder = root / "sys/devices/system/cpu"
    names = {_word(folder / f"cpu{cpu}" / "cpufreq/scaling_governor") for cpu in cpus}
    return tuple(sorted(names - {""}))


def _turbo(root: Path) -> bool | None:
    folder = root / "sys/devices/system/cpu"
    no_turbo, boost = _word(folder / "intel_pstate/no_turbo"), _word(folder / "cpufreq/boost")
    if no_turbo:
        return no_turbo == "0"
    return boost == "1" if boost else None


def _between(before: Periods | None, now: Periods | None) -> Periods | None:
    if before is None or now is None:
        return None
    return Periods(max(now.all - before.all, 0), max(now.throttled - before.throttled, 0))


def _word(path: Path) -> str:
    """Returns the first word of a file; "" for a missing or empty file."""
    words = " ".join(_lines(path)[:1]).split()
    return words[0] if words else ""


def _lines(path: Path) -> list[str]:
    return read_text(path).splitlines()
