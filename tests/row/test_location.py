"""Where a database lies."""

import subprocess
from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.row import location
from opatlas.row.versions import Versions

REPOSITORY = Path(__file__).parents[2]
NPU = Versions(vllm="0.18.0", torch="2.9.0", cann="8.5")


def relative(path):
    return path.relative_to(location.ROOT).as_posix()


def test_npu_database_is_named_after_its_software():
    path = location.default_path("ATLAS_800_A2_376T_64G", NPU)
    assert relative(path) == "ATLAS_800_A2_376T_64G/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"


def test_cuda_and_cpu_databases():
    versions = Versions(torch="2.9.0", cuda="12.8")
    assert relative(location.default_path("NVIDIA_H100", versions)) == "NVIDIA_H100/torch/torch2.9.0_cuda12.8"
    assert relative(location.default_path("AMD_EPYC_9454", versions)) == "AMD_EPYC_9454/torch/torch2.9.0_cpu"


@pytest.mark.parametrize(
    ("given", "named"), [("8.5", "8.5"), ("8.5.0", "8.5"), ("8.5.1", "8.5.1"), ("10.0", "10.0"), ("8.3.RC1", "8.3.RC1")]
)
def test_cann_as_the_toolkit_and_as_users_write_it(given, named):
    assert location.default_path(location.DEFAULT_NPU_DEVICE, Versions("0.18.0", "2.9.0", given)).name.endswith(
        f"_cann{named}"
    )


def test_communication_databases():
    assert relative(location.communication_path(location.DEFAULT_NPU_DEVICE, "8.5.0")).endswith("/hccl/v8.5")
    assert relative(location.communication_path("NVIDIA_H200", "2.27.5")) == "NVIDIA_H200/nccl/2.27.5"
    assert relative(location.communication_path("AMD_EPYC", "2.13.0+cpu")) == "AMD_EPYC/gloo/2.13.0"


def test_an_undetected_version_is_named_with_its_option():
    with pytest.raises(OpAtlasError, match=r"--versions vllm=V,cann=V"):
        location.default_path(location.DEFAULT_NPU_DEVICE, Versions(torch="2.9.0"))


@pytest.mark.parametrize("device", ["../elsewhere", "", "a/b", ".hidden"])
def test_a_device_that_cannot_name_a_directory(device):
    with pytest.raises(OpAtlasError, match="device"):
        location.default_path(device, NPU)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "cuda"),
        ("Tesla V100-SXM2-16GB", "cuda"),
        ("AMD Instinct MI300X", "cuda"),
        ("AMD EPYC 9454 48-Core Processor", "cpu"),
        ("Intel(R) Xeon(R) Platinum 8480+", "cpu"),
        ("aarch64", "cpu"),
    ],
)
def test_kind_of_what_a_device_calls_itself(name, kind):
    assert location.device_kind(location.slug(name)) == kind


def test_what_ships_says_what_it_was_measured_on(tmp_path):
    tracked = subprocess.run(["git", "ls-files", "database/data"], cwd=REPOSITORY, capture_output=True, text=True)
    folders = {Path(line).parent for line in tracked.stdout.splitlines() if line.endswith(".csv")}
    if not folders:
        pytest.skip("not a checkout of git, or without the databases")
    assert [folder for folder in sorted(folders) if not location.shipped_note(REPOSITORY / folder)] == []
    assert location.shipped_note(tmp_path) == ""


def test_a_device_means_the_users_databases_before_those_that_ship(tmp_path, monkeypatch):
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    monkeypatch.setattr(location, "ROOT", own)
    monkeypatch.setattr(location, "SHIPPED_DATABASES", shipped)
    places = ("H200/torch/torch2.9.0_cuda12.8", "H200/torch/torch2.11.0_cuda13.0", "H200/nccl/2.28.9")
    for place, kernel_type in zip(places, ("Add", "Add", "hcom_allReduce_"), strict=True):
        (shipped / place).mkdir(parents=True)
        (shipped / place / f"{kernel_type}.csv").touch()
    assert [location.named_folder(name) for name in ("H200", places[2])] == [shipped / places[1], shipped / places[2]]
    (own / places[0]).mkdir(parents=True)
    (own / places[0] / "Add.csv").touch()
    assert location.named_folder("H200") == own / places[0]
    assert len(location.list_databases()) == 4
    # The user has measured no messages on the device.
    assert location.messages_of_device(own / places[0]) == shipped / places[2]
    (own / "H200/nccl/2.27.1").mkdir(parents=True)
    (own / "H200/nccl/2.27.1/hcom_allReduce_.csv").touch()
    assert location.messages_of_device(own / places[0]) == own / "H200/nccl/2.27.1"
    assert location.messages_of_device(tmp_path) is None
