"""`opatlas ingest`, as a user runs it."""

import gzip
import json
import os
import re
import subprocess
import sys

import pytest
from captures import COLLECTIVE, KERNEL_DETAILS, LEVEL_0, capture_text, launch, table, write_capture, write_summary

from opatlas.capture.torch_trace import captured_gpu
from opatlas.cli.main import main
from opatlas.data.manifest import IngestManifest
from opatlas.errors import TableError
from opatlas.row import location as layout
from opatlas.row.columns import PROFILING_AVERAGE, PROFILING_SAMPLES
from opatlas.row.versions import Versions


@pytest.fixture
def ingest(tmp_path, capsys):
    """Runs the command; gives status, stdout and stderr."""

    def run(path, *options):
        options = options or ("--database-path", str(tmp_path / "database"))
        whole = () if "--json" in options else ("--format", "text")
        status = main(["ingest", "--profiling-path", str(path), *options, *whole])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def counted(tmp_path, ingest):
    """Runs the command; gives status, the JSON about the captures, and stderr."""

    def run(path):
        status, out, err = ingest(path, "--database-path", str(tmp_path / "database"), "--json")
        return status, json.loads(out)["captures"], err

    return run


def test_a_file_that_cannot_be_read_leaves_the_others_in(tmp_path, counted):
    write_capture(tmp_path / "c/a_kernel_details.csv", [launch(type="N/A")], LEVEL_0)
    write_capture(tmp_path / "c/b_kernel_details.csv", [launch()])
    (tmp_path / "c/c_kernel_details.csv").write_text("")
    status, found, err = counted(tmp_path / "c")
    assert status == 1
    assert found["files"] == [str(tmp_path / "c/b_kernel_details.csv")]
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        f"{tmp_path / 'c/a_kernel_details.csv'}:1",
        str(tmp_path / "c/c_kernel_details.csv"),
    ]
    assert len(table(tmp_path / "database/MatMulV3.csv")) == 1


VERSIONS = "--versions vllm=0.18.0,torch=2.9.0,cann=8.5"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "--profiling-path"),
        ("--database-path db", "--profiling-path"),
        (f"--attention-records nowhere.jsonl {VERSIONS}", "nowhere.jsonl"),
        (f"--profiling-path nowhere {VERSIONS}", "nowhere"),
        (f"--profiling-path kernel_details.csv/below {VERSIONS}", "kernel_details.csv/below"),
        ("--profiling-path kernel_details.csv --database-path file", "file"),
        ("--profiling-path kernel_details.csv --versions 8", "--versions"),
        ("--profiling-path kernel_details.csv --versions torch=2.9.0", "--versions vllm=V,cann=V"),
        (f"--profiling-path kernel_details.csv {VERSIONS} --device npu", "ATLAS_800_A3_752T_128G_DIE"),
        (f"--profiling-path kernel_details.csv {VERSIONS} --device NVIDIA_H100", "ATLAS_800_A3_752T_128G_DIE"),
        (f"--profiling-path kernel_details.csv {VERSIONS} --device ATLAS_800_A2_376T_32G", "ATLAS_800_A2_376T_64G"),
    ],
)
def test_wrong_usage_names_what_to_give_and_writes_nothing(tmp_path, capsys, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layout, "ROOT", tmp_path / "data")
    write_capture(tmp_path / "kernel_details.csv", [launch()])
    (tmp_path / "file").write_text("in the way")
    assert main(["ingest", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "kernel_details.csv"]


def test_the_default_database_is_named_after_device_and_versions(tmp_path, ingest, monkeypatch):
    monkeypatch.setattr(layout, "ROOT", tmp_path / "data")
    path = write_capture(tmp_path / "kernel_details.csv", [launch()])
    given = ("--versions", "vllm=v0.18.0,torch=2.9.0+cpu,cann=8.5")
    status, _, _ = ingest(path, *given)
    assert status == 0
    folder = "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"
    assert (tmp_path / "data" / folder / "MatMulV3.csv").exists()
    ingest(path, *given, "--device", "ATLAS_800_A2_376T_64G")
    assert (tmp_path / "data/ATLAS_800_A2_376T_64G").exists()
    (path,) = (tmp_path / "data" / folder / "runs").glob("ingest-*.json")
    manifest = IngestManifest.read(path)
    assert (manifest.device, manifest.versions) == (
        "ATLAS_800_A3_752T_128G_DIE",
        Versions("0.18.0", "2.9.0+cpu", "8.5"),
    )


def test_what_is_named_like_a_capture_is_never_passed_over_in_silence(tmp_path, ingest):
    output = tmp_path / "c/PROF_1/mindstudio_profiler_output"
    write_summary(output / "op_summary_20260102000000.csv", [launch(duration="10")])
    earlier = write_summary(output / "op_summary_20260101000000.csv", [launch(duration="99")])
    packed = tmp_path / "c/rank1_kernel_details.csv.gz"
    packed.write_bytes(gzip.compress(capture_text([launch()]).encode()))
    (tmp_path / "c/PROF_2/host").mkdir(parents=True)
    status, out, err = ingest(tmp_path / "c")
    assert status == 1, "a profile is missing"
    assert all(str(path) in out for path in (earlier, packed))
    assert "PROF_2" in err
    assert "msprof --export=on" in err
    assert table(tmp_path / "database/MatMulV3.csv")[0]["Profiling Samples"] == "1"


WRAPPED = "18446744073709551.615"


@pytest.mark.parametrize("us", [WRAPPED, "3600000001"])
def test_a_launch_that_no_device_can_take_costs_only_itself(tmp_path, ingest, us):
    capture = write_capture(tmp_path / "kernel_details.csv", [launch(duration=each) for each in ("10", us, "12", "0")])
    status, out, err = ingest(capture)
    assert (status, err) == (0, "")
    assert f"{capture}:3: " in out
    assert f"{capture}:5: " in out
    (row,) = table(tmp_path / "database/MatMulV3.csv")
    assert (row[PROFILING_AVERAGE], row[PROFILING_SAMPLES]) == ("11", "2")


def test_kernels_without_shapes_are_named_with_their_share_of_the_device_time(tmp_path, ingest, counted):
    absent = {"Input Shapes": "N/A", "Input Data Types": "N/A", "Output Shapes": "N/A", "Output Data Types": "N/A"}
    launches = [
        launch(duration="10"),
        launch(type="fused_mla", duration="60") | absent,
        launch(type="fused_mla", duration="20") | absent,
        launch(type="N/A", duration="10") | absent,
        launch(type="fused_mla", duration=WRAPPED) | absent,
        COLLECTIVE,
    ]
    capture = write_capture(tmp_path / "kernel_details.csv", launches)
    status, found, _ = counted(capture)
    assert status == 0
    (unknown,) = [each for each in found["left_out_us"] if each["name"] == "fused_mla"]
    assert (unknown["calls"], unknown["duration_us"]) == (3, 80.0)
    assert found["ingested_us"] == 10.0
    _, out, _ = ingest(capture, "--database-path", str(tmp_path / "again"))
    assert any("fused_mla 3 80.0 %" in " ".join(line.split()) for line in out.splitlines())


@pytest.mark.parametrize("name", ["Task Start Time", "Start Time(ns)", "task wait time", "Task Start Time(us)"])
def test_times_of_launches_are_no_counters_in_any_unit(tmp_path, ingest, name):
    columns = [name, *(column for column in KERNEL_DETAILS if column not in ("Context ID", "Start Time(us)"))]
    capture = write_capture(tmp_path / "kernel_details.csv", [launch({name: "123.5"})], columns)
    assert ingest(capture)[0] == 0
    (row,) = table(tmp_path / "database/MatMulV3.csv")
    assert not [column for column in row if name.partition("(")[0].lower() in column.lower()]
    assert row["Profiling Average aicore_time(us)"]


def test_paths_in_any_script_work_in_a_locale_that_is_not_utf_8(tmp_path):
    folder, database = tmp_path / "\u91c7\u96c6", tmp_path / "\u5e93"
    write_capture(folder / "kernel_details.csv", [launch(duration="10")])
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = ["ingest", "--profiling-path", folder, "--database-path", database]
    command = [sys.executable, "-m", "opatlas.cli.main", *map(os.fsencode, words)]
    subprocess.run(command, env=variables, capture_output=True, check=True)
    assert table(database / "MatMulV3.csv")[0][PROFILING_SAMPLES] == "1"


NOT_ANALYSED = ("FRAMEWORK/torch.op_mark", "PROF_000001_X/device_1/data/x.data")


@pytest.mark.parametrize(
    ("files", "unread"),
    [
        ([f"rank1_ascend_pt/{name}" for name in NOT_ANALYSED], "rank1_ascend_pt"),
        (["node/rank1_ascend_pt/FRAMEWORK/torch.op_mark"], "node/rank1_ascend_pt"),
        (["renamed/PROF_000001_X/device_1/data/x.data", "renamed/FRAMEWORK/torch.op_mark"], "renamed"),
    ],
)
def test_a_rank_that_was_not_analysed_is_named_beside_one_that_was(tmp_path, ingest, files, unread):
    capture = tmp_path / "capture"
    write_capture(capture / "rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv", [launch()])
    # An analysed result keeps its raw data.
    for name in (*files, *(f"rank0_ascend_pt/{name}" for name in NOT_ANALYSED)):
        (capture / name).parent.mkdir(parents=True, exist_ok=True)
        (capture / name).write_text("x")
    status, out, err = ingest(capture)
    assert status == 1
    assert "1 ingested" in out
    (line,) = err.splitlines()
    assert f"{capture / unread}: " in line
    assert "analyse(" in line


def test_a_database_is_no_capture(tmp_path, ingest):
    ingest(write_capture(tmp_path / "kernel_details.csv", [launch()]))
    status, _, err = ingest(tmp_path / "database", "--database-path", str(tmp_path / "other"))
    assert status == 2
    assert "opatlas combine" in err
    assert not (tmp_path / "other").exists()


def test_of_several_traces_none_may_be_of_another_gpu(tmp_path):
    paths = [tmp_path / f"{name}.trace.json" for name in ("A100", "H200")]
    for path in paths:
        gpu = {"name": f"NVIDIA {path.name[:4]}"}
        path.write_text(json.dumps({"deviceProperties": [gpu], "traceEvents": [{"ph": "X", "name": "a", "ts": 0}]}))
    with pytest.raises(TableError) as other:
        captured_gpu(paths, "NVIDIA_H200")
    assert other.value.path == paths[0]
    assert re.findall(r"NVIDIA_\w+", other.value.problem) == ["NVIDIA_A100", "NVIDIA_H200"]
