"""What the durations of a database were measured on, and whether others belong beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.data import comparable
from opatlas.data.comparable import MixedDatabase, PresentSetup, Staleness, StaleRuns
from opatlas.data.csv_files import text_table
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest
from opatlas.data.origin import MeasurementOrigin, Provenance, folder_origin
from opatlas.row.location import DEFAULT_NPU_DEVICE
from opatlas.row.table import RowTable

RUN, OTHER = "20261121T163006-1f0c9a", "20261122T163006-2f0c9a"
TORCH = {"torch": "2.13.0"}
CPU = MeasurementOrigin("AMD_EPYC", "cpu", TORCH, threads=2)
H200 = MeasurementOrigin("NVIDIA_H200", "cuda", {"torch": "2.11.0", "CUDA (of torch)": "13.0"})
NPU = MeasurementOrigin(DEFAULT_NPU_DEVICE, "npu", {"vllm-ascend": "0.18.0", "torch": "2.9.0", "CANN": "8.5.0"})
OF_H200 = {"name": "NVIDIA_H200", "kind": "cuda", "facts": {"torch": "2.11.0+cu130", "cuda": "13.0"}}
OF_CPU = {"name": "AMD_EPYC", "kind": "cpu", "facts": {"torch": "2.13.0+cpu", "threads": 2}}


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "mine")


def manifest(database: Database, run_id: str, device: Mapping[str, object], **more: object) -> Path:
    database.runs_dir.mkdir(parents=True, exist_ok=True)
    path = database.runs_dir / f"{run_id}.json"
    path.write_text(json.dumps({"started_at": 1.0, "device": device, "host": "one", **more}))
    return path


def row(database: Database, run_id: str, duration: str = "1.5", kernel_type: str = "Abs") -> None:
    database.path.mkdir(parents=True, exist_ok=True)
    cells = {
        "Input Shapes": "4",
        "Input Data Types": "FLOAT",
        "Output Shapes": "4",
        "Output Data Types": "FLOAT",
        "Average Duration(us)": duration,
        "Run ID": run_id,
    }
    with open(database.path / f"{kernel_type}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerow(cells)


def refused(database: Database, ours: MeasurementOrigin) -> MeasurementOrigin | None:
    """What a database is of, if durations of `ours` are refused."""
    try:
        comparable.check_origin(Provenance(database), ours)
    except MixedDatabase as error:
        return error.theirs
    return None


# The database as a whole


def test_another_device_is_refused_and_both_are_named(database: Database) -> None:
    row(database, RUN)
    manifest(database, RUN, OF_H200)
    with pytest.raises(MixedDatabase) as raised:
        comparable.check_origin(Provenance(database), CPU)
    assert raised.value.theirs == MeasurementOrigin("NVIDIA_H200", "cuda", H200.versions, host="one")
    assert all(text in str(raised.value) for text in (CPU.device, RUN))
    assert refused(database, H200) is None


@pytest.mark.parametrize(
    ("ours", "is_refused"),
    [
        (MeasurementOrigin("AMD_EPYC", "cpu", {"torch": "2.13.0+cpu"}), False),
        (MeasurementOrigin("AMD_EPYC", "cpu", {"torch": "2.13"}), False),
        (MeasurementOrigin("AMD_EPYC", "cpu", {"torch": "2.12.0"}), True),
        (MeasurementOrigin("AMD_EPYC", "cpu", {"torch": "2.13.0.dev20260101"}), True),
        (MeasurementOrigin("Intel_Xeon_Processor", "cpu", TORCH), True),
        (MeasurementOrigin("", "cpu", TORCH), False),
        (MeasurementOrigin("", "simulated", TORCH), True),
        (MeasurementOrigin("AMD_EPYC", "", TORCH), False),
        (MeasurementOrigin("AMD_EPYC", "cpu", TORCH, implementation="liger"), False),
        (MeasurementOrigin("AMD_EPYC", "cpu", {}), False),
        # A cloud calls all of its machines the same.
        (MeasurementOrigin("AMD_EPYC", "cpu", TORCH, threads=2), False),
        (MeasurementOrigin("AMD_EPYC", "cpu", TORCH, threads=16), True),
    ],
)
def test_what_is_known_of_both_has_to_agree(database: Database, ours: MeasurementOrigin, is_refused: bool) -> None:
    row(database, RUN)
    manifest(database, RUN, OF_CPU)
    assert (refused(database, ours) is not None) == is_refused


def test_each_version_that_names_an_npus_folder_counts(database: Database) -> None:
    row(database, RUN)
    facts = {"torch": "2.9.0", "cann": "8.5.0", "vllm_ascend": "0.18.0"}
    manifest(database, RUN, {"name": DEFAULT_NPU_DEVICE, "kind": "npu", "facts": facts})
    assert refused(database, NPU) is None
    for name in NPU.versions:
        assert refused(database, MeasurementOrigin(NPU.device, "npu", {**NPU.versions, name: "7.7"})) is not None
    # The chip in it.
    assert refused(database, MeasurementOrigin("Ascend910_9392", "npu")) is None


def test_only_runs_whose_durations_are_there_count(database: Database) -> None:
    row(database, OTHER)
    manifest(database, OTHER, OF_CPU)
    manifest(database, RUN, OF_H200)
    assert refused(database, CPU) is None, "every duration of that run was replaced"
    row(database, RUN, duration="", kernel_type="Add")
    assert refused(database, CPU) is None, "a status is no duration"
    row(database, RUN, kernel_type="Add")
    assert refused(database, CPU) is not None
    assert refused(database, H200) is not None, "a mixed database is nobody's"


def test_records_that_are_not_merged_yet_count(database: Database) -> None:
    manifest(database, RUN, OF_H200)
    database.journal_dir.mkdir(parents=True)
    header = {"run_id": RUN, "update_mode": "all", "prune": False, "version": 3}
    (database.journal_dir / f"{RUN}.jsonl").write_text(json.dumps(header) + "\n")
    assert refused(database, CPU) is not None


def test_messages_have_runs_too(database: Database) -> None:
    database.path.mkdir()
    (database.path / "hcom_allReduce_.csv").write_text(
        f"message_bytes,num_devices,dtype,topology_tier,Duration(us),Run ID\n1024,2,DT_BF16,1,5.4,{RUN}\n"
    )
    manifest(database, RUN, {**OF_H200, "facts": {"torch": "2.11.0", "nccl": "2.28.9", "ranks": 2}})
    assert refused(database, MeasurementOrigin("NVIDIA_H200", "cuda", {"NCCL": "2.28.9"})) is None
    assert refused(database, MeasurementOrigin("NVIDIA_H200", "cuda", {"NCCL": "2.27.0"})) is not None


def test_every_device_of_a_run_counts(database: Database) -> None:
    row(database, RUN)
    manifest(database, RUN, OF_CPU, other_devices=[OF_H200])
    assert refused(database, CPU) is not None


def test_software_that_was_profiled_is_not_that_of_the_machine_that_looked_it_up(database: Database) -> None:
    row(database, RUN)
    device = {"name": DEFAULT_NPU_DEVICE, "kind": "npu", "facts": {"profile": "PROF_1"}}
    manifest(database, RUN, device, options={"prof_path": "PROF_1"}, packages={"torch": "2.13.0"})
    assert refused(database, NPU) is None


@pytest.mark.parametrize(
    ("folder", "device", "versions"),
    [
        ("NVIDIA_H200/torch/torch2.11.0_cuda13.0", "NVIDIA_H200", {"torch": "2.11.0", "CUDA (of torch)": "13.0"}),
        ("NVIDIA_H200/torch/torch2.11.0_cuda13.0_warm", "NVIDIA_H200", {"torch": "2.11.0", "CUDA (of torch)": "13.0"}),
        ("AMD_EPYC/torch/torch2.13.0_cpu", "AMD_EPYC", {"torch": "2.13.0"}),
        (
            f"{DEFAULT_NPU_DEVICE}/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5",
            DEFAULT_NPU_DEVICE,
            {"vllm-ascend": "0.18.0", "torch": "2.9.0", "CANN": "8.5"},
        ),
        ("NVIDIA_H200/nccl/2.28.9", "NVIDIA_H200", {"NCCL": "2.28.9"}),
        ("AMD_EPYC/gloo/2.13.0", "AMD_EPYC", {"torch": "2.13.0"}),
        (f"{DEFAULT_NPU_DEVICE}/hccl/v8.5", DEFAULT_NPU_DEVICE, {"CANN": "8.5"}),
        (f"{DEFAULT_NPU_DEVICE}/hccl/v8.3.RC1", DEFAULT_NPU_DEVICE, {"CANN": "8.3.RC1"}),
        (f"{DEFAULT_NPU_DEVICE}/hccl/8.5", DEFAULT_NPU_DEVICE, {"CANN": "8.5"}),
    ],
)
def test_a_folder_tells_what_it_is_for(tmp_path: Path, folder: str, device: str, versions: dict[str, str]) -> None:
    database = Database(tmp_path / folder)
    database.path.mkdir(parents=True)
    origin = folder_origin(database)
    assert origin is not None
    assert (origin.device, origin.versions) == (device, versions)
    assert refused(database, MeasurementOrigin("Another", origin.kind)) == origin
    assert refused(database, origin) is None


@pytest.mark.parametrize(
    ("named", "installed"), [("8.3", "8.3.RC1"), ("8.3.RC1", "8.3.RC2"), ("8.5", "8.5.1"), ("8.3.RC1", "8.3.0.1.200")]
)
def test_a_folder_that_is_named_for_the_release_is_not_refused(tmp_path: Path, named: str, installed: str) -> None:
    database = Database(tmp_path / f"{DEFAULT_NPU_DEVICE}/vllm_ascend/vllm0.18.0_torch2.9.0_cann{named}")
    database.path.mkdir(parents=True)
    ours = MeasurementOrigin(NPU.device, "npu", {**NPU.versions, "CANN": installed})
    assert refused(database, ours) is None
    assert refused(database, MeasurementOrigin(NPU.device, "npu", {**NPU.versions, "CANN": "8.4"})) is not None


def test_runs_of_two_candidates_of_one_release_do_not_compare(database: Database) -> None:
    row(database, RUN)
    facts = {"torch": "2.9.0", "cann_toolkit": "8.3.RC1", "vllm_ascend": "0.18.0"}
    manifest(database, RUN, {"name": DEFAULT_NPU_DEVICE, "kind": "npu", "facts": facts})
    assert refused(database, MeasurementOrigin(NPU.device, "npu", {**NPU.versions, "CANN": "8.3.RC1"})) is None
    assert refused(database, MeasurementOrigin(NPU.device, "npu", {**NPU.versions, "CANN": "8.3.RC2"})) is not None


@pytest.mark.parametrize("folder", ["mine", "device/torch/mine", "device/other/torch2.9.0_cpu", "nccl/mine"])
def test_any_other_folder_tells_nothing(tmp_path: Path, folder: str) -> None:
    assert folder_origin(Database(tmp_path / folder)) is None


# The durations that are to be replaced


def unlike(database: Database, stored: Sequence[str], *planned: str) -> list[str]:
    """Returns how a duration differs from those of a session.

    Args:
        stored: the run, the cache state and the instrument of the duration.
        planned: the cache state and the instrument of the session.
    """
    cells = dict(zip(("Run ID", "Cache State", "Instrument"), stored, strict=True))
    row = RowTable("Abs", Path("Abs.csv"), text_table(cells, [cells])).row(0)
    session = {**dict(zip(("Cache State", "Instrument"), planned, strict=True)), "Implementation": ""}
    return [text for _, text in comparable.find_mismatches(Provenance(database), CPU, [(row, session)])]


def test_cache_state_and_instrument_are_compared(database: Database) -> None:
    manifest(database, RUN, OF_CPU)
    stored = (RUN, "cold", "wall-clock")
    assert unlike(database, stored, "cold", "wall-clock") == []
    for of_session in (("warm", "wall-clock"), ("cold", "events")):
        (difference,) = unlike(database, stored, *of_session)
        (differ,) = [pair for pair in zip(stored[1:], of_session, strict=True) if pair[0] != pair[1]]
        assert all(word in difference for word in (*differ, "Abs.csv:2"))
    assert unlike(database, stored, "cold", "") == [], "not known before the device is opened"


def test_durations_without_a_manifest_are_of_unknown_origin(database: Database, tmp_path: Path) -> None:
    for run_id in ("", RUN):
        (difference,) = unlike(database, (run_id, "", ""), "cold", "wall-clock")
        assert "origin unknown" in difference
    # Unless the folder says what they are of.
    named = Database(tmp_path / "AMD_EPYC/torch/torch2.13.0_cpu")
    assert unlike(named, ("", "", ""), "cold", "wall-clock") == []


DEVICE = {"name": "NVIDIA_H200", "kind": "cuda", "facts": {"driver": "550.54.15", "torch": "2.9.0", "cuda": "13.0"}}
MANIFEST = Manifest("run-1", 0.0, {}, "abc", device=DEVICE, packages={})
PRESENT = PresentSetup(
    MeasurementOrigin("NVIDIA_H200", "cuda", {"torch": "2.9.0", "CUDA (of torch)": "13.0"}), "550.54.15", "abc"
)


def device(**facts: str) -> dict[str, object]:
    return {**DEVICE, "facts": {**DEVICE["facts"], **facts}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("manifest", "present", "staleness"),
    [
        (MANIFEST, PRESENT, Staleness.FRESH),
        (replace(MANIFEST, code="abd"), PRESENT, Staleness.CODE),
        (replace(MANIFEST, device=device(driver="535.1")), PRESENT, Staleness.DRIVER),
        (replace(MANIFEST, device=device(driver="535.1"), code="abd"), PRESENT, Staleness.DRIVER),
        (replace(MANIFEST, device=device(torch="2.8.0", driver="535.1")), PRESENT, Staleness.VERSIONS),
        (replace(MANIFEST, device=device(cuda="12.9")), PRESENT, Staleness.VERSIONS),
        (replace(MANIFEST, device={**DEVICE, "name": "NVIDIA_H100"}, code="abd"), PRESENT, Staleness.OTHER_DEVICE),
        (MANIFEST, replace(PRESENT, driver=""), Staleness.FRESH),
        (replace(MANIFEST, device=device(driver="")), PRESENT, Staleness.FRESH),
    ],
)
def test_the_first_reason_counts_and_what_is_not_known_does_not(
    manifest: Manifest, present: PresentSetup, staleness: Staleness
) -> None:
    assert StaleRuns({"run-1": manifest}, present).staleness("run-1") is staleness


def test_without_a_manifest_a_duration_is_stale() -> None:
    assert StaleRuns({}, PRESENT).staleness("run-1") is Staleness.NO_MANIFEST
    assert Staleness.NO_MANIFEST.is_stale
    assert not Staleness.OTHER_DEVICE.is_stale
