"""`opatlas plot`: what each figure shows, and what the command says."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from printed import numbers_by_line, numbers_in

from opatlas.cli.main import main
from opatlas.combine.row_devices import database_device
from opatlas.model.roofline import PEAKS, Peak
from opatlas.model.schema import (
    AVERAGE,
    CACHE_STATE,
    INPUT_SLOTS,
    INSTRUMENT,
    MICROBENCH_STD,
    OUTPUT_SLOTS,
    PROFILING_AVERAGE,
    QUALITY,
    RUN_ID,
)
from opatlas.model.slots import Slot
from opatlas.report.plots.durations import (
    Agreement,
    agreement,
)
from opatlas.report.plots.figure import bytes_text
from opatlas.report.plots.roofline import (
    RooflinePoint,
    rate_unit,
    roofline_plots,
    roofline_points,
)
from opatlas.report.plots.timed_rows import TimedRow, on_device, read_timed_rows

HEADER = ",".join((*INPUT_SLOTS, *OUTPUT_SLOTS, AVERAGE, PROFILING_AVERAGE, CACHE_STATE, INSTRUMENT))
ADD = '"{n},1024;{n},1024",DT_BF16;DT_BF16,ND;ND,"{n},1024",DT_BF16,ND,{replayed},{captured},{how}'
PRODUCT = '"{m},512;1024,512",DT_BF16;DT_BF16,ND;ND,"{m},1024",DT_BF16,ND,{replayed},{captured},{how}'
MESSAGES = "message_bytes,num_devices,dtype,topology_tier,Duration(us)\n1024,4,DT_BF16,1,20\n"


def add(n: int, replayed: str = "", captured: str = "") -> str:
    return ADD.format(n=n, replayed=replayed, captured=captured, how="cold,cupti" if replayed else ",")


def product(m: int, replayed: str = "", captured: str = "") -> str:
    return PRODUCT.format(m=m, replayed=replayed, captured=captured, how="cold,cupti" if replayed else ",")


def table(folder: Path, kernel_type: str, *rows: str) -> None:
    (folder / f"{kernel_type}.csv").write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")


def timed(kernel_type: str, *shape: int, replayed: float | None = None, captured: float | None = None) -> TimedRow:
    tensor = Slot(shape, "BF16", "ND")
    return TimedRow(kernel_type, (tensor, tensor), (tensor,), replayed, captured, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database of an H200 by its manifest, with data for every plot."""
    table(tmp_path, "Add", add(1, "2.5", "2.0"), add(8, "4", "4.4"), add(16, "", "5"), add(32))
    table(tmp_path, "MatMulV2", product(8, "5", "5"), product(64, "5.5"))
    (tmp_path / "hcom_allReduce_.csv").write_text(MESSAGES)
    (tmp_path / "runs").mkdir()
    manifest = {"device": {"name": "NVIDIA_H200"}, "packages": {}, "started_at": 1.0}
    (tmp_path / "runs" / "one.json").write_text(json.dumps(manifest))
    return tmp_path


def test_rows_with_a_duration_and_how_they_were_timed(folder: Path) -> None:
    read = read_timed_rows(folder)
    assert (read.device, read.problems) == ("NVIDIA_H200", [])
    found = [(row.kernel_type, row.microbench_us, row.profiling_us, row.conditions) for row in read.rows]
    assert found == [
        ("Add", 2.5, 2.0, "cold, cupti"),
        ("Add", 4.0, 4.4, "cold, cupti"),
        ("Add", None, 5.0, ""),
        ("MatMulV2", 5.0, 5.0, "cold, cupti"),
        ("MatMulV2", 5.5, None, "cold, cupti"),
    ]
    assert [row.duration_us for row in read.rows] == [2.5, 4.0, 5.0, 5.0, 5.5]
    assert [row.kernel_type for row in read_timed_rows(folder, ["MatMulV2"]).rows] == ["MatMulV2"] * 2


def test_the_device_is_the_folder_under_data_or_what_most_rows_were_measured_on(folder: Path, tmp_path: Path) -> None:
    assert database_device(tmp_path / "data" / "AMD_EPYC" / "torch" / "torch2.13.0_cpu") == "AMD_EPYC"
    (folder / "runs" / "torn.json").write_text("{")
    assert database_device(folder) == "NVIDIA_H200"
    other = {"device": {"name": "NVIDIA_H100"}, "packages": {}, "started_at": 1.0, "statuses": {"measured": 1000}}
    (folder / "runs" / "two.json").write_text(json.dumps(other))
    assert database_device(folder) == "NVIDIA_H100"


def test_durations_whose_samples_vary_are_noisy(tmp_path: Path) -> None:
    header = f"{HEADER},{MICROBENCH_STD},{QUALITY}"
    ends = ["0.5,", "0.01,", "0.01,bimodal", "0.5,quiet", "0.5,unknown", ",noisy", ",word", ","]
    rows = [f"{add(n, '2.5', '2')},{end}" for n, end in enumerate(ends, start=1)]
    (tmp_path / "Add.csv").write_text("\n".join([header, *rows]) + "\n")
    read = read_timed_rows(tmp_path).rows
    assert [row.noisy for row in read] == [True, False, True, False, False, True, False, False]


def test_replays_of_another_device_are_in_no_plot_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    titles: dict[str, str] = {}
    monkeypatch.setattr("opatlas.cli.plot.save", lambda figure, path: titles.update({path.stem: figure.get_suptitle()}))
    header = f"{HEADER},{RUN_ID}"
    rows = [f"{add(1, '2.5', '2.0')},here", f"{add(2, '90', '3.0')},there", f"{add(3, '95')},there"]
    (tmp_path / "Add.csv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "runs").mkdir()
    for run_id, device in (("here", "NVIDIA_H200"), ("there", "AMD_EPYC")):
        manifest = {"device": {"name": device}, "packages": {}, "started_at": 1.0}
        (tmp_path / "runs" / f"{run_id}.json").write_text(json.dumps(manifest))
    read = read_timed_rows(tmp_path).rows
    assert [row.device for row in read] == ["NVIDIA_H200", "AMD_EPYC", "AMD_EPYC"]
    assert [on_device(row, "NVIDIA_H200") for row in read[::2]] == [read[0], None]
    other = on_device(read[1], "NVIDIA_H200")
    assert other is not None
    assert (other.microbench_us, other.profiling_us) == (None, 3.0)
    assert main(["plot", str(tmp_path), "--output", str(tmp_path / "plots"), "--device", "NVIDIA_H200"]) == 0
    out = capsys.readouterr().out
    numbers = numbers_by_line(out)
    assert numbers["roofline.png"] == (1, 1)
    assert "AMD_EPYC" in out.splitlines()[-1]
    assert "AMD_EPYC" not in titles["roofline"]
    assert "AMD_EPYC, NVIDIA_H200" in titles["microbench_against_profiling"]
    assert main(["plot", str(tmp_path), "--output", str(tmp_path / "plots")]) == 0
    assert "AMD_EPYC" in capsys.readouterr().out.partition("\n")[0]


@pytest.mark.parametrize(
    ("dtypes", "unit"),
    [({"BF16"}, "TFLOP/s"), ({"INT8", "INT32"}, "TOP/s"), ({"BF16", "INT8"}, "TFLOP/s (INT8: TOP/s)")],
)
def test_operations_of_integers_are_no_flop(dtypes: set[str], unit: str) -> None:
    assert rate_unit(dtypes) == unit


def test_few_points_have_decades_around_them_and_a_missing_roof_is_told() -> None:
    pytest.importorskip("matplotlib")
    rows = [timed("Add", 4096, replayed=9.0), timed("Add", 8192, replayed=11.0)]
    (plot,) = roofline_plots(rows, "Roofline", Peak())
    (axis,) = plot.figure.axes
    for least, most in (axis.get_xlim(), axis.get_ylim()):
        assert math.log10(least) == pytest.approx(round(math.log10(least)))
        assert most >= 10 * least
    assert plot.figure.get_suptitle() not in ("", "Roofline")
    (known,) = roofline_plots(rows, "Roofline", Peak(1000.0))
    assert known.figure.get_suptitle() == "Roofline"


def test_a_product_stands_where_its_operations_and_bytes_put_it(folder: Path) -> None:
    rows = read_timed_rows(folder, ["MatMulV2"]).rows
    flops, size = 2 * 8 * 512 * 1024, 2 * (8 * 512 + 512 * 1024 + 8 * 1024)
    point = roofline_points(rows)[0]
    assert point == RooflinePoint("MatMulV2", "BF16", flops / size, pytest.approx(flops / 5e-6 / 1e12))


def test_roofs_meet_where_memory_and_arithmetic_take_equally_long(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = read_timed_rows(folder).rows
    (axis,) = roofline_plots(rows, "", Peak(1000.0, {"BF16": 2.0, "INT8": 4.0}))[0].figure.axes
    slope, level = axis.get_lines()
    assert slope.get_ydata()[-1] == level.get_ydata()[0] == level.get_ydata()[1] == 2.0
    assert slope.get_xdata()[-1] == level.get_xdata()[0] == 2.0
    # No product is of INT8: its level says nothing here.
    assert [text.get_text() for text in axis.texts] == ["memory: 1,000 GB/s", "BF16: 2"]
    (bare,) = roofline_plots(rows, "", Peak())[0].figure.axes
    assert not bare.get_lines()


def test_compositions_are_in_no_plot(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = folder / "Add.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},Stand-In", *(f"{row},composition of 2" for row in rows)]) + "\n")
    assert {row.is_composition for row in read_timed_rows(folder, ["Add"]).rows if row.microbench_us} == {True}
    assert main(["plot", str(folder), "--output", str(folder / "plots")]) == 0
    out = capsys.readouterr().out
    # Of Add the roofline has the row that was captured only.
    assert numbers_by_line(out)["roofline.png"] == (2, 1)
    assert numbers_in(out.splitlines()[-1]) == (2,)


def test_agreement_of_few_rows_has_no_tenths() -> None:
    rows = [timed("Add", 4, replayed=float(number), captured=2.0) for number in (1, 2, 3)]
    assert agreement(rows) == Agreement(rows=3, p10=None, p50=1.0, p90=None, within=1)
    many = [timed("Add", 4, replayed=float(number), captured=10.0) for number in range(1, 12)]
    found = agreement(many)
    assert (found.rows, found.p10, found.p50, found.p90) == (11, 0.2, 0.6, 1.0)


def test_every_plot_that_there_is_data_for(
    folder: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["plot", str(folder), "--output", str(folder / "plots")]) == 0
    names = ["roofline", "microbench_against_profiling", "bus_bandwidth"]
    assert sorted(path.name for path in (folder / "plots").iterdir()) == sorted(f"{name}.png" for name in names)
    for path in (folder / "plots").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    # The row that was captured only is in no roofline.
    golden("plots.txt", capsys.readouterr().out.replace(str(folder), "DB"))


def test_names_are_no_formulas(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for name in ("$x^$", "a$b", "$"):
        table(folder, name, product(8, "5", "5"), add(1, "2", "2"))
    database = folder.rename(folder.with_name("$\\frac$"))
    for path in (database / "runs").iterdir():
        path.unlink()
    assert main(["plot", str(database), "--output", str(database / "plots")]) == 0
    arguments = [str(database), "--ops", "$x^$", "--weights", "1024,512", "--output", str(database / "one.png")]
    assert main(["plot", "--kind=products", *arguments]) == 0


def test_what_there_is_no_data_for_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    output = folder / "plots"
    assert main(["plot", str(folder), "--output", str(output), "--ops", "Add", "--device", "X", "--format", "svg"]) == 0
    assert sorted(path.suffix for path in output.iterdir()) == [".svg"] * 2
    table(folder, "Add", add(1))
    assert main(["plot", str(folder), "--output", str(output), "--ops", "Add"]) == 1
    first, second = capsys.readouterr().out.split("no plot ")
    assert "--peaks" in first
    assert "\n  roofline: " in second
    assert all(len(line) <= 80 for line in second.splitlines())


def test_the_same_data_give_the_same_files(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one", "other"):
        assert main(["plot", str(folder), "--output", str(folder / name), "--format", "pdf"]) == 0
    for path in (folder / "one").iterdir():
        assert path.read_bytes() == (folder / "other" / path.name).read_bytes()


def test_what_cannot_be_read_is_left_out_and_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    table(folder, "Sub", add(1, "2.5").replace("1,1024", "one,1024"), add(1, "2.5"))
    (folder / "Mul.csv").write_text("")
    (folder / "hcom_allReduce_.csv").write_text(MESSAGES.replace("1024", "many"))
    assert main(["plot", str(folder), "--output", str(folder / "plots")]) == 1
    printed = capsys.readouterr()
    assert numbers_by_line(printed.out)["roofline.png"][1] == 3
    # A line about the progress is among them where that took seconds.
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    for error, place in zip(errors, ("Mul.csv", "Sub.csv", "hcom_allReduce_.csv:2"), strict=True):
        assert error.startswith(f"error: {folder / place}: ")
    assert "'ONE'" in errors[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such-folder"], "no-such-folder: "),
        (["runs"], "runs: "),
        ([".."], " ../"),
        ([".", "--ops", "Add,Sbu"], " Sbu"),
    ],
)
def test_what_is_not_there(
    folder: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["plot", *arguments, "--output", "plots"]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["all", "collectives", "products"])
def test_a_misspelt_column_is_warned_of(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = "Input Shapes,Input Data Types,Output Shapes,Output Data Types,Averge Duration(us)\n"
    (tmp_path / "MatMulV2.csv").write_text(header)
    (tmp_path / "hcom_allReduce_.csv").write_text("message_bytes,num_devices\n")
    output = "plots" if kind == "all" else "plots.svg"
    weights = ["--weights", "1024,512"] if kind == "products" else []
    assert main(["plot", str(tmp_path), "--kind", kind, "--output", str(tmp_path / output), *weights]) == 1
    err = capsys.readouterr().err
    assert all(named in err for named in ("MatMulV2.csv:1: ", "'Averge Duration(us)'"))


@pytest.mark.parametrize("kind", ["all", "collectives", "products"])
def test_other_csvs_are_no_database(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "addresses.csv").write_text("name,street\nA,B\n")
    weights = ["--weights", "1024,512"] if kind == "products" else []
    assert main(["plot", str(tmp_path), "--kind", kind, "--output", str(tmp_path / "plots.svg"), *weights]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["addresses.csv"]


@pytest.mark.parametrize(
    ("option", "value", "refused"),
    [
        ("--peaks", "memory:fast", "'fast'"),
        ("--peaks", "memory:-1", "'-1'"),
        ("--peaks", "353.9", "'353.9'"),
        ("--peaks", "BF16:0", "'0'"),
    ],
)
def test_peaks_are_numbers(option: str, value: str, refused: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plot", ".", "--output", "plots", f"{option}={value}"])
    err = capsys.readouterr().err
    assert all(named in err for named in (option, refused))


def test_peaks_that_are_given_are_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--device", "X", "--peaks", "memory:100", "DT_BF16:1.5", "INT8:3", "--format", "svg"]
    assert main(["plot", str(folder), "--output", str(folder / "plots"), *arguments]) == 0
    assert "--peaks" not in capsys.readouterr().out


def test_without_matplotlib_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(folder), "--output", str(folder / "plots")]) == 2
    assert "opatlas[plot]" in capsys.readouterr().err
    assert not (folder / "plots").exists()


def test_known_peaks_are_of_devices_that_have_a_folder() -> None:
    from opatlas.model.location import NPU_DEVICES, device_kind

    assert set(NPU_DEVICES) <= set(PEAKS)
    assert {device_kind(device) for device in PEAKS} == {"npu", "cuda"}


@pytest.mark.parametrize(("size", "text"), [(1, "1 B"), (512, "512 B"), (1 << 16, "64 KiB"), (3 << 40, "3 TiB")])
def test_sizes_are_written_in_powers_of_1024(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize("name", ["plots.png", "plots.SVG"])
def test_a_file_in_place_of_the_folder_of_plots_is_refused(folder: Path, name: str, tmp_path: Path) -> None:
    output = tmp_path / "new" / name
    assert main(["plot", str(folder), "--output", str(output)]) == 2
    assert not output.exists()
