"""The devices in the manifest of a run: each once, whatever its state was each time it was opened."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

from opatlas.plugins.records import SessionRecords

from opatlas.run.devices.device import DeviceDescription

GPU = DeviceDescription("NVIDIA_H200", {"uuid": "GPU-1", "torch": "2.11.0"}, "cuda", {"temperature_c": 41})
HOTTER = replace(GPU, state={"temperature_c": 63})
GROUP = replace(GPU, facts={**GPU.facts, "ranks": 2})


def test_a_device_that_was_opened_again_is_listed_once() -> None:
    context: Any = SimpleNamespace(settings=SimpleNamespace(rehearses=False))
    records = SessionRecords(context, context)
    for device in (GPU, HOTTER, GROUP, replace(GROUP, state=HOTTER.state), GPU):
        records.take({"record": {"status": "measured"}, "device": asdict(device)}, 0)
    assert records.devices == [GPU, GROUP]
    assert records.devices[0].state == GPU.state
    assert records.device_name == "NVIDIA_H200"
