"""The op_mapping.yaml that a database of an NPU gets, and where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from captures import launch, write_capture

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.op_mapping import MAPPING, read_mapping, write_default_mapping
from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.row.location import NPU_DEVICES
from opatlas.run.registry import replays_of_bench
from opatlas.theory.catalog import built_in_catalog, database_kernels

A2, A3 = NPU_DEVICES[0], NPU_DEVICES[-1]
REFERENCE = "../../hccl/v8.5/"
OWN = """\
# a comment
version: "0.13.0"
cann_version: 8.3
communication_data_ref: ../../hccl/v8.3.RC1/   # of that version
latency_policy: {kernel_overrides: {}}
operator_mappings:
  "aten.mm.default":
    kernel_type: {kernel_type}
"""


@pytest.fixture
def place(tmp_path: Path):
    """Makes version folders below one root, with a mapping that names `kernel_type` if that is given."""

    def make(version: str, kernel_type: str = "", device: str = A3) -> Path:
        folder = tmp_path / "data" / device / "vllm_ascend" / version
        folder.mkdir(parents=True)
        if kernel_type:
            (folder / MAPPING).write_text(OWN.replace("{kernel_type}", kernel_type))
        return folder

    return make


def kernel_types(folder: Path) -> set[str]:
    mapping = read_mapping(folder)
    assert mapping is not None
    return {name for operator in mapping.operators for name in operator.kernel_types}


def test_the_nearest_version_of_the_device_is_copied_and_refers_to_its_own_messages(place) -> None:
    place("vllm0.18.0_torch2.9.0_cann8.5", "OtherDevice", device=A2)
    place("vllm0.11.0_torch2.7.1_cann8.3", "Far")
    near = place("vllm0.17.0_torch2.9.0_cann8.5", "Near")
    folder = place("vllm0.18.0_torch2.9.0_cann8.5")
    provided = write_default_mapping(folder)
    assert provided is not None
    assert provided.source == near / MAPPING
    assert kernel_types(folder) == {"Near"}
    text = (folder / MAPPING).read_text()
    content = yaml.safe_load(text)
    assert content["communication_data_ref"] == REFERENCE
    assert (content["version"], content["cann_version"], content["pytorch_version"]) == ("0.18.0", "8.5", "2.9.0")
    assert content["device"] == A3
    # What the loader knows and OpAtlas does not stays, and so do comments.
    assert content["latency_policy"] == {"kernel_overrides": {}}
    assert "# a comment" in text
    assert f"../{near.name}/{MAPPING}" in text.partition("\n")[0]
    # A copy of the copy says whose copy that is, and no more.
    later = place("vllm0.19.0_torch2.9.0_cann8.5")
    assert write_default_mapping(later) is not None
    assert (later / MAPPING).read_text().count(f"/{MAPPING}") == 1


def test_a_link_out_of_its_folder_is_not_followed(place, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("operator_mappings: {}\n")
    (place("vllm0.17.0_torch2.9.0_cann8.5") / MAPPING).symlink_to(tmp_path / "secret.yaml")
    provided = write_default_mapping(place("vllm0.18.0_torch2.9.0_cann8.5"))
    assert provided is not None
    assert provided.source is None


def test_a_mapping_that_is_there_stays_to_the_letter(place) -> None:
    place("vllm0.17.0_torch2.9.0_cann8.5", "Near")
    folder = place("vllm0.18.0_torch2.9.0_cann8.5")
    (folder / MAPPING).write_text("not: yaml: at all")
    assert write_default_mapping(folder, is_npu=True) is None
    assert (folder / MAPPING).read_text() == "not: yaml: at all"


def test_a_database_of_another_device_gets_none(tmp_path: Path) -> None:
    folder = tmp_path / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    folder.mkdir(parents=True)
    assert write_default_mapping(folder) is None
    assert list(folder.iterdir()) == []


def test_the_table_of_opatlas_names_kernels_that_have_a_replay(tmp_path: Path) -> None:
    write_default_mapping(tmp_path, is_npu=True)
    assert kernel_types(tmp_path) <= {*replays_of_bench(), *BY_KERNEL_TYPE}


def test_the_table_of_opatlas_makes_no_more_theory_rows(tmp_path: Path) -> None:
    catalog = built_in_catalog()
    write_default_mapping(tmp_path, is_npu=True)
    without = Database(tmp_path / "without")
    assert database_kernels(Database(tmp_path), catalog).keys() == database_kernels(without, catalog).keys()


def test_a_database_of_an_npu_gets_a_mapping_wherever_it_is(place, tmp_path: Path) -> None:
    folder = place("vllm0.18.0_torch2.9.0_cann8.5")
    for path, is_npu in ((folder, False), (tmp_path / "mine", True), (tmp_path / "cpu", False)):
        write_default_mapping(path, is_npu=is_npu)
        assert (path / MAPPING).exists() == (path.name != "cpu")


def test_a_combined_database_takes_the_mapping_of_a_source(place, tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "kernel_details.csv", [launch()])
    source = place("vllm0.17.0_torch2.9.0_cann8.5", "Near")
    assert main(["ingest", "--profiling-path", str(capture), "--database-path", str(source)]) == 0
    target = tmp_path / "together"
    assert main(["combine", str(target), str(source)]) == 0
    assert kernel_types(target) == {"Near"}
    assert "kernel_type: Near" in (target / MAPPING).read_text()
