"""Compiled functions of torch, run on the CPU."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
from replaying import job_of, runner
from sample_rows import ROWS

from opatlas.row.status import Status
from opatlas.run.implementation import KernelSource

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="torch.compile needs a C++ compiler for the CPU"
)


def run(kernel_type, function="wrap"):
    module = "opatlas.bench.implementations.torch_compile"
    source = KernelSource("torch_compile 1", module, "", function, function == "wrap")
    return runner().run(dataclasses.replace(job_of(kernel_type, ROWS[kernel_type][1]), source=source, timeout_s=300))


@pytest.mark.parametrize(
    ("kernel_type", "function"),
    [
        ("AddRmsNorm", "wrap"),
        ("InterleaveRope", "interleave_rope"),
        ("_triton_rope", "rotary_embedding"),
    ],
)
def test_compiled_functions_are_measured(kernel_type, function):
    outcome = run(kernel_type, function)
    assert outcome.status is Status.MEASURED, outcome.reason
    # Its process runs further rows.
    assert outcome.changed == ()
    assert outcome.measurement.execution.outputs_missing == ()


def test_a_function_whose_graph_breaks_is_unsupported():
    outcome = run("GroupedMatmul")
    assert outcome.status is Status.UNSUPPORTED
    assert "\n" not in outcome.reason
