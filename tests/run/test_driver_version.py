"""The driver's version is read without opening a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.run.devices import cuda
from opatlas.run.devices.device import kind_named


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda, "_NVIDIA_MODULE", tmp_path / "version")
    return program


def test_the_kernel_module_has_the_driver_of_gpus(nvidia_smi: Path) -> None:
    nvidia_smi.with_name("version").write_text("550.54.15\n")
    assert kind_named("cuda").driver_version() == "550.54.15"


def test_nvidia_smi_has_it_where_the_module_does_not(nvidia_smi: Path) -> None:
    nvidia_smi.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] && printf "535.104.05\\n535.104.05\\n"\n')
    nvidia_smi.chmod(0o755)
    assert kind_named("cuda").driver_version() == "535.104.05"


def test_an_unknown_driver_version(nvidia_smi: Path) -> None:
    assert kind_named("cuda").driver_version() == ""
    assert kind_named("npu").driver_version() == ""
    assert kind_named("cpu").driver_version() is None
