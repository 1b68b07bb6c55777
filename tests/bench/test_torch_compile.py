"""Functions of torch that are compiled, or whose operators a library runs, on the CPU."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import sys
import types
from functools import partial

import pytest
import torch
from opatlas.bench.implementations.torch.norm import swiglu
from replaying import job_of, runner
from sample_rows import ROWS

from opatlas.row.errors import Unsupported
from opatlas.row.status import Status
from opatlas.run.implementation import KernelSource


def run(kernel_type):
    source = KernelSource("torch_compile 1", "opatlas.bench.implementations.torch_compile", "", "wrap", True)
    return runner().run(dataclasses.replace(job_of(kernel_type, ROWS[kernel_type][1]), source=source, timeout_s=300))


def assert_measured(outcome):
    assert outcome.status is Status.MEASURED, outcome.reason
    # Its process runs further rows.
    assert outcome.changed == ()
    assert outcome.measurement.execution.outputs_missing == ()


@pytest.fixture
def graphs_only(monkeypatch):
    """A graph is run by the operators of torch: a compiler of C++ takes 10 s for the first one."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def test_a_function_is_one_graph(graphs_only):
    assert_measured(run("AddRmsNorm"))


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="torch.compile needs a C++ compiler for the CPU"
)
def test_a_compiled_function_is_measured():
    assert_measured(run("AddRmsNorm"))


def test_a_function_whose_graph_breaks_is_unsupported(graphs_only):
    outcome = run("GroupedMatmul")
    assert outcome.status is Status.UNSUPPORTED
    assert "\n" not in outcome.reason


def test_the_operators_of_torchs_functions_are_those_of_flag_gems(monkeypatch):
    ran = []
    own = {"silu": torch.sigmoid, "mul_.Tensor": lambda x, y: ran.append("mul_") or x.mul_(y)}
    monkeypatch.setitem(sys.modules, "flag_gems", types.SimpleNamespace(_FULL_CONFIG=tuple(own.items())))
    name = "opatlas.bench.implementations.flag_gems"
    monkeypatch.delitem(sys.modules, name, raising=False)
    gems = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    x = torch.randn(4, 6)
    torch.testing.assert_close(gems.wrap(swiglu)(x, -1), x[:, :3].sigmoid() * x[:, 3:])
    assert ran == ["mul_"]
    with pytest.raises(Unsupported, match=r"aten\.exp\b.*FlagGems"):
        gems.wrap(torch.exp)(x)
