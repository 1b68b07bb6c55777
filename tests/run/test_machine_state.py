"""Disturbances of a measurement, read from /proc, /sys and cgroups."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import MachineState, MachineWatch, Periods, machine_state, needed_cores
from tests.support.fake_system import write_files

_QUIET = MachineState(
    window_s=1.0, machine_cores=2, cores=2, load_1min=0.1, own_cores=0.0, other_cores=0.02, steal_percent=0.0
)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)


def test_a_quiet_machine_reports_no_disturbance() -> None:
    assert _QUIET.disturbances() == []
    assert replace(_QUIET, governors=("performance",), quota_cores=2.0).disturbances() == []


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        ({"other_cores": 1.3}, "1.3 of 2"),
        ({"steal_percent": 7.5}, "7.5 %"),
        ({"governors": ("performance", "powersave")}, "powersave"),
        ({"quota_cores": 1.5}, "1.5 of 2"),
        ({"quota_cores": 2.0, "quota_periods": Periods(300, 12)}, "12 of 300"),
    ],
)
def test_each_disturbance_is_reported_once_with_its_number(changed: dict[str, object], number: str) -> None:
    (disturbance,) = replace(_QUIET, **changed).disturbances()  # type: ignore[arg-type]
    assert number in disturbance


def test_cores_that_a_session_on_gpus_does_not_need_may_be_busy() -> None:
    busy = replace(_QUIET, machine_cores=16, cores=16, other_cores=8.0, quota_cores=8.0)
    assert len(busy.disturbances(needed_cores([DeviceSpec("cpu")]))) == 2
    assert busy.disturbances(needed_cores([DeviceSpec("cuda")])) == []
    assert len(busy.disturbances(needed_cores([DeviceSpec("cuda", index) for index in range(8)]))) == 2


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
    watch = MachineWatch(tmp_path)
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
    assert state.quota_periods == Periods(all=20, throttled=4)
    assert len(state.disturbances()) == 5
    write_files(tmp_path, {child: stat.format(parent=os.getpid(), user=100, system=50)})
    later = watch.state()
    assert later.own_cores is not None
    assert later.own_cores * later.window_s == pytest.approx(1.5)
    assert later.quota_periods == Periods(0, 0)


def test_a_system_without_readings_reports_no_disturbance(tmp_path: Path) -> None:
    state = MachineWatch(tmp_path).state()
    assert (state.load, state.load_1min, state.other_cores, state.steal_percent) == ("", None, None, None)
    assert state.disturbances() == []


def test_this_machine_is_read() -> None:
    state = machine_state()
    assert state.window_s > 0
    assert state.machine_cores >= 1
