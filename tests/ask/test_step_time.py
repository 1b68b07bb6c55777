"""The parts of a step in a graph: what they count, and where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opatlas.ask.query.model_cost import ModelCost, PartCost
from opatlas.ask.query.step_time import StepConstants, step_time
from opatlas.theory.model_step import Step, step_memory
from opatlas.theory.sources import resolve_model

CONSTANTS = StepConstants(0.5, 0.25, 4.0, 0.4, 0.1, 0.02, 0.2)


def cost(tera_ops: float, device: str = "NVIDIA_H200", **changed: Any) -> ModelCost:
    part = {"us_per_call": 100.0, "interval_us": (97.0, 103.0), "how": "measured", "device": device}
    parts = [
        PartCost("qkv", "MatMulV2", 10, 10, "", tera_ops=tera_ops, **{**part, **changed}),
        PartCost("ffn_all_reduce", "hcom_allReduce_", 2, 2, "", **part),
        PartCost("act", "SwiGlu", 10, 10, "", reason="no rows"),
    ]
    facts, step = resolve_model("qwen3-32b"), Step("qwen3-32b", 1, 1)
    return ModelCost(facts.name, Path(), parts, (), step, "BF16", 10, step_memory(facts, step))


def test_a_step_is_its_calls_and_what_the_graph_adds_to_each() -> None:
    found = step_time(cost(100.0), CONSTANTS)
    assert found is not None
    assert found.kernels_us == 1200
    # A part without a duration is in no part of the step.
    assert (found.gaps_us, found.place_us, found.messages_us, found.power_cap_us) == (6.0, 2.5, 8.0, 0.0)
    assert found.us == 1216.5
    low, high = found.interval_us
    assert found.us - low == pytest.approx(high - found.us)
    assert high - found.us > 0.02 * found.us


def test_a_step_near_the_peak_runs_at_the_power_cap() -> None:
    found = step_time(cost(500.0), CONSTANTS)
    assert found is not None
    assert found.power_cap_us == pytest.approx(0.1 * 1000)


def test_captured_calls_are_in_their_place_and_at_the_clock_of_a_step() -> None:
    found = step_time(cost(500.0, source="captured"), CONSTANTS)
    assert found is not None
    assert (found.gaps_us, found.place_us, found.power_cap_us) == (6.0, 0.0, 0.0)


def test_a_step_of_a_device_without_measured_steps_has_no_time() -> None:
    assert step_time(cost(100.0, "AMD_EPYC")) is None
    assert step_time(cost(100.0)) is not None
