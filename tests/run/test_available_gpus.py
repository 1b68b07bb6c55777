"""GPUs are found without torch, by the output of nvidia-smi (a stand-in here), and a process sees only its own."""

from __future__ import annotations

import sys

import pytest

from opatlas.errors import OpAtlasError
from opatlas.row.location import cpu_device_name
from opatlas.run.devices import cuda, npu, system
from opatlas.run.devices.device import (
    DeviceSpec,
    available_devices,
    database_name,
    device_environment,
    kind_named,
    visible_ids,
)

VARIABLE = "CUDA_VISIBLE_DEVICES"
H200, H100 = "NVIDIA_H200", "NVIDIA_H100_80GB_HBM3"
TWO = (
    "GPU 0: NVIDIA H200 (UUID: GPU-f89c029f-2a4a-0051-75af-431226ec9b55)\n"
    "GPU 1: NVIDIA H200 (UUID: GPU-64f63b99-8a20-1476-0a48-dc80e3dc8688)\n"
)
MIXED = TWO + (
    "GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-8a20-1476-0a48-dc80e3dc8688)\n"
    "  MIG 1g.10gb     Device  0: (UUID: MIG-22222222-8a20-1476-0a48-dc80e3dc8688)\n"
)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Gives the machine an nvidia-smi that says something, or fails, and a torch for CUDA, or none."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(npu, "npus_present", lambda: 0)

    def make(said, code=0, version="13.0"):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == ['-L']\nprint({said!r}, end='')\n")
        program.open("a").write(f"sys.exit({code})\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(cuda, "cuda_version", lambda: version)
        system._run.cache_clear()

    yield make
    system._run.cache_clear()


def pins(specs):
    return [spec.pinned[1] for spec in specs]


def test_gpus_are_the_device_at_hand_and_each_process_sees_one(machine):
    machine(TWO)
    specs = available_devices(None)
    assert [(spec.kind, spec.index, spec.name) for spec in specs] == [("cuda", 0, H200), ("cuda", 1, H200)]
    assert device_environment(specs[1])[VARIABLE] == "GPU-64f63b99-8a20-1476-0a48-dc80e3dc8688"
    assert database_name(specs) == H200
    assert available_devices("cuda") == available_devices(H200) == specs


def test_a_torch_without_cuda_replays_on_the_cpu_unless_the_gpu_is_asked_for(machine):
    machine(TWO, version=None)
    assert available_devices(None) == [DeviceSpec("cpu", name=cpu_device_name())]
    assert len(available_devices("cuda")) == 2


def test_an_nvidia_smi_that_fails_shows_none(machine):
    machine("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", code=9)
    assert [spec.kind for spec in available_devices(None)] == ["cpu"]
    with pytest.raises(OpAtlasError, match=r"cuda: .*--gpus all"):
        available_devices("cuda")


@pytest.mark.parametrize(
    ("visible", "pinned"), [("1", ["1"]), ("1,0", ["1", "0"]), ("0,-1,1", ["0"]), ("GPU-64f6", ["GPU-64f6"])]
)
def test_the_callers_choice_is_kept_as_it_was_made(machine, monkeypatch, visible, pinned):
    machine(TWO)
    monkeypatch.setenv(VARIABLE, visible)
    assert pins(available_devices(None)) == pinned


@pytest.mark.parametrize(("visible", "words"), [("2", "2 GPUs"), ("MIG-2222", "'MIG-2222'")])
def test_a_choice_of_none_is_refused(machine, monkeypatch, visible, words):
    machine(TWO)
    monkeypatch.setenv(VARIABLE, visible)
    with pytest.raises(OpAtlasError, match=words):
        available_devices(None)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_gpus_that_are_hidden_on_purpose_are_not_at_hand(machine, monkeypatch, hidden):
    machine(TWO)
    monkeypatch.setenv(VARIABLE, hidden)
    assert [spec.kind for spec in available_devices(None)] == ["cpu"]
    with pytest.raises(OpAtlasError, match=f"^{VARIABLE} .*2 GPUs"):
        available_devices("cuda")


def test_of_different_gpus_one_kind_is_to_be_named(machine):
    machine(MIXED)
    with pytest.raises(OpAtlasError, match=f"{H100} and {H200}.*--device"):
        available_devices(None)
    assert pins(available_devices(H100)) == ["GPU-11111111-8a20-1476-0a48-dc80e3dc8688"]
    with pytest.raises(OpAtlasError, match=f"^--device NVIDIA_A100 .*{H100}, {H200}"):
        available_devices("NVIDIA_A100")


@pytest.mark.parametrize(("visible", "name", "pinned"), [("0", H200, "GPU-f89c"), ("1,2", H100, "GPU-1111")])
def test_of_different_gpus_the_one_of_the_folder_is_opened(machine, monkeypatch, visible, name, pinned):
    """CUDA may give the numbers of nvidia-smi to other GPUs, so a process gets the UUID."""
    machine(MIXED)
    monkeypatch.setenv(VARIABLE, visible)
    (spec,) = available_devices(name)
    assert (spec.name, spec.pinned[1][:8]) == (name, pinned)


@pytest.mark.parametrize(
    ("value", "ids"), [(None, ["0", "1", "2"]), (" 1 , 2 ", ["1", "2"]), ("-1", []), ("0,7,1", ["0"]), ("1,1,2", ["1"])]
)
def test_the_list_of_visible_devices_ends_at_the_first_invalid_one(value, ids):
    assert visible_ids(VARIABLE, 3, {} if value is None else {VARIABLE: value}) == ids


def test_the_drivers_version_is_read_without_opening_a_device(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda, "_NVIDIA_MODULE", tmp_path / "version")
    assert [kind_named(name).driver_version() for name in ("cuda", "npu", "cpu")] == ["", "", None]
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] && printf "535.104.05\\n535.104.05\\n"\n')
    program.chmod(0o755)
    system._run.cache_clear()
    assert kind_named("cuda").driver_version() == "535.104.05"
    (tmp_path / "version").write_text("550.54.15\n")
    assert kind_named("cuda").driver_version() == "550.54.15"
