"""Plots of a database: what each figure shows, and the images of `opatlas report --plots`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.origin import database_device
from opatlas.row.columns import (
    AVERAGE,
    CACHE_STATE,
    INPUT_SLOTS,
    INSTRUMENT,
    OUTPUT_SLOTS,
    PROFILING_AVERAGE,
    RUN_ID,
)
from opatlas.row.durations import Duration
from opatlas.row.roofline import PEAKS, Peak
from opatlas.row.table import Row, RowTable
from opatlas.show.plots import writer
from opatlas.show.plots.figures import Agreement, RooflinePoint, agreement, rate_unit, roofline_plot, roofline_points
from opatlas.show.plots.writer import WrittenPlots, write_plots

HEADER = ",".join((*INPUT_SLOTS, *OUTPUT_SLOTS, AVERAGE, PROFILING_AVERAGE, CACHE_STATE, INSTRUMENT))
ADD = '"{n},1024;{n},1024",DT_BF16;DT_BF16,ND;ND,"{n},1024",DT_BF16,ND,{replayed},{captured},{how}'
PRODUCT = '"{m},512;1024,512",DT_BF16;DT_BF16,ND;ND,"{m},1024",DT_BF16,ND,{replayed},{captured},{how}'


def add(n: int, replayed: str = "", captured: str = "") -> str:
    return ADD.format(n=n, replayed=replayed, captured=captured, how="cold,cupti" if replayed else ",")


def product(m: int, replayed: str = "", captured: str = "") -> str:
    return PRODUCT.format(m=m, replayed=replayed, captured=captured, how="cold,cupti" if replayed else ",")


def table(folder: Path, kernel_type: str, *rows: str) -> None:
    (folder / f"{kernel_type}.csv").write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")


def timed(elements: int, replayed: float, captured: str = "") -> Row:
    cells = [f"{elements};{elements}", "BF16;BF16", "ND;ND", str(elements), "BF16", "ND", str(replayed), captured]
    columns = (*INPUT_SLOTS, *OUTPUT_SLOTS, AVERAGE, PROFILING_AVERAGE)
    return RowTable("Add", Path("Add.csv"), pd.DataFrame([cells], columns=columns)).row(0)


def pairs(folder: Path, kernel_type: str) -> list[tuple[Row, Duration]]:
    """Returns the rows with a duration, each with that of its replay, or else that of its capture."""
    rows = ((row, row.replayed or row.captured) for row in Database(folder).read(kernel_type))
    return [(row, duration) for row, duration in rows if duration is not None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database of an H200 by its manifest, with data for every plot."""
    table(tmp_path, "Add", add(1, "2.5", "2.0"), add(8, "4", "4.4"), add(16, "", "5"), add(32))
    table(tmp_path, "MatMulV2", product(8, "5", "5"), product(64, "5.5"))
    (tmp_path / "runs").mkdir()
    manifest = {"device": {"name": "NVIDIA_H200"}, "packages": {}, "started_at": 1.0}
    (tmp_path / "runs" / "one.json").write_text(json.dumps(manifest))
    return tmp_path


def written(folder: Path, output: Path | None = None) -> WrittenPlots:
    pytest.importorskip("matplotlib")
    return write_plots(folder, output or folder / "plots", "svg")


def rows_in(plots: WrittenPlots) -> dict[str, int]:
    return {path.stem: rows for path, rows in plots.rows.items()}


def test_the_device_is_the_folder_under_data_or_what_most_rows_were_measured_on(folder: Path, tmp_path: Path) -> None:
    assert database_device(tmp_path / "data" / "AMD_EPYC" / "torch" / "torch2.13.0_cpu") == "AMD_EPYC"
    (folder / "runs" / "torn.json").write_text("{")
    assert database_device(folder) == "NVIDIA_H200"
    other = {"device": {"name": "NVIDIA_H100"}, "packages": {}, "started_at": 1.0, "statuses": {"measured": 1000}}
    (folder / "runs" / "two.json").write_text(json.dumps(other))
    assert database_device(folder) == "NVIDIA_H100"


def test_replays_of_another_device_are_in_no_plot_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: dict[str, str] = {}
    monkeypatch.setattr(writer, "save", lambda figure, path: titles.update({path.stem: figure.get_suptitle()}))
    header = f"{HEADER},{RUN_ID}"
    rows = [
        f"{add(n, us, captured)},{run}"
        for n, us, captured, run in (
            (1, "2.5", "2.0", "here"),
            (4, "2.5", "2.0", "here"),
            (2, "90", "3.0", "there"),
            (3, "95", "", "there"),
        )
    ]
    (tmp_path / "Add.csv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "runs").mkdir()
    for run_id, device in (("here", "NVIDIA_H200"), ("there", "AMD_EPYC")):
        statuses = {"measured": 2 if run_id == "here" else 1}
        manifest = {"device": {"name": device}, "packages": {}, "started_at": 1.0, "statuses": statuses}
        (tmp_path / "runs" / f"{run_id}.json").write_text(json.dumps(manifest))
    plots = written(tmp_path)
    assert (plots.device, rows_in(plots)) == ("NVIDIA_H200", {"roofline": 2, "microbench_against_profiling": 3})
    assert "AMD_EPYC" not in titles["roofline"]
    assert "AMD_EPYC, NVIDIA_H200" in titles["microbench_against_profiling"]


@pytest.mark.parametrize(
    ("dtypes", "unit"),
    [({"BF16"}, "TFLOP/s"), ({"INT8", "INT32"}, "TOP/s"), ({"BF16", "INT8"}, "TFLOP/s (INT8: TOP/s)")],
)
def test_operations_of_integers_are_no_flop(dtypes: set[str], unit: str) -> None:
    assert rate_unit(dtypes) == unit


def test_few_points_have_decades_around_them_and_a_missing_roof_is_told() -> None:
    pytest.importorskip("matplotlib")
    rows = [(row, duration) for row in (timed(4096, 9.0), timed(8192, 11.0)) if (duration := row.replayed) is not None]
    plot = roofline_plot(rows, "Roofline", Peak())
    assert plot is not None
    (axis,) = plot.figure.axes
    for least, most in (axis.get_xlim(), axis.get_ylim()):
        assert math.log10(least) == pytest.approx(round(math.log10(least)))
        assert most >= 10 * least
    assert plot.figure.get_suptitle() not in ("", "Roofline")
    known = roofline_plot(rows, "Roofline", Peak(1000.0))
    assert known is not None
    assert known.figure.get_suptitle() == "Roofline"


def test_a_product_stands_where_its_operations_and_bytes_put_it(folder: Path) -> None:
    rows = pairs(folder, "MatMulV2")
    flops, size = 2 * 8 * 512 * 1024, 2 * (8 * 512 + 512 * 1024 + 8 * 1024)
    point = roofline_points(rows)[0]
    assert point == RooflinePoint("MatMulV2", "BF16", flops / size, pytest.approx(flops / 5e-6 / 1e12))


def test_roofs_meet_where_memory_and_arithmetic_take_equally_long(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = pairs(folder, "MatMulV2")
    plot, without = roofline_plot(rows, "", Peak(1000.0, {"BF16": 2.0, "INT8": 4.0})), roofline_plot(rows, "", Peak())
    assert plot is not None
    assert without is not None
    (axis,), (bare,) = plot.figure.axes, without.figure.axes
    slope, level = axis.get_lines()
    assert slope.get_ydata()[-1] == level.get_ydata()[0] == level.get_ydata()[1] == 2.0
    assert slope.get_xdata()[-1] == level.get_xdata()[0] == 2.0
    # No product is of INT8: its level says nothing here.
    assert [text.get_text() for text in axis.texts] == ["memory: 1,000 GB/s", "BF16: 2"]
    assert not bare.get_lines()


def test_compositions_are_in_no_plot(folder: Path) -> None:
    path = folder / "Add.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},Stand-In", *(f"{row},composition of 2" for row in rows)]) + "\n")
    # Of Add no replay is left.
    assert rows_in(written(folder)) == {
        "roofline": 2,
        "microbench_against_profiling": 1,
    }


def test_agreement_of_few_rows_has_no_tenths() -> None:
    rows = [timed(4, float(number), "2") for number in (1, 2, 3)]
    assert agreement(rows) == Agreement(rows=3, p10=None, p50=1.0, p90=None, within=1)
    many = [timed(4, float(number), "10") for number in range(1, 12)]
    found = agreement(many)
    assert (found.rows, found.p10, found.p50, found.p90) == (11, 0.2, 0.6, 1.0)


def test_every_plot_that_there_is_data_for_is_written_once(folder: Path) -> None:
    plots = written(folder)
    # The row that was captured only is in no roofline.
    assert rows_in(plots) == {
        "roofline": 4,
        "microbench_against_profiling": 3,
    }
    assert (plots.device, plots.missing, plots.problems) == ("NVIDIA_H200", [], [])
    first = {path: path.read_bytes() for path in plots.rows}
    assert all(text.startswith(b"<?xml") for text in first.values())
    assert {path: path.read_bytes() for path in written(folder).rows} == first
    # An earlier image in another format would be taken for that of these rows.
    write_plots(folder, folder / "plots", "png")
    assert {path.suffix for path in (folder / "plots").iterdir()} == {".png"}


def test_names_are_no_formulas(folder: Path) -> None:
    for name in ("$x^$", "a$b", "$"):
        table(folder, name, product(8, "5", "5"), add(1, "2", "2"))
    database = folder.rename(folder.with_name("$\\frac$"))
    for path in (database / "runs").iterdir():
        path.unlink()
    assert written(database).problems == []


def test_what_there_is_no_data_for_is_missing(tmp_path: Path) -> None:
    table(tmp_path, "Add", add(1))
    plots = written(tmp_path)
    assert (plots.device, dict(plots.rows), plots.missing) == ("", {}, list(writer.PLOTS))


def test_what_cannot_be_read_is_left_out_and_told(folder: Path) -> None:
    table(folder, "Sub", add(1, "2.5").replace("1,1024", "one,1024"), add(1, "2.5"))
    (folder / "Mul.csv").write_text("")
    plots = written(folder)
    assert rows_in(plots) == {"roofline": 5, "microbench_against_profiling": 3}
    for problem, place in zip(plots.problems, ("Mul.csv", "Sub.csv"), strict=True):
        assert problem.startswith(f"{folder / place}: ")
    assert "'ONE'" in plots.problems[1]


def test_the_command_writes_images_beside_the_site(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("bokeh")
    site = folder.parent / "site"
    assert main(["report", str(folder), "--output", str(site), "--plots", "pdf", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {Path(each["file"]): each["rows"] for each in content["plots"]} == {
        site / "plots" / "roofline.pdf": 4,
        site / "plots" / "microbench_against_profiling.pdf": 3,
    }
    assert (site / "index.html").is_file()
    assert len(list((site / "plots").iterdir())) == 2


@pytest.mark.parametrize(("extra", "module"), [("report", "bokeh"), ("plot", "matplotlib")])
def test_without_an_extra_nothing_is_written(
    extra: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(folder), "--output", str(folder / "site"), "--plots", "png"]) == 2
    assert f"opatlas[{extra}]" in capsys.readouterr().err
    assert not (folder / "site").exists()


def test_known_peaks_are_of_devices_that_have_a_folder() -> None:
    from opatlas.row.location import NPU_DEVICES, device_kind

    assert set(NPU_DEVICES) <= set(PEAKS)
    assert {device_kind(device) for device in PEAKS} == {"npu", "cuda"}
