"""Where torch_npu cannot be had, the tests of NPU calls are skipped, and say why."""

from __future__ import annotations

import platform

import npu_environment
import pytest
from npu_environment import Unavailable, environment_variables, python_with_torch_npu


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="gcc, nm, readelf"):
        python_with_torch_npu(tmp_path)


def test_on_another_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(Unavailable, match="on riscv64"):
        python_with_torch_npu(tmp_path)


def test_without_the_wheel(monkeypatch, tmp_path):
    # Also how it is where no package index can be reached.
    monkeypatch.setattr(npu_environment, "TORCH_NPU", "0.0.1")
    with pytest.raises(Unavailable, match=r"torch_npu 0\.0\.1"):
        python_with_torch_npu(tmp_path)


def test_a_real_cann_is_out_of_sight(monkeypatch):
    monkeypatch.setenv("ASCEND_HOME_PATH", "/usr/local/Ascend")
    assert not any(name.startswith("ASCEND") for name in environment_variables())


def test_it_is_made_once(npu_python, monkeypatch):
    monkeypatch.setattr(npu_environment, "_pip", pytest.fail)
    assert python_with_torch_npu(npu_python.parents[2]) == npu_python
