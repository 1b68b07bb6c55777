"""Limits of control groups, in trees as Docker, Kubernetes and systemd make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.run.devices import cpu
from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import (
    Periods,
    affinity_cores,
    available_cores,
    available_memory,
    cpu_periods,
    cpu_quota,
    memory_limit,
)
from opatlas.run.instruments.instrument import MeasureSettings
from tests.support.fake_system import write_files

_V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
_V1_CPU = "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
_V1_MEMORY = "35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
_NONE_OF_V1 = "9223372036854771712\n"


def test_the_smallest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = write_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/unit\n",
            "proc/self/mountinfo": _V2,
            "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/slice/cpu.stat": "usage_usec 5\nnr_periods 40\nnr_throttled 7\nthrottled_usec 9\n",
            "sys/fs/cgroup/slice/memory.max": "1000000\n",
            "sys/fs/cgroup/slice/memory.current": "900000\n",
            "sys/fs/cgroup/slice/memory.stat": "anon 1\ninactive_file 100000\nactive_file 50000\nslab_reclaimable 7\n",
            "sys/fs/cgroup/slice/unit/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slice/unit/memory.max": "2000000\n",
            "sys/fs/cgroup/slice/unit/memory.high": "max\n",
            "sys/fs/cgroup/slice/unit/memory.current": "500000\n",
        },
    )
    assert cpu_quota(root) == 1.5
    assert cpu_periods(root) == Periods(all=40, throttled=7)
    assert memory_limit(root) == 1_000_000
    assert available_memory(root) == 250_007


def test_a_container_of_version_1_sees_its_own_group_as_the_top(tmp_path: Path) -> None:
    root = write_files(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n",
            "proc/self/mountinfo": _V1_CPU.format(top="/docker/ab") + _V1_MEMORY.format(top="/docker/ab"),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "2500\n",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 250\n",
        },
    )
    assert cpu_quota(root) == 4
    assert memory_limit(root) == 3000
    assert available_memory(root) == 1250


def test_groups_without_a_limit_limit_nothing(tmp_path: Path) -> None:
    root = write_files(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/a\n4:cpu:/a\n",
            "proc/self/mountinfo": _V1_CPU.format(top="/") + _V1_MEMORY.format(top="/"),
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": _NONE_OF_V1,
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "5\n",
        },
    )
    assert (cpu_quota(root), cpu_periods(root), memory_limit(root), available_memory(root)) == (None,) * 4


def test_a_system_without_groups_limits_nothing(tmp_path: Path) -> None:
    assert (cpu_quota(tmp_path), memory_limit(tmp_path), available_memory(tmp_path)) == (None,) * 3


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("150000 100000", 2), ("max 100000", 64)])
def test_a_quota_rounded_up_is_how_many_threads_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr("opatlas.run.devices.system.affinity_cores", lambda: 64)
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": _V2, "sys/fs/cgroup/cpu.max": f"{quota}\n"}
    assert available_cores(write_files(tmp_path, files)) == cores


def test_a_row_may_take_the_rest_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice(DeviceSpec("cpu"), MeasureSettings(threads=1))
    monkeypatch.setattr(cpu, "available_memory", lambda: 4096)
    assert device.available_bytes() == 4096
    monkeypatch.setattr(cpu, "available_memory", lambda: None)
    assert device.available_bytes() > 4096
    assert affinity_cores() >= 1
