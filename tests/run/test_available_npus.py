"""NPUs are found without torch: by their device files and by the output of npu-smi (a stand-in here)."""

from __future__ import annotations

import os

import pytest
from fake_npu_smi import A3, a2, fake_npu_smi, fields, table

from opatlas.errors import OpAtlasError
from opatlas.row.location import NPU_DEVICES, cpu_device_name
from opatlas.run.devices import cuda, npu, npu_smi
from opatlas.run.devices.device import DeviceSpec, available_devices, database_name
from opatlas.run.devices.npu_smi import Chip

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
A3_752T, A3_560T = "ATLAS_800_A3_752T_128G_DIE", "ATLAS_800_A3_560T_128G_DIE"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Gives the machine npu-smi answers, or none, and device files. The machine has no GPU."""
    monkeypatch.delenv(VARIABLE, raising=False)
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


def test_each_die_is_a_device_of_its_own(machine):
    machine(A3, nodes=4)
    assert available_devices(None) == [
        DeviceSpec("npu", index, pinned=(VARIABLE, str(index)), name=A3_752T) for index in range(4)
    ]


def test_only_those_that_the_caller_made_visible(machine, monkeypatch):
    machine(A3, nodes=4)
    monkeypatch.setenv(VARIABLE, "1,3")
    assert [spec.pinned for spec in available_devices(A3_752T)] == [(VARIABLE, "1"), (VARIABLE, "3")]


def test_without_device_files_npu_smi_decides(machine):
    machine(A3)
    assert len(available_devices("npu")) == 4


def test_a_machine_without_npus_is_not_asked_twice_and_replays_on_its_cpu(machine):
    machine()
    assert available_devices(None) == available_devices("cpu") == [DeviceSpec("cpu", name=cpu_device_name())]


def test_an_npu_that_is_not_there_is_refused(machine):
    machine()
    with pytest.raises(OpAtlasError, match=f"--device {A3_752T}:.*/davinci0"):
        available_devices(A3_752T)


def test_npus_that_are_hidden_on_purpose_are_not_at_hand(machine, monkeypatch):
    machine(A3, nodes=4)
    monkeypatch.setenv(VARIABLE, "")
    assert [spec.kind for spec in available_devices(None)] == ["cpu"]


def test_a_variable_that_shows_none_is_named(machine, monkeypatch):
    machine(A3, nodes=4)
    monkeypatch.setenv(VARIABLE, "4")
    with pytest.raises(OpAtlasError, match=f"^{VARIABLE} .*4 NPUs"):
        available_devices(None)


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
def test_a_name_must_fit_the_chip(machine, answers, fitting):
    machine(answers, nodes=1)
    for name in (*NPU_DEVICES, *fitting):
        if name in fitting:
            assert available_devices(name)[0].name == name
        else:
            with pytest.raises(OpAtlasError, match=rf"^--device {name}: "):
                available_devices(name)
    if len(fitting) == 1:
        assert database_name(available_devices(None)) in fitting
    else:
        with pytest.raises(OpAtlasError, match=r"--device.* or .*--database-path"):
            database_name(available_devices(None))


def test_without_npu_smi_a_name_is_believed_and_none_is_asked_for(machine):
    machine(nodes=2)
    assert {spec.name for spec in available_devices(A3_752T)} == {A3_752T}
    with pytest.raises(OpAtlasError, match=r"npu-smi .*--device"):
        database_name(available_devices(None))


def test_dies_of_a_card_and_their_places(machine):
    machine(A3)
    assert npu_smi.list_chips()[-1] == Chip(npu=1, chip=1, logic=3, physical=3, name="Ascend910")


def test_a_table_of_an_older_driver_and_one_of_a_newer():
    old = table("4,0,1,Ascend 910B3", "1,0,0,Ascend 910B3", "1,1,-,Mcu", "-1,0,2,Ascend 910B3")
    assert npu_smi.parse_chips(old) == (Chip(1, 0, 0, 0, "Ascend 910B3"), Chip(4, 0, 1, 1, "Ascend 910B3"))
    new = "NPU ID    Slot ID   Chip ID   Chip Phy-ID   Chip Name\n0  1  0  0  Ascend950PR\n1  2  0  1  Ascend950PR\n"
    assert [(chip.npu, chip.logic, chip.physical) for chip in npu_smi.parse_chips(new)] == [(0, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize("text", ["", "dcmi module initialize failed. ret is -8005\n", "NPU ID  Chip ID\n"])
def test_without_a_table_no_chip_is_found(text):
    assert npu_smi.parse_chips(text) == ()


def test_fields_without_a_value_are_left_out_and_numbers_are_numbers(machine):
    machine(A3)
    said = npu_smi.query_chip(npu_smi.list_chips()[3])
    assert "Model" not in said.board
    assert said.board["Firmware Version"] == "7.7.0.6.236"
    assert (said.board["Chip Count"], said.state["NPU Real-time Power(W)"]) == (2, 178.5)
    assert (said.board["Serial Number"], said.board["NPU Name"]) == ("033ABC10P8000011", 9392)


def test_npu_smi_is_asked_once_in_a_process(machine):
    smi = machine(A3)
    for _ in range(3):
        available_devices(None)
    assert smi.asked.read_text().count("info -m\n") == 1
