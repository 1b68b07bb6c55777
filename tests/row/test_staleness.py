"""Durations that were measured by other code, or with another driver or other versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opatlas.data.comparable import PresentSetup, Staleness, StaleRuns
from opatlas.data.manifest import Manifest
from opatlas.data.origin import MeasurementOrigin

DEVICE = {"name": "NVIDIA_H200", "kind": "cuda", "facts": {"driver": "550.54.15", "torch": "2.9.0", "cuda": "13.0"}}
RUN = Manifest("run-1", 0.0, {}, "abc", device=DEVICE, packages={})
PRESENT = PresentSetup(
    MeasurementOrigin("NVIDIA_H200", "cuda", {"torch": "2.9.0", "CUDA (of torch)": "13.0"}), "550.54.15", "abc"
)


def device(**facts: str) -> dict[str, object]:
    return {**DEVICE, "facts": {**DEVICE["facts"], **facts}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("manifest", "present", "staleness"),
    [
        (RUN, PRESENT, Staleness.FRESH),
        (replace(RUN, code="abd"), PRESENT, Staleness.CODE),
        (replace(RUN, device=device(driver="535.1")), PRESENT, Staleness.DRIVER),
        (replace(RUN, device=device(driver="535.1"), code="abd"), PRESENT, Staleness.DRIVER),
        (replace(RUN, device=device(torch="2.8.0", driver="535.1")), PRESENT, Staleness.VERSIONS),
        (replace(RUN, device=device(cuda="12.9")), PRESENT, Staleness.VERSIONS),
        (replace(RUN, device={**DEVICE, "name": "NVIDIA_H100"}, code="abd"), PRESENT, Staleness.OTHER_DEVICE),
        (RUN, replace(PRESENT, driver=""), Staleness.FRESH),
        (replace(RUN, device=device(driver="")), PRESENT, Staleness.FRESH),
    ],
)
def test_the_first_reason_counts_and_what_is_not_known_does_not(
    manifest: Manifest, present: PresentSetup, staleness: Staleness
) -> None:
    assert StaleRuns({"run-1": manifest}, present).staleness("run-1") is staleness


def test_without_a_manifest_a_duration_is_stale() -> None:
    assert StaleRuns({}, PRESENT).staleness("run-1") is Staleness.NO_MANIFEST
    assert Staleness.NO_MANIFEST.is_stale
    assert not Staleness.OTHER_DEVICE.is_stale
