"""Notes of the doctor and of a session on the machine: limits, the cost of a flush, disturbances."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from opatlas.plugins import run_manifest

from opatlas.outer.doctor import surroundings as doctor
from opatlas.outer.doctor.probe import State, Target
from opatlas.run.devices.cpu import FlushPlan
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import MachineState
from opatlas.run.instruments.instrument import MeasureSettings

MIB = 1 << 20
_QUIET = MachineState(window_s=1.0, machine_cores=2, cores=2, load_1min=0.1)
_CPU = Target(device="cpu")


def test_the_doctor_reports_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(doctor, "memory_limit", lambda: 4 << 30)
    monkeypatch.setattr(doctor, "available_memory", lambda: 1 << 30)
    found = doctor.limits(_CPU)
    assert found.state is State.PASS
    assert found.facts == {"cpu_quota": 1.5, "memory_limit_bytes": 4 << 30, "memory_left_bytes": 1 << 30}
    assert "4.0 GiB" in found.detail


def test_the_doctor_times_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FlushPlan(32 * MIB, 1, whole_bytes=MIB, read_bytes=MIB, by_line=False)
    monkeypatch.setattr(doctor, "plan_flush", lambda cores, threads: plan)
    found = doctor.flush(_CPU)
    assert found.state is State.PASS
    assert found.facts["read_bytes"] == MIB
    assert isinstance(found.facts["flush_ms"], float)
    assert found.facts["flush_ms"] > 0


def test_a_disturbance_is_a_finding_of_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "machine_state", lambda: _QUIET)
    assert doctor.disturbances(_CPU).state is State.PASS
    monkeypatch.setattr(doctor, "machine_state", lambda: replace(_QUIET, other_cores=1.3))
    found = doctor.disturbances(_CPU)
    assert found.state is State.FAIL
    assert "1.3 of 2 cores" in found.detail
    assert found.remedy


@pytest.mark.parametrize(
    ("cache", "kind", "read", "by_line", "notes_expected"),
    [
        ("cold", "cpu", 960, False, True),
        ("cold", "cpu", 128, True, False),
        ("cold", "cpu", 64, False, False),
        ("warm", "cpu", 960, False, False),
        ("cold", "cuda", 960, False, False),
    ],
)
def test_an_expensive_flush_is_reported_with_the_option_to_leave_it_out(
    monkeypatch: pytest.MonkeyPatch, cache: str, kind: str, read: int, by_line: bool, notes_expected: bool
) -> None:
    plan = FlushPlan(480 * MIB, 1, whole_bytes=960 * MIB, read_bytes=read * MIB, by_line=by_line)
    monkeypatch.setattr(run_manifest, "plan_flush", lambda cores, threads: plan)
    settings: Any = SimpleNamespace(measure=MeasureSettings(cache=cache), devices=(DeviceSpec(kind),))
    notes = run_manifest.flush_notes(settings)
    assert len(notes) == notes_expected
    assert all("960 MiB" in note and "--cache warm" in note for note in notes)


def test_a_manifest_keeps_readings_and_their_meaning() -> None:
    facts = run_manifest.facts_of([DeviceSpec("cpu")], replace(_QUIET, other_cores=1.3), [])
    assert facts["other_cores"] == 1.3
    assert facts["gpus"] == []
    assert len(facts["disturbances"]) == 1
