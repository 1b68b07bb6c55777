"""GPUs and NPUs are found without torch: by device files and by nvidia-smi and npu-smi (stand-ins here)."""

from __future__ import annotations

import os
import sys

import pytest
from fake_npu_smi import A3, a2, fake_npu_smi, fields, table

from opatlas.errors import OpAtlasError
from opatlas.row.location import NPU_DEVICES, cpu_device_name
from opatlas.run.devices import cuda, device, npu, npu_smi, system
from opatlas.run.devices.npu_smi import Chip

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
    specs = device.available_devices(None)
    assert [(spec.kind, spec.index, spec.name) for spec in specs] == [("cuda", 0, H200), ("cuda", 1, H200)]
    assert device.device_environment(specs[1])[VARIABLE] == "GPU-64f63b99-8a20-1476-0a48-dc80e3dc8688"
    assert device.database_name(specs) == H200
    assert device.available_devices("cuda") == device.available_devices(H200) == specs


FAILS = {"said": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "code": 9}


@pytest.mark.parametrize(
    ("made", "visible"),
    [({"said": TWO, "version": None}, "0,1"), (FAILS, "0,1"), ({"said": TWO}, ""), ({"said": TWO}, "-1")],
)
def test_without_a_gpu_at_hand_rows_are_replayed_on_the_cpu(machine, monkeypatch, made, visible):
    machine(**made)
    monkeypatch.setenv(VARIABLE, visible)
    assert device.available_devices(None) == [device.DeviceSpec("cpu", name=cpu_device_name())]


@pytest.mark.parametrize(
    ("made", "visible", "asked", "words"),
    [
        (FAILS, None, "cuda", r"cuda: .*--gpus all"),
        ({"said": TWO}, "2", None, "2 GPUs"),
        ({"said": TWO}, "MIG-2222", None, "'MIG-2222'"),
        ({"said": TWO}, "", "cuda", f"^{VARIABLE} .*2 GPUs"),
        ({"said": MIXED}, None, None, f"{H100} and {H200}.*--device"),
        ({"said": MIXED}, None, "NVIDIA_A100", f"^--device NVIDIA_A100 .*{H100}, {H200}"),
        ({"said": TWO}, None, "ATLAS_800_A3_752T_128G_DIE", "--device ATLAS_800_A3_752T_128G_DIE:.*/davinci0"),
    ],
)
def test_what_is_not_there_is_refused(machine, monkeypatch, made, visible, asked, words):
    machine(**made)
    if visible is not None:
        monkeypatch.setenv(VARIABLE, visible)
    with pytest.raises(OpAtlasError, match=words):
        device.available_devices(asked)


@pytest.mark.parametrize(
    ("visible", "pinned"), [("1", ["1"]), ("1,0", ["1", "0"]), ("0,-1,1", ["0"]), ("GPU-64f6", ["GPU-64f6"])]
)
def test_the_callers_choice_is_kept_as_it_was_made(machine, monkeypatch, visible, pinned):
    machine(TWO)
    monkeypatch.setenv(VARIABLE, visible)
    assert pins(device.available_devices(None)) == pinned


@pytest.mark.parametrize(
    ("visible", "name", "pinned"), [("0", H200, "GPU-f89c"), ("1,2", H100, "GPU-1111"), ("0,1,2", H100, "GPU-1111")]
)
def test_of_different_gpus_the_one_of_the_folder_is_opened(machine, monkeypatch, visible, name, pinned):
    """CUDA may give the numbers of nvidia-smi to other GPUs, so a process gets the UUID."""
    machine(MIXED)
    monkeypatch.setenv(VARIABLE, visible)
    (spec,) = device.available_devices(name)
    assert (spec.name, spec.pinned[1][:8]) == (name, pinned)


def test_the_drivers_version_is_read_without_opening_a_device(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda, "_NVIDIA_MODULE", tmp_path / "version")
    assert [device.kind_named(name).driver_version() for name in ("cuda", "npu", "cpu")] == ["", "", None]
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] && printf "535.104.05\\n535.104.05\\n"\n')
    program.chmod(0o755)
    system._run.cache_clear()
    assert device.kind_named("cuda").driver_version() == "535.104.05"
    (tmp_path / "version").write_text("550.54.15\n")
    assert device.kind_named("cuda").driver_version() == "550.54.15"


NPU_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
A3_752T, A3_560T = "ATLAS_800_A3_752T_128G_DIE", "ATLAS_800_A3_560T_128G_DIE"


@pytest.fixture
def npu_machine(monkeypatch, tmp_path):
    """Gives the machine npu-smi answers, or none, and device files. The machine has no GPU."""
    monkeypatch.delenv(NPU_VARIABLE, raising=False)
    monkeypatch.setattr(cuda, "cuda_version", lambda: None)

    def make(answers=None, nodes=0):
        dev = tmp_path / "dev"
        dev.mkdir()
        for name in ("davinci_manager", *(f"davinci{i}" for i in range(nodes))):
            (dev / name).touch()
        monkeypatch.setattr(npu, "_DEVICE_FILES", dev)
        smi = fake_npu_smi(tmp_path / "bin", answers) if answers else None
        monkeypatch.setenv("PATH", os.pathsep.join([str(smi.folder)] if smi else []) + ":/usr/bin:/bin")
        return smi

    return make


def test_each_die_is_a_device_of_its_own(npu_machine):
    npu_machine(A3, nodes=4)
    assert device.available_devices(None) == [
        device.DeviceSpec("npu", index, pinned=(NPU_VARIABLE, str(index)), name=A3_752T) for index in range(4)
    ]


def test_only_those_that_the_caller_made_visible(npu_machine, monkeypatch):
    npu_machine(A3, nodes=4)
    monkeypatch.setenv(NPU_VARIABLE, "1,3")
    assert [spec.pinned for spec in device.available_devices(A3_752T)] == [(NPU_VARIABLE, "1"), (NPU_VARIABLE, "3")]


@pytest.mark.parametrize(
    ("answers", "fitting"),
    [
        (A3, {A3_752T}),
        (A3 | {"-t common -i 0 -c 0": fields("Aicore Count=20")}, {A3_560T}),
        ({"-m": A3["-m"]}, {A3_752T, A3_560T}),
        (a2("910B2"), {"ATLAS_800_A2_376T_64G"}),
        (a2("910B2C"), {"ATLAS_800_A2_376T_64G"}),
        (a2("910B3"), {"ATLAS_800_A2_313T_64G"}),
        (a2("910B4-1"), {"ATLAS_800_A2_280T_64G", "ATLAS_800_A2_280T_64G_PCIE"}),
        (a2("910B4", 32768), {"ATLAS_800_A2_280T_32G_PCIE"}),
        ({"-m": table("0,0,0,Ascend 910B4")}, {name for name in NPU_DEVICES if "_280T_" in name}),
        (a2("910B1"), {name for name in NPU_DEVICES if "_A2_" in name and "64G" in name}),
        (a2("950PR"), {"Ascend950PR"}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else "+".join(sorted(value)),
)
def test_a_name_must_fit_the_chip(npu_machine, answers, fitting):
    npu_machine(answers, nodes=1)
    for name in (*NPU_DEVICES, *fitting):
        if name in fitting:
            assert device.available_devices(name)[0].name == name
        else:
            with pytest.raises(OpAtlasError, match=rf"^--device {name}: "):
                device.available_devices(name)
    if len(fitting) == 1:
        assert device.database_name(device.available_devices(None)) in fitting
    else:
        with pytest.raises(OpAtlasError, match=r"--device.* or .*--database-path"):
            device.database_name(device.available_devices(None))


def test_without_npu_smi_a_name_is_believed_and_none_is_asked_for(npu_machine):
    npu_machine(nodes=2)
    assert {spec.name for spec in device.available_devices(A3_752T)} == {A3_752T}
    with pytest.raises(OpAtlasError, match=r"npu-smi .*--device"):
        device.database_name(device.available_devices(None))


def test_a_table_of_an_older_driver_and_one_of_a_newer():
    old = table("4,0,1,Ascend 910B3", "1,0,0,Ascend 910B3", "1,1,-,Mcu", "-1,0,2,Ascend 910B3")
    assert npu_smi.parse_chips(old) == (Chip(1, 0, 0, 0, "Ascend 910B3"), Chip(4, 0, 1, 1, "Ascend 910B3"))
    new = "NPU ID    Slot ID   Chip ID   Chip Phy-ID   Chip Name\n0  1  0  0  Ascend950PR\n1  2  0  1  Ascend950PR\n"
    assert [(chip.npu, chip.logic, chip.physical) for chip in npu_smi.parse_chips(new)] == [(0, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize("text", ["", "dcmi module initialize failed. ret is -8005\n", "NPU ID  Chip ID\n"])
def test_without_a_table_no_chip_is_found(text):
    assert npu_smi.parse_chips(text) == ()


def test_fields_without_a_value_are_left_out_and_numbers_are_numbers(npu_machine):
    npu_machine(A3)
    said = npu_smi.query_chip(npu_smi.list_chips()[3])
    assert "Model" not in said.board
    assert said.board["Firmware Version"] == "7.7.0.6.236"
    assert (said.board["Chip Count"], said.state["NPU Real-time Power(W)"]) == (2, 178.5)
    assert (said.board["Serial Number"], said.board["NPU Name"]) == ("033ABC10P8000011", 9392)


def test_npu_smi_is_asked_once_in_a_process(npu_machine):
    smi = npu_machine(A3)
    for _ in range(3):
        device.available_devices(None)
    assert smi.asked.read_text().count("info -m\n") == 1
