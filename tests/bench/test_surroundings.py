"""The state of the machine in the manifest of a run."""

from __future__ import annotations

from opatlas.plugins import session_context

from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import MachineState


def test_a_manifest_keeps_readings_and_their_meaning() -> None:
    quiet = MachineState(window_s=1.0, machine_cores=2, cores=2, load_1min=0.1, other_cores=1.3)
    facts = session_context.facts_of([DeviceSpec("cpu")], quiet, [])
    assert facts["other_cores"] == 1.3
    assert facts["gpus"] == []
    assert len(facts["disturbances"]) == 1
