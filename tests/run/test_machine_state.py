"""Limits of control groups and of memory, and disturbances of a measurement, read from /proc, /sys and cgroups."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from opatlas.row.errors import OutOfMemory
from opatlas.row.status import Status
from opatlas.run.devices import system
from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.registry import ReplaySpec
from opatlas.run.replay import Replay
from opatlas.run.runner import Runner
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
    assert system.cpu_quota(root) == 1.5
    assert system.throttled_periods(root) == 7
    assert system.memory_limit(root) == 1_000_000
    assert system.available_memory(root) == 250_007


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
    assert system.cpu_quota(root) == 4
    assert system.memory_limit(root) == 3000
    assert system.available_memory(root) == 1250


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
    assert (system.cpu_quota(root), system.memory_limit(root), system.available_memory(root)) == (None,) * 3
    assert system.throttled_periods(root) == 0


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("150000 100000", 2), ("max 100000", 64)])
def test_a_quota_rounded_up_is_how_many_threads_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr("opatlas.run.devices.system.affinity_cores", lambda: 64)
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": _V2, "sys/fs/cgroup/cpu.max": f"{quota}\n"}
    assert system.available_cores(write_files(tmp_path, files)) == cores


def test_a_row_may_take_the_rest_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice(DeviceSpec("cpu"), MeasureSettings(threads=1))
    monkeypatch.setattr(system, "available_memory", lambda: 4096)
    assert device.available_bytes() == 4096
    monkeypatch.setattr(system, "available_memory", lambda: None)
    assert device.available_bytes() > 4096
    assert system.affinity_cores() >= 1


_QUIET = system.MachineState(
    window_s=1.0, machine_cores=2, cores=2, load_1min=0.1, own_cores=0.0, other_cores=0.02, steal_percent=0.0
)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        ({"other_cores": 1.3}, "1.3 of 2"),
        ({"steal_percent": 7.5}, "7.5 %"),
        ({"governors": ("performance", "powersave")}, "powersave"),
        ({"quota_cores": 1.5}, "1.5 of 2"),
        ({"quota_cores": 2.0, "throttled_periods": 12}, "12 periods"),
    ],
)
def test_each_disturbance_is_reported_once_with_its_number(changed: dict[str, object], number: str) -> None:
    (disturbance,) = replace(_QUIET, **changed).disturbances()  # type: ignore[arg-type]
    assert number in disturbance


def test_cores_that_a_session_on_gpus_does_not_need_may_be_busy() -> None:
    busy = replace(_QUIET, machine_cores=16, cores=16, other_cores=8.0, quota_cores=8.0)
    assert len(busy.disturbances(system.needed_cores([DeviceSpec("cpu")]))) == 2
    assert busy.disturbances(system.needed_cores([DeviceSpec("cuda")])) == []
    assert len(busy.disturbances(system.needed_cores([DeviceSpec("cuda", index) for index in range(8)]))) == 2


def test_a_watch_reports_the_changes_between_two_readings(tmp_path: Path) -> None:
    own = f"proc/{os.getpid()}/stat"
    child = f"proc/{os.getpid() + 1}/stat"
    stat = "1 (a (b) c) R {parent} 0 0 0 0 0 0 0 0 0 {user} {system} 0 0 20 0\n"
    write_files(
        tmp_path,
        {
            "proc/loadavg": "4.20 1.00 0.50 3/95 5818\n",
            "proc/stat": "cpu 1 1 1 1 1 1 1 1 0 0\ncpu0 0 0 0 1000 0 0 0 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0\n",
            own: stat.format(parent=1, user=0, system=0),
            child: stat.format(parent=os.getpid(), user=0, system=0),
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/cpu.stat": "nr_periods 10\nnr_throttled 1\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
        },
    )
    watch = system.MachineWatch(tmp_path)
    write_files(
        tmp_path,
        {
            "proc/stat": "cpu0 60 0 0 1030 0 0 0 10 0 0\ncpu1 90 0 5 1000 0 0 5 0 0 0\n",
            "sys/fs/cgroup/cpu.stat": "nr_periods 30\nnr_throttled 5\n",
        },
    )
    state = watch.state()
    assert (state.machine_cores, state.cores, state.load_1min) == (2, 2, 4.2)
    assert state.steal_percent == 5.0
    assert state.other_cores == 1.6
    assert state.own_cores == 0.0
    assert state.governors == ("powersave",)
    assert state.quota_cores == 1.5
    assert state.throttled_periods == 4
    assert len(state.disturbances()) == 5
    write_files(tmp_path, {child: stat.format(parent=os.getpid(), user=100, system=50)})
    later = watch.state()
    assert later.own_cores is not None
    assert later.own_cores * later.window_s == pytest.approx(1.5)
    assert later.throttled_periods == 0


def test_a_system_without_readings_reports_no_disturbance(tmp_path: Path) -> None:
    state = system.MachineWatch(tmp_path).state()
    assert (state.load, state.load_1min, state.other_cores, state.steal_percent) == ("", None, None, None)
    assert state.disturbances() == []


#: The kernel takes far more than its tensors, which the cells of a row do not show.
REPLAY = """
from opatlas.bench import formulas
from opatlas.run.registry import replays


def greedy(x, y):
    return x.new_zeros(1 << 24).sum() + x + y


@replays("Greedy", npu="torch.add")
def test_greedy(row, replay):
    replay(greedy, *row.inputs(), expected=formulas.add)
"""
CELLS_OF_ROW = {
    "Input Shapes": "262144;262144",
    "Input Data Types": "FLOAT;FLOAT",
    "Input Formats": "ND;ND",
    "Output Shapes": "262144",
    "Output Data Types": "FLOAT",
    "Output Formats": "ND",
}


@pytest.mark.parametrize(
    ("kind", "host_bytes", "fits"), [("mps", 1 << 20, False), ("mps", 1 << 40, True), ("cuda", 1 << 20, True)]
)
def test_a_row_that_is_checked_on_the_host_must_fit_there_too(monkeypatch, kind, host_bytes, fits) -> None:
    """A device without float64, such as an NPU; torch without torch_npu knows no device of that name."""
    device = SimpleNamespace(torch_device=torch.device(kind), available_bytes=lambda: 1 << 40)
    monkeypatch.setattr("opatlas.run.replay.host_available_bytes", lambda: host_bytes)
    cells = {**CELLS_OF_ROW, "Input Shapes": "8192,8192;8192,8192", "Output Shapes": "8192,8192"}
    row = ReplayRow("Add", cells, torch.device("cpu"))
    replay = Replay(
        row, ReplaySpec(("Add",), npu="torch.add"), device, SimpleNamespace(name="wall-clock"), MeasureSettings()
    )
    with nullcontext() if fits else pytest.raises(OutOfMemory, match="host"):
        replay.expect_memory()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone bounds the memory of a process so")
@pytest.mark.parametrize(("available", "status"), [(1 << 24, Status.OOM), (1 << 30, Status.MEASURED)])
def test_a_kernel_that_needs_too_much_memory_costs_its_row(tmp_path, monkeypatch, available, status) -> None:
    (tmp_path / "greedy_replay.py").write_text(REPLAY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(CpuDevice, "available_bytes", lambda self: available)
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, threads=1, cache="warm"))
    outcome = runner.run(Job("greedy_replay", "", "test_greedy", "Greedy", CELLS_OF_ROW, timeout_s=60))
    assert outcome.status is status, outcome.reason
