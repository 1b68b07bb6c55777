"""Notes of a session on the machine: the cost of a flush, disturbances."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from opatlas.plugins import session_context

from opatlas.run.devices.cpu import FlushPlan
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import MachineState
from opatlas.run.instruments.instrument import MeasureSettings

MIB = 1 << 20
_QUIET = MachineState(window_s=1.0, machine_cores=2, cores=2, load_1min=0.1)


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
    monkeypatch.setattr(session_context, "plan_flush", lambda cores, threads: plan)
    settings: Any = SimpleNamespace(measure=MeasureSettings(cache=cache), devices=(DeviceSpec(kind),))
    notes = session_context.flush_notes(settings)
    assert len(notes) == notes_expected
    assert all("960 MiB" in note and "--cache warm" in note for note in notes)


def test_a_manifest_keeps_readings_and_their_meaning() -> None:
    facts = session_context.facts_of([DeviceSpec("cpu")], replace(_QUIET, other_cores=1.3), [])
    assert facts["other_cores"] == 1.3
    assert facts["gpus"] == []
    assert len(facts["disturbances"]) == 1
