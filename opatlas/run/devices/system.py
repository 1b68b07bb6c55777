"""What the operating system tells: files, output of vendors' tools, cores, and limits of control groups.

Versions 1 and 2 of cgroups are supported. All ancestors of the process's group are read, because each may set a limit.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from opatlas.text import parse_whole

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


@dataclass(frozen=True)
class Periods:
    """Numbers of periods of a CPU quota since the group was created.

    Attributes:
        all: periods in which the group ran.
        throttled: periods in which the group used up its quota and had to wait for the next period.
    """

    all: int
    throttled: int


def cpu_quota(root: Path = ROOT) -> float | None:
    """Returns the average number of cores that the quota allows; None if there is no quota."""
    quotas = (_quota(group) for group in _groups("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def cpu_periods(root: Path = ROOT) -> Periods | None:
    """Returns the periods of the most throttled group; None if no group has a quota."""
    found = []
    for group in _groups("cpu", root):
        if _quota(group) is not None:
            counts = _counts(group / "cpu.stat")
            found.append(Periods(counts.get("nr_periods", 0), counts.get("nr_throttled", 0)))
    return max(found, key=lambda periods: periods.throttled, default=None)


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
