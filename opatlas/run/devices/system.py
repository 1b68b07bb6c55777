"""What the operating system tells: cores, limits of control groups, and disturbances of measurements.

Versions 1 and 2 of cgroups are supported. All ancestors of the process's group are read, because each may set a limit.
A value that the system does not provide is None.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from opatlas.run.devices.device import DeviceSpec
from opatlas.text import parse_real, parse_whole

ROOT = Path("/")
#: The keys of /proc/cpuinfo that describe a model of CPUs, on x86 and on ARM.
_PROCESSOR = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
#: Page cache and kernel caches that the kernel reclaims before it kills a process. In version 1 names with the
#: prefix "total_" stand for sums over child groups.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def read_text(path: Path) -> str:
    """Returns the text of a file; "" if the file does not exist or this process may not read it."""
    try:
        # Names of mounts and processes may have any encoding.
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def run_tool(tool: str, *arguments: str, timeout_s: float) -> str:
    """Returns the output of a tool; "" if it is not on PATH, fails, or takes longer than `timeout_s`.

    A tool is run once in a process for the same arguments.
    """
    executable = shutil.which(tool)
    return "" if executable is None else _run(executable, arguments, timeout_s)


@cache
def _run(executable: str, arguments: Sequence[str], timeout_s: float) -> str:
    import subprocess

    try:
        done = subprocess.run(
            [executable, *arguments], capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def processor() -> str:
    """Returns what tells CPUs apart that have one name, such as `cpu family 26, model 2`; "" if unknown."""
    lines = read_text(Path("/proc/cpuinfo")).split("\n\n")[0].splitlines()
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return ", ".join(f"{name} {values[name]}" for name in _PROCESSOR if name in values)


def available_cores(root: Path = ROOT) -> int:
    """Returns the number of threads that can run at once: the cores in the affinity mask, or fewer with a CPU quota."""
    quota = cpu_quota(root)
    # Rounded up: one more thread uses the fraction of a core.
    return affinity_cores() if quota is None else max(min(affinity_cores(), math.ceil(quota)), 1)


def affinity_cores() -> int:
    """Returns the number of cores in the affinity mask."""
    return len(usable_cores())


def usable_cores() -> set[int]:
    """Returns the cores in the affinity mask."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:
        # Not Linux.
        return set(range(os.cpu_count() or 1))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Returns the average number of cores that the quota allows; None if there is no quota."""
    quotas = (_quota(group) for group in _groups("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def throttled_periods(root: Path = ROOT) -> int:
    """Returns the periods in which the most throttled group had used up its quota, since it was created."""
    quotas = (group for group in _groups("cpu", root) if _quota(group) is not None)
    return max((_counts(group / "cpu.stat").get("nr_throttled", 0) for group in quotas), default=0)


def memory_limit(root: Path = ROOT) -> int | None:
    """Returns the memory limit of the process's groups in bytes; None if there is no limit."""
    limits = (_memory_limit(group) for group in _groups("memory", root))
    return min((limit for limit in limits if limit is not None), default=None)


def available_memory(root: Path = ROOT) -> int | None:
    """Returns the bytes left below the limits, including reclaimable caches; None if there is no limit."""
    left = []
    for group in _groups("memory", root):
        limit = _memory_limit(group)
        used = _first_number(group, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            counts = _counts(group / "memory.stat")
            reclaimable = sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in _RECLAIMABLE)
            left.append(max(limit - max(used - reclaimable, 0), 0))
    return min(left, default=None)


def _quota(group: Path) -> float | None:
    words = read_text(group / "cpu.max").split()
    if len(words) == 2:
        quota, period = parse_whole(words[0]), parse_whole(words[1])
    else:
        quota, period = _first_number(group, "cpu.cfs_quota_us"), _first_number(group, "cpu.cfs_period_us")
    # "max" and -1 mean that there is no quota.
    return quota / period if quota and period and quota > 0 else None


def _memory_limit(group: Path) -> int | None:
    # `parse_whole` returns None for "max", and for version 1's largest multiple of a page below 2^63: no limit.
    limits = [_first_number(group, name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yields the folders of the process's groups for a controller, from the process's own group upwards."""
    for version, controllers, path in _memberships(root):
        if version == 1 and controller not in controllers:
            continue
        for mount in _mounts(version, controller, root):
            # In a container without a cgroup namespace the container's group is mounted as the root, but
            # /proc/self/cgroup has the host's path.
            try:
                below = PurePosixPath(path).relative_to(mount.top)
            except ValueError:
                below = PurePosixPath(".")
            top = root / mount.point.lstrip("/")
            own = top if ".." in below.parts else top / below
            for folder in (own, *own.parents):
                yield folder
                if folder == top:
                    break


def _memberships(root: Path) -> Iterator[tuple[int, list[str], str]]:
    """Yields version, controllers and path of each line of /proc/self/cgroup."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path:
            yield (2 if number == "0" and not controllers else 1), controllers.split(","), path


@dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy: its mount point, and the group that is its root there."""

    point: str
    top: str


def _mounts(version: int, controller: str, root: Path) -> Iterator[_Mount]:
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, about = mount.split(), filesystem.split()
        if len(fields) < 5 or len(about) < 3:
            continue
        named = about[0] == "cgroup2" if version == 2 else about[0] == "cgroup" and controller in about[2].split(",")
        if named:
            yield _Mount(point=fields[4], top=fields[3])


def _first_number(group: Path, *names: str) -> int | None:
    """Returns the number in the first of the files that holds a number."""
    numbers = (parse_whole(read_text(group / name).strip()) for name in names)
    return next((number for number in numbers if number is not None), None)


def _counts(path: Path) -> dict[str, int]:
    counts = {}
    for line in read_text(path).splitlines():
        name, _, text = line.partition(" ")
        number = parse_whole(text.strip())
        if number is not None:
            counts[name] = number
    return counts


#: Work of other processes, in cores. A quarter of a core takes ten of every forty milliseconds, which affects samples.
OTHER_CORES_LIMIT = 0.25
#: Share of the time in which the hypervisor ran other machines on the cores. One percent exceeds 0.5 %, the error
#: below which the stop rule considers a mean precise.
STEAL_LIMIT_PERCENT = 1.0
#: The only governor that keeps the clock frequency while a core is idle between samples.
STEADY_GOVERNOR = "performance"


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
        quota_cores: average number of cores that the CPU quota of the process's groups allows.
        throttled_periods: number of periods of that quota in the window in which it was used up.
    """

    window_s: float
    machine_cores: int
    cores: int
    load_1min: float | None = None
    own_cores: float | None = None
    other_cores: float | None = None
    steal_percent: float | None = None
    governors: tuple[str, ...] = ()
    quota_cores: float | None = None
    throttled_periods: int = 0

    @property
    def load(self) -> str:
        """Returns the load average in words; "" if the system has none."""
        cores = f"{self.machine_cores} core{'' if self.machine_cores == 1 else 's'}"
        return "" if self.load_1min is None else f"load {self.load_1min:.1f} on {cores}"

    def disturbances(self, needed_cores: int | None = None) -> list[str]:
        """Returns a phrase with numbers for each likely disturbance; [] on a quiet machine.

        Args:
            needed_cores: number of usable cores that the session needs (`needed_cores`); None: all.
        """
        found = []
        needed = self.cores if needed_cores is None else min(needed_cores, self.cores)
        # Other processes do not disturb if enough cores for the session stay idle.
        if self.other_cores is not None and self.other_cores > self.cores - needed + OTHER_CORES_LIMIT:
            found.append(f"other processes keep {self.other_cores:.1f} of {self.cores} cores busy")
        if self.steal_percent is not None and self.steal_percent > STEAL_LIMIT_PERCENT:
            found.append(f"the hypervisor takes {self.steal_percent:.1f} % of the time (steal)")
        if unsteady := [name for name in self.governors if name != STEADY_GOVERNOR]:
            found.append(f"governor {', '.join(unsteady)}")
        if self.quota_cores is not None and self.quota_cores < needed:
            found.append(f"CPU quota {self.quota_cores:g} of {self.cores} cores")
        if self.throttled_periods:
            found.append(f"the CPU quota was used up in {self.throttled_periods} periods")
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
            quota_cores=cpu_quota(root),
            throttled_periods=max(now.throttled_periods - before.throttled_periods, 0),
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
            throttled_periods=throttled_periods(self._root),
        )


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
    throttled_periods: int


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


def _word(path: Path) -> str:
    """Returns the first word of a file; "" for a missing or empty file."""
    words = " ".join(_lines(path)[:1]).split()
    return words[0] if words else ""


def _lines(path: Path) -> list[str]:
    return read_text(path).splitlines()
