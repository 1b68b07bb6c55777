"""What --device names: devices of a conftest.py, kinds, and, for `pytest shapes/`, those that are not here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import simulated
from opatlas.plugins import theory
from opatlas.plugins.target import assumed_versions, devices_of

from opatlas.errors import OpAtlasError
from opatlas.row.location import cpu_device_name
from opatlas.row.versions import Versions
from opatlas.run.devices import cuda, npu
from opatlas.run.devices.device import DeviceSpec, available_devices, database_name

VERSIONS = Versions("0.18.0", "2.9.0", "8.5.0")


@pytest.fixture(autouse=True)
def _no_accelerators(monkeypatch):
    monkeypatch.setattr(npu, "npus_present", lambda: 0)
    monkeypatch.setattr(cuda, "list_gpus", lambda: ())
    monkeypatch.delenv(simulated.VISIBLE, raising=False)


def config(device, hook=available_devices):
    """pytest's, as far as it is looked at: --device, and what the hook answers."""
    option = SimpleNamespace(device=device, prof_path=None, ray=None, database_path=None, versions=VERSIONS)
    return SimpleNamespace(
        option=option, hook=SimpleNamespace(pytest_opatlas_devices=lambda config: hook(config.option.device))
    )


def named(device):
    return [DeviceSpec("toy", opener="toy:Toy", name="TOY_9000")]


@pytest.mark.parametrize("name", [None, "toy", "TOY_9000"])
def test_a_device_of_a_conftest_goes_by_its_kind_and_its_name(name):
    assert devices_of(config(name, named)) == named(name)
    assert theory.database_path(config(name, named)).parts[-3:] == ("TOY_9000", "torch", "torch2.9.0_cpu")


@pytest.mark.parametrize("name", ["cuda", "cpu", "NVIDIA_H200", "TOY_9001"])
def test_a_hook_that_does_not_heed_the_option_is_told_of(name):
    with pytest.raises(pytest.UsageError, match=rf"^--device {name}: .*TOY_9000"):
        devices_of(config(name, named))


def test_a_device_without_a_name_has_no_database_by_default():
    with pytest.raises(OpAtlasError, match=r"kind simulated .*--database-path"):
        database_name(simulated.devices(2))


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        (None, (cpu_device_name(), "torch", "torch2.9.0_cpu")),
        ("cpu", (cpu_device_name(), "torch", "torch2.9.0_cpu")),
        (cpu_device_name(), (cpu_device_name(), "torch", "torch2.9.0_cpu")),
        ("ATLAS_800_A2_376T_64G", ("ATLAS_800_A2_376T_64G", "vllm_ascend", "vllm0.18.0_torch2.9.0_cann8.5")),
        ("NVIDIA_H200", ("NVIDIA_H200", "torch", "torch2.9.0_cuda12.8")),
    ],
)
def test_theory_rows_go_to_the_device_that_is_named_here_or_not(name, folder, monkeypatch):
    monkeypatch.setattr("opatlas.row.versions.cuda_version", lambda: "12.8")
    assert theory.database_path(config(name)).parts[-3:] == folder


@pytest.mark.parametrize("name", ["npu", "cuda", "foo"])
def test_a_kind_that_is_not_here_and_a_name_of_nothing_make_no_folder(name):
    with pytest.raises(OpAtlasError, match=f"^--device {name}: "):
        theory.database_path(config(name))


def test_profiles_without_versions_are_told_to_count_as_of_this_machine() -> None:
    assert "vllm" in assumed_versions(Versions(torch="2.9.0", cann="8.5")).lower()
    assert not assumed_versions(Versions(vllm="0.18.0", torch="2.9.0", cann="8.5"))
