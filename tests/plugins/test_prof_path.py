"""`pytest bench/ --prof-path`: samples of profiles that are there already go to the right rows, and nothing runs."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import warm_python
from captures import cells, launched, summary_text, table, write_summary
from sessions import ROOT, Finished

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.op_mapping import MAPPING
from opatlas.data.origin import Provenance, database_device
from opatlas.row.location import DEFAULT_NPU_DEVICE, UNNAMED_NPU

REAL = ROOT.parent / "shared/data/ascend_profiler/op_summary"
OUTPUT = "PROF_000001_20240102030405678_ABCDEF/mindstudio_profiler_output"
ATTENTION = "FusedInferAttentionScore"
V2, V3 = "MatMulV2", "MatMulV3"


class Bench:
    """A database and a folder of profiles, and a way to run `pytest bench/` on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "database"
        self.database.mkdir()
        self.profiles = folder / "profiles"

    def write(self, kernel_type: str, *rows: dict[str, str]) -> None:
        columns = dict.fromkeys(column for row in rows for column in row)
        with open(self.database / f"{kernel_type}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(columns), restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def durations(self, kernel_type: str) -> dict[str, str]:
        """By input and output shapes."""
        rows = table(self.database / f"{kernel_type}.csv")
        return {f"{r['Input Shapes']}->{r['Output Shapes']}": r.get("Average Duration(us)", "") for r in rows}

    def run(self, *options: str, database: bool = True, profiles: Path | None = None) -> Finished:
        arguments = ["bench/", "-p", "no:cacheprovider", f"--prof-path={profiles or self.profiles}"]
        if database:
            arguments.append(f"--database-path={self.database}")
        words = [sys.executable, "-m", "pytest", *arguments, *options]
        done = warm_python.run(words, cwd=ROOT, env={"PATH": "/usr/bin:/bin"})
        return Finished(done.returncode, done.stdout)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_every_row_that_has_samples_gets_exactly_those(bench: Bench) -> None:
    small, large = cells("64,128;2;2", "32,128"), cells("64,128;2;2", "48,128")
    product, other, transposed = cells(), cells("8,32;64,32", "8,64"), cells("16,48;48,64", "16,64")
    attention = cells("4,8,16;4,8,16;4,8,16", "4,8,16") | {"Runtime num_heads": "8"}
    bench.write(V2, product, other, cells("16,48;64,48"), cells("32,32;32,32", "32,32", mine="kept"))
    bench.write("Slice", small, large)
    bench.write("Index", cells("100,8;1;5;1", "5,8"))
    bench.write(ATTENTION, attention)
    bench.write("SomebodysKernel", cells("7,7", "7,7"))
    bench.write("Add", cells("3;3", "3", Status="crashed", **{"Crashes In A Row": "2"}), cells("5;5", "5"))
    slices = [
        [launched(V2, 10.0), launched(V2, 12.0, aic_mac_ratio="0.7"), launched("Slice", 1.0, small)],
        [launched(V2, 14.0, aic_mac_ratio="N/A") | {"Device_id": "1"}, launched("Slice", 2.0, large)],
    ]
    for number, launches in enumerate(slices):
        write_summary(bench.profiles / OUTPUT / f"op_summary_slice_{number}_20240102030406.csv", launches)
    write_summary(bench.profiles / OUTPUT / "op_summary_slice_0_20230102030406.csv", [launched(V2, 999.0)])
    launches = [
        *(launched(V3, us, other) for us in (3.0, 4.0, 8.0)),
        launched(V3, 6.0, transposed),
        launched("Index", 7.0, cells("100,8;1;2;5", "5,8")),
        launched(ATTENTION, 9.0, {name: cell for name, cell in attention.items() if "Runtime" not in name}),
        launched("SomebodysKernel", 11.0, cells("7,7", "7,7")),
        launched("Add", 0.5, cells("3;3", "3")),
        launched("Mul", 13.0, cells("9;9", "9")),
    ]
    write_summary(bench.profiles / "again/PROF_2/device_0/summary/op_summary_0_1.csv", launches, older=True)
    xml = bench.folder / "junit.xml"
    done = bench.run(f"--junitxml={xml}")
    assert done.code == 0, done.output
    assert done.ledger() == {"measured": 9, "skipped": 2}
    assert bench.durations(V2) == {
        "16,32;64,32->16,64": "12.0000",
        "8,32;64,32->8,64": "",
        "16,48;64,48->16,64": "",
        "32,32;32,32->32,32": "",
    }
    assert bench.durations(V3) == {"8,32;64,32->8,64": "5.0000", "16,48;48,64->16,64": "6.0000"}
    assert bench.durations("Slice") == {"64,128;2;2->32,128": "1.0000", "64,128;2;2->48,128": "2.0000"}
    assert [*bench.durations("Index").values(), *bench.durations(ATTENTION).values()] == ["7.0000", "9.0000"]
    assert [*bench.durations("SomebodysKernel").values(), *bench.durations("Mul").values()] == ["11.0000", "13.0000"]
    assert bench.durations("Add") == {"3;3->3": "0.5000", "5;5->5": ""}
    row, sibling, canonical, without = table(bench.database / f"{V2}.csv")
    assert (row["MicroBench Median Duration(us)"], row["MicroBench Min Duration(us)"]) == ("12.0000", "10.0000")
    assert (row["MicroBench Std Duration(us)"], row["MicroBench Samples"]) == ("2.0000", "3")
    assert (row["Instrument"], row["Cache State"], row["Status"], row["Status Reason"]) == (
        "msprof",
        "unknown",
        "measured",
        "",
    )
    # Over the samples that have it.
    assert float(row["MicroBench aic_mac_ratio"]) == pytest.approx(0.6)
    assert not row.get("MicroBench Device Kernels")
    assert sibling["Status Reason"] == "ran as MatMulV3"
    assert V3 in canonical["Status Reason"]
    assert "16,48;48,64" in canonical["Status Reason"]
    assert (without["Status"], without["Status Reason"], without["mine"]) == ("", "", "kept")
    # What crashed on a device can be looked up.
    assert table(bench.database / "Add.csv")[0]["Status"] == "measured"
    assert re.search(r"^signatures without a row +3  MatMulV3 2, Mul 1; ", done.output, re.MULTILINE)
    properties = {
        (p.get("name"), p.get("value"))
        for case in ElementTree.parse(xml).iter("testcase")
        for p in case.iter("property")
    }
    assert {("instrument", "msprof"), ("cache_state", "unknown"), ("samples", "3")} <= properties
    assert not list((bench.database / "journal").glob("*.jsonl"))
    (report,) = (bench.database / "reports").glob("replay_report_*.md")
    assert "skipped" in report.read_text()


def test_readers_get_the_mean_without_the_outliers_and_the_history_keeps_them(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.write(V2, cells())
    taken = [263.0 + number % 5 for number in range(30)] + [8000.0, 12000.0, 16000.0] * 6
    launches = [launched(V2, us) for us in taken]
    # Counters that wrapped cost no other launch; a kernel without shapes is weighed.
    launches[1:1] = [launched(V2, 18446744073709551.615), launched("Mul", 5e15, cells("9;9", "9"))]
    launches.append(launched("fused_mla", 78.0) | dict.fromkeys((*cells(), "Input Shapes"), "N/A"))
    write_summary(bench.profiles / OUTPUT / "op_summary_20240102030406.csv", launches)
    xml = bench.folder / "junit.xml"
    done = bench.run(f"--junitxml={xml}")
    assert done.code == 0, done.output
    assert not (bench.database / "Mul.csv").exists()
    assert "op_summary_20240102030406.csv:3: " in done.output
    assert "fused_mla 1 (" in done.output
    (row,) = table(bench.database / f"{V2}.csv")
    assert float(row["Average Duration(us)"]) == pytest.approx(265.0)
    assert (row["MicroBench Samples"], row["Quality"]) == ("48", "drifting")
    assert "18 of 48" in row["Quality Reason"]
    properties = {p.get("name"): p.get("value") for p in ElementTree.parse(xml).iter("property")}
    assert float(properties["duration_us"]) == pytest.approx(265.0)
    assert float(properties["duration_mean_us"]) == pytest.approx(sum(taken) / len(taken), abs=1e-3)
    capsys.readouterr()
    assert main(["history", str(bench.database), V2, "--json"]) == 0
    (row_runs,) = json.loads(capsys.readouterr().out)
    (run,) = row_runs["runs"]
    assert (run["duration_us"], sorted(run["samples_us"])) == (265.0, sorted(taken))


def test_a_profile_of_an_expert_parallel_run_fills_the_rows_of_its_size(bench: Bench) -> None:
    kernel_type = "DispatchFFNCombine"
    bench.write(kernel_type, *({**cells(), "EP Size": size} for size in ("8", "16")))
    launches = [launched(kernel_type, us, cells(*shapes)) for us, shapes in ((3.0, ()), (5.0, ("8,32;64,32", "8,64")))]
    write_summary(bench.profiles / OUTPUT / "op_summary_20240102030406.csv", launches)
    done = bench.run("--ep-size=16")
    assert (done.code, done.ledger()) == (0, {"measured": 1, "skipped": 1}), done.output
    of_8, of_16, added = table(bench.database / f"{kernel_type}.csv")
    assert (of_8["Average Duration(us)"], of_16["Average Duration(us)"]) == ("", "3.0000")
    assert (added["EP Size"], added["Average Duration(us)"]) == ("16", "5.0000")


def test_missing_only_reports_what_it_does_not_add(bench: Bench) -> None:
    profiled = {"Profiling Average Duration(us)": "3.0"}
    bench.write(V3, cells(), cells("8,32;64,32", "8,64") | profiled)
    launches = [launched(V3, us, row) for us, row in ((1.0, cells()), (2.0, cells("8,32;64,32", "8,64")))]
    launches += [launched(V3, 3.0, cells("9,32;64,32", "9,64")), launched("Mul", 4.0, cells("9;9", "9"))]
    write_summary(bench.profiles / OUTPUT / "op_summary_20240102030406.csv", launches)
    done = bench.run("--update-mode=missing-only")
    assert done.code == 0, done.output
    assert bench.durations(V3) == {"16,32;64,32->16,64": "1.0000", "8,32;64,32->8,64": ""}
    assert not (bench.database / "Mul.csv").exists()
    assert re.search(r"^signatures without a row +2  MatMulV3 1, Mul 1; ", done.output, re.MULTILINE)
    (report,) = (bench.database / "reports").glob("replay_report_*.md")
    assert re.findall(r"^\| (\w+) \| \S+;", report.read_text(), re.MULTILINE)[:2] == [V3, "Mul"]


def test_what_is_left_out_by_the_command_line_is_neither_filled_nor_added(bench: Bench) -> None:
    summary = bench.profiles / "op_summary_1.csv"
    new = cells("9,32;64,32", "9,64")
    bench.write(V3, cells())
    bench.write(
        "Mul", cells("9;9", "9"), cells("5;5", "5"), cells("6;6", "6", **{"Profiling Average Duration(us)": "1"})
    )
    launches = [launched(V3, 1.0), launched(V3, 2.0, new), launched("Mul", 4.0, cells("9;9", "9"))]
    write_summary(summary, [*launches, launched("Sub", 5.0, cells("9;9", "9"))])
    done = bench.run("-k", "Mul-9", "--prune-empty-duration-rows", profiles=summary)
    assert done.ledger() == {"measured": 1}
    # A row without samples was not run: nothing is pruned.
    assert bench.durations("Mul") == {"9;9->9": "4.0000", "5;5->5": "", "6;6->6": ""}
    assert bench.durations(V3) == {"16,32;64,32->16,64": ""}
    assert not (bench.database / "Sub.csv").exists()
    done = bench.run(f"--ops=Sub,{V3}")
    assert done.code == 0, done.output
    assert bench.durations(V3) == {"16,32;64,32->16,64": "1.0000", "9,32;64,32->9,64": "2.0000"}
    assert bench.durations("Sub") == {"9;9->9": "5.0000"}


def test_an_empty_database_is_made_of_samples_and_not_of_theory_rows(bench: Bench) -> None:
    write_summary(bench.profiles / OUTPUT / "op_summary_20240102030406.csv", [launched(V3, 1.0)])
    done = bench.run()
    assert done.code == 0, done.output
    assert "opatlas: 0 rows" in done
    assert done.numbers("written ") == [0, 1, 0, 0]
    assert re.search(rf"^database +{bench.database}$", done.output, re.MULTILINE)
    (report,) = (bench.database / "reports").glob("replay_report_*.md")
    assert re.search(rf"^report +{report}$", done.output, re.MULTILINE)
    assert [path.name for path in bench.database.glob("*.csv")] == ["MatMulV3.csv"]
    # A database of an NPU, although the folder does not say so.
    assert (bench.database / MAPPING).exists()
    assert bench.durations(V3) == {"16,32;64,32->16,64": "1.0000"}
    (manifest,) = (bench.database / "runs").glob("*.json")
    text = manifest.read_text()
    assert '"profile": "profiles"' in text
    assert '"kind": "npu"' in text


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in (folder, *folder.rglob("*"))
    }


CAPTURED = {"Profiling Average Duration(us)": "3.0", "Average Duration(us)": "", "Status": ""}


def test_read_only_looks_up_and_writes_nothing(bench: Bench) -> None:
    bench.write("Mul", cells("9;9", "9") | CAPTURED, cells("5;5", "5", Status="failed"), cells("6;6", "6"))
    bench.write("SomebodysKernel", cells("7,7", "7,7"))
    launches = [launched("Mul", 4.0, cells("9;9", "9")), launched("SomebodysKernel", 5.0, cells("7,7", "7,7"))]
    write_summary(bench.profiles / OUTPUT / "op_summary_20240102030406.csv", [*launches, launched(V3, 1.0)])
    before = everything(bench.database)
    would = bench.run("--read-only")
    assert everything(bench.database) == before
    done = bench.run()
    for each in (would, done):
        assert (each.code, each.ledger()) == (0, {"measured": 2, "skipped": 2}), each.output
    assert "nothing was written" in would
    assert done.numbers("written ") == [2, 1, 0, 0]
    assert bench.durations("Mul") == {"9;9->9": "4.0000", "5;5->5": "", "6;6->6": ""}
    # Rows that the profile does not have keep their state.
    kept = table(bench.database / "Mul.csv")[1:]
    states = [tuple(r.get(name, "") for name in ("Status", "Status Reason", "Run ID")) for r in kept]
    assert states == [("failed", "", ""), ("", "", "")]


def test_a_profile_does_not_rename_the_device_of_captures(bench: Bench) -> None:
    capture = bench.folder / "capture" / "op_summary_1.csv"
    write_summary(capture, [launched(V3, 1.0), launched("Mul", 4.0, cells("9;9", "9"))])
    where = (f"--database-path={bench.database}", f"--profiling-path={capture.parent}")
    assert main(["ingest", *where, "--device=Ascend910B3"]) == 0
    write_summary(bench.profiles / OUTPUT / "op_summary_20240102030406.csv", [launched(V3, 2.0)])
    assert bench.run().code == 0
    assert bench.durations(V3) == {"16,32;64,32->16,64": "2.0000"}
    assert database_device(bench.database) == "Ascend910B3"
    devices = Provenance(Database(bench.database))
    replayed, captured = (table(bench.database / f"{name}.csv")[0] for name in (V3, "Mul"))
    assert devices.captured(captured["Profiling Run ID"]) == ["Ascend910B3"]
    assert devices.replayed(replayed["Run ID"]) == UNNAMED_NPU
    other = bench.run("--device=Ascend910B4")
    assert other.code == 0, other.output
    assert "database-replays" in other
    assert bench.durations(V3) == {"16,32;64,32->16,64": "2.0000"}


def test_what_could_not_be_read_makes_the_session_fail_and_the_rest_is_used(bench: Bench) -> None:
    bench.write(V3, cells())
    text = summary_text([launched(V3, 1.0), launched(V3, 2.0), launched(V3, 3.0)])
    path = bench.profiles / OUTPUT / "op_summary_20240102030406.csv"
    path.parent.mkdir(parents=True)
    path.write_text(text[: text.rindex("DT_BF16")])
    unparsed = bench.profiles / "PROF_2"
    (unparsed / "host").mkdir(parents=True)
    done = bench.run()
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert bench.durations(V3) == {"16,32;64,32->16,64": "1.5000"}
    assert f"{path}:4: " in done
    assert f"msprof --export=on --output={unparsed}" in done


def test_device_and_versions_name_the_database_of_an_npu_that_is_not_at_hand(bench: Bench) -> None:
    write_summary(bench.profiles / OUTPUT / "op_summary_20240102030406.csv", [launched(V3, 1.0)])
    done = bench.run(
        f"--device={DEFAULT_NPU_DEVICE}",
        "--versions=vllm=0.18.0,torch=2.9.0,cann=8.5.0",
        "--collect-only",
        database=False,
    )
    assert f"{DEFAULT_NPU_DEVICE}/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5" in done
    assert "opatlas: torch " not in done


@pytest.mark.skipif(not REAL.is_dir(), reason="no op_summary files beside the checkout")
def test_real_summaries(bench: Bench) -> None:
    bench.write("Cast", cells("384,384", "384,384", "FLOAT") | {"Output Data Types": "FLOAT16"})
    done = bench.run(profiles=REAL)
    assert done.code == 0, done.output
    assert bench.durations("Cast")["384,384->384,384"] == "7.0500"
    (row, *_) = table(bench.database / "Cast.csv")
    assert (row["MicroBench Samples"], row["Instrument"]) == ("2", "msprof")
    kernels = table(bench.database / "matmul_bias_activation_kernel.csv")
    assert {row["Input Shapes"]: row["MicroBench Samples"] for row in kernels} == {
        "2048,2048;2048,2048;2048": "4",
        "384,384;384,384;384": "3",
    }
