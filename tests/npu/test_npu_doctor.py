"""Findings of the doctor on the real torch_npu, over stand-ins for CANN."""

from __future__ import annotations

import subprocess

import pytest
from npu_environment import REPOSITORY, environment_variables

from opatlas.outer.doctor.stages import STAGES, State, Target, Verdict
from opatlas.run.process.messages import decode, encode


@pytest.fixture
def verdict_of(npu_python, tmp_path):
    """Runs a stage in the environment of torch_npu, in its child process."""

    def run(name, **environment):
        target, verdict = tmp_path / "target", tmp_path / "verdict"
        target.write_bytes(encode(Target("npu", "npu")))
        module = STAGES[name].examine.__module__
        command = [npu_python, "-m", "opatlas.outer.doctor.command", module, name, target, verdict]
        variables = environment_variables() | {"PYTHONPATH": str(REPOSITORY)} | environment
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return decode(verdict.read_bytes(), Verdict)

    return run


def test_operators_without_an_npu(verdict_of):
    verdict = verdict_of("operators")
    assert verdict.state is State.FAIL
    assert "/dev/davinci0" in verdict.detail
