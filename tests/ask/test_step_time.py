"""The parts of a step's time: what they count, and where there are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opatlas.ask.query.model_cost import ModelCost, PartCost
from opatlas.ask.query.step_time import CONSTANTS as CONSTANTS_OF_DEVICES, StepConstants, StepTime, step_time
from opatlas.ask.query.sweep import ComparedPoint, ServedPoint
from opatlas.theory.model_step import Step, step_memory
from opatlas.theory.sources import resolve_model

CONSTANTS = StepConstants(0.5, 200.0, 0.25, 0.02, 0.01, 2.5, 4.0, 5.0, 0.5, 200.0, 0.2, 0.5, 0.02, 0.3)


def cost(
    tera_ops: float,
    device: str = "NVIDIA_H200",
    step: Step | None = None,
    message: str = "268435456|2|BF16|1",
    **changed: Any,
) -> ModelCost:
    part = {"us_per_call": 100.0, "interval_us": (97.0, 103.0), "how": "measured", "device": device}
    parts = [
        PartCost("qkv", "MatMulV2", 10, 10, "", tera_ops=tera_ops, kernels=2, **{**part, **changed}),
        PartCost("ffn_norm", "AddRmsNorm", 10, 10, "", **{**part, **changed}),
        PartCost("ffn_all_reduce", "hcom_allReduce_", 2, 2, message, **part),
        PartCost("act", "SwiGlu", 10, 10, "", reason="no rows"),
    ]
    facts, step = resolve_model("qwen3-32b"), step or Step("qwen3-32b", 8, 1)
    return ModelCost(facts.name, Path(), parts, (), step, "BF16", 10, step_memory(facts, step))


def time(*arguments: Any, **changed: Any) -> StepTime:
    found = step_time(cost(*arguments, **changed), CONSTANTS)
    assert found is not None
    return found


def test_a_step_is_its_calls_and_what_the_graph_and_their_place_add() -> None:
    found = time(100.0)
    assert found.kernels_us == 2200
    # A gap before each kernel, of which a product has two; a part without a duration is in no part of the step.
    assert (found.gaps_us, found.place_us, found.messages_us) == (16.0, 0.02 * 1000 + 5.0, 8.0)
    assert (found.power_cap_us, found.host_us) == (0.0, 0.0)
    assert found.us == pytest.approx(2200 + 16 + 25 + 8)
    low, high = found.interval_us
    assert found.us - low == pytest.approx(high - found.us)
    assert high - found.us > 0.02 * found.us


@pytest.mark.parametrize(("cache", "later_us"), [("BF16", 1.0), ("FLOAT8_E4M3FN", 3.5)])
def test_queries_are_copied_before_attention_over_a_cache_in_another_dtype(cache: str, later_us: float) -> None:
    signature = f"4,16,128;36,128,256;36,128,256|BF16;{cache};{cache}|ND;ND;ND|4,16,128|BF16"
    part = PartCost("attention", "FusedInferAttentionScore", 1, 1, signature, us_per_call=100.0)
    assert CONSTANTS.later_us(part) == pytest.approx(later_us)


def test_an_engine_whose_attention_takes_the_product_copies_no_queries() -> None:
    signature = "4,16,128;36,128,256;36,128,256|BF16;FLOAT8_E4M3FN;FLOAT8_E4M3FN|ND;ND;ND|4,16,128|BF16"
    known = {"us_per_call": 100.0, "interval_us": (97.0, 103.0), "device": "NVIDIA_H200"}
    part = PartCost("attention", "FusedInferAttentionScore", 10, 10, signature, **known)
    served = {
        engine: ComparedPoint(
            ServedPoint("m", "m", engine, "H200", 1, 1, 1, "fp8", "fp8", 4, 4608.0, 5.0),
            replace(cost(100.0), parts=[part]),
        )
        for engine in ("vllm", "trtllm")
    }
    query_us = CONSTANTS_OF_DEVICES["NVIDIA_H200"].query_us
    assert served["vllm"].told.us - served["trtllm"].told.us == pytest.approx(10 * query_us)


@pytest.mark.parametrize(
    ("message", "in_step_us"),
    [
        ("200000|2|BF16|1", 5 + 1),
        ("200000|8|BF16|1", 5 + 7 * 0.5 + 1.75),
        ("2000|8|BF16|1", 5 + 0.07),
        ("200000|16|BF16|1", 104.5),
        ("200000000|8|BF16|1", 104.5),
    ],
)
def test_an_all_reduce_of_a_host_is_that_of_engines_where_it_is_faster(message: str, in_step_us: float) -> None:
    # The row has 100 us, and the gap before it is 0.5 us.
    assert time(100.0, message=message).messages_us == pytest.approx(2 * (in_step_us - 100.5))


def test_the_collectives_of_the_library_are_those_of_the_rows() -> None:
    step = Step("qwen3-32b", 8, 1, collectives="library")
    assert time(100.0, message="200000|2|BF16|1", step=step).messages_us == time(100.0).messages_us


def test_above_a_share_of_the_peak_a_step_runs_at_the_power_cap() -> None:
    # At the H200's 989.5 TFLOPS the products would take half of their time, and collectives 200 us.
    assert time(494.75).power_cap_us == pytest.approx(0.5 * (500 - 0.2 * 2200))


def test_captured_calls_are_in_their_place_and_at_the_clock_of_a_step() -> None:
    found = time(494.75, source="captured")
    assert (found.gaps_us, found.place_us, found.power_cap_us) == (16.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("settings", "is_eager"),
    [({}, False), ({"launch": "eager"}, True), ({"captured": "4+16"}, False), ({"captured": "1+2+4"}, True)],
)
def test_without_a_graph_for_so_many_tokens_a_step_waits_for_the_host(settings: Any, is_eager: bool) -> None:
    found = time(100.0, step=Step("qwen3-32b", 8, 1, **settings))
    assert (found.host_us > 0) is is_eager
    assert found.us == pytest.approx(200 * 32 if is_eager else 2249)


def test_a_step_of_a_device_without_measured_steps_has_no_time() -> None:
    assert step_time(cost(100.0, "AMD_EPYC")) is None
    assert step_time(cost(100.0)) is not None
