"""What the doctor says of libraries with kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.outer.doctor import implementations
from opatlas.outer.doctor.probe import State, Target
from opatlas.outer.doctor.probes import PROBES
from opatlas.run.implementations.catalog import shipped


@pytest.mark.parametrize("name", shipped())
def test_a_library_that_is_not_installed_is_skipped_with_its_remedy(name: str) -> None:
    missing = shipped()[name].missing
    if not missing:
        pytest.skip(f"{name} is installed")
    assert name in PROBES
    verdict = implementations.library(Target("cuda", "cuda"), name)
    assert (verdict.state, verdict.detail) == (State.SKIP, missing)


def test_a_compiler_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kept" / "here"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    verdict = implementations.library(Target("cpu", "cpu"), "torch_compile")
    assert verdict.state is State.FAIL
    assert "g++" in verdict.remedy
    program = tmp_path / "g++"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    verdict = implementations.library(Target("cpu", "cpu"), "torch_compile")
    assert verdict.state is State.PASS
    assert verdict.facts["folder"] == str(tmp_path / "kept" / "here")


def test_a_library_of_another_kind_of_device_is_skipped() -> None:
    assert implementations.library(Target("npu", "npu"), "torch_compile").state is State.SKIP
