"""Findings of the doctor on the real torch_npu, over stand-ins for CANN."""

from __future__ import annotations

import json
import subprocess

import pytest
from npu_environment import REPOSITORY, environment_variables

from opatlas.outer.doctor.command import PROBES


@pytest.fixture
def verdict_of(npu_python, tmp_path):
    """Runs a probe in the environment of torch_npu, in its child process."""

    def run(name, **environment):
        path = tmp_path / "verdict.json"
        target = json.dumps({"device": "npu", "kind": "npu"})
        command = [npu_python, "-m", "opatlas.outer.doctor.probe", PROBES[name].function.__module__, name, target, path]
        variables = environment_variables() | {"PYTHONPATH": str(REPOSITORY)} | environment
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(path.read_text())

    return run


def test_torch_npu_without_a_device(verdict_of):
    verdict = verdict_of("torch_npu", ASCEND_RT_VISIBLE_DEVICES="")
    assert verdict["state"] == "fail"
    assert "VISIBLE_DEVICES is ''" in verdict["detail"]
    assert verdict["facts"]["version"] == "2.13.0"


@pytest.mark.parametrize(
    ("probe", "state", "named"),
    [("npu", "fail", "/dev/davinci0"), ("custom_ops", "skip", "AddRmsNormBias")],
)
def test_probes_without_an_npu_and_without_vllm_ascend(verdict_of, probe, state, named):
    verdict = verdict_of(probe)
    assert verdict["state"] == state
    assert named in verdict["detail"]


def test_torch_npu_with_a_device(verdict_of):
    # Computing on it would wait for minutes, and then end the process.
    verdict = verdict_of("torch_npu", NPU_STUB_DEVICES="1")
    assert (verdict["state"], verdict["detail"]) == ("pass", "2.13.0, 1 device")


def test_torch_npu_has_the_calls_that_replays_make(verdict_of):
    """Of this version; custom operators and ATB have probes of their own."""
    verdict = verdict_of("npu_calls")
    assert verdict["state"] == "pass", verdict
    assert "torch_npu.npu_rms_norm" in verdict["facts"]["calls"]
