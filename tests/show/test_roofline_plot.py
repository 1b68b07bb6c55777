"""The image of `opatlas report --plots`: what the roofline of a database shows."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.row.columns import AVERAGE, CACHE_STATE, INPUT_SLOTS, INSTRUMENT, OUTPUT_SLOTS, PROFILING_AVERAGE, RUN_ID
from opatlas.row.roofline import Peak
from opatlas.show.roofline_plot import RooflinePoint, rate_unit, roofline_figure, roofline_points, write_roofline

HEADER = ",".join((*INPUT_SLOTS, *OUTPUT_SLOTS, AVERAGE, PROFILING_AVERAGE, CACHE_STATE, INSTRUMENT))
ADD = '"{n},1024;{n},1024",DT_BF16;DT_BF16,ND;ND,"{n},1024",DT_BF16,ND,{replayed},{captured},{how}'
PRODUCT = '"{m},512;1024,512",DT_BF16;DT_BF16,ND;ND,"{m},1024",DT_BF16,ND,{replayed},,cold,cupti'


def add(n: int, replayed: str = "", captured: str = "") -> str:
    return ADD.format(n=n, replayed=replayed, captured=captured, how="cold,cupti" if replayed else ",")


def table(folder: Path, kernel_type: str, *rows: str, header: str = HEADER) -> None:
    (folder / f"{kernel_type}.csv").write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")


def manifest(folder: Path, run: str, device: str, measured: int) -> None:
    (folder / "runs").mkdir(exist_ok=True)
    content = {"device": {"name": device}, "packages": {}, "started_at": 1.0, "statuses": {"measured": measured}}
    (folder / "runs" / f"{run}.json").write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database of an H200 by its manifest: four replayed rows, one that was captured, one without a duration."""
    table(tmp_path, "Add", add(1, "2.5", "2.0"), add(8, "4", "4.4"), add(16, "", "5"), add(32))
    table(tmp_path, "MatMulV2", PRODUCT.format(m=8, replayed="5"), PRODUCT.format(m=64, replayed="5.5"))
    manifest(tmp_path, "one", "NVIDIA_H200", 4)
    return tmp_path


def points(folder: Path, kernel_type: str) -> list[RooflinePoint]:
    rows = ((row, row.replayed or row.captured) for row in Database(folder).read(kernel_type))
    return roofline_points([(row, duration) for row, duration in rows if duration is not None])


def axis_of(found: list[RooflinePoint], peak: Peak) -> Any:
    pytest.importorskip("matplotlib")
    return roofline_figure(found, "Roofline", peak).axes[0]


def written(folder: Path, name: str = "plots/roofline.svg") -> int:
    pytest.importorskip("matplotlib")
    rows, problems = write_roofline(folder, folder / name)
    assert problems == []
    return rows


def test_a_product_stands_where_its_operations_and_bytes_put_it(folder: Path) -> None:
    flops, size = 2 * 8 * 512 * 1024, 2 * (8 * 512 + 512 * 1024 + 8 * 1024)
    expected = RooflinePoint("MatMulV2", "BF16", flops / size, pytest.approx(flops / 5e-6 / 1e12))
    assert points(folder, "MatMulV2")[0] == expected


def test_roofs_meet_where_memory_and_arithmetic_take_equally_long(folder: Path) -> None:
    axis = axis_of(points(folder, "MatMulV2"), Peak(1000.0, {"BF16": 2.0, "INT8": 4.0}))
    slope, level = axis.get_lines()
    assert slope.get_ydata()[-1] == level.get_ydata()[0] == level.get_ydata()[1] == 2.0
    assert slope.get_xdata()[-1] == level.get_xdata()[0] == 2.0
    # No product is of INT8: its level says nothing here.
    assert [text.get_text() for text in axis.texts] == ["memory: 1,000 GB/s", "BF16: 2"]


def test_without_peaks_there_are_decades_around_the_points_and_a_missing_roof_is_told(folder: Path) -> None:
    axis = axis_of(points(folder, "Add"), Peak())
    assert not axis.get_lines()
    for least, most in (axis.get_xlim(), axis.get_ylim()):
        assert math.log10(least) == pytest.approx(round(math.log10(least)))
        assert most >= 10 * least
    assert axis.figure.get_suptitle() not in ("", "Roofline")


@pytest.mark.parametrize(
    ("dtypes", "unit"),
    [({"BF16"}, "TFLOP/s"), ({"INT8", "INT32"}, "TOP/s"), ({"BF16", "INT8"}, "TFLOP/s (INT8: TOP/s)")],
)
def test_operations_of_integers_are_no_flop(dtypes: set[str], unit: str) -> None:
    assert rate_unit(dtypes) == unit


def test_replays_of_this_device_are_shown_and_captures_without_any(folder: Path) -> None:
    assert written(folder) == 4
    table(folder, "Add", *(f"{row},there" for row in (add(2, "90", "3.0"), add(3, "95"))), header=f"{HEADER},{RUN_ID}")
    manifest(folder, "there", "AMD_EPYC", 2)
    assert written(folder) == 2
    (folder / "MatMulV2.csv").unlink()
    table(folder, "Add", add(16, "", "5"))
    assert written(folder) == 1
    table(folder, "Add", f"{add(16, '5')},composition of 2", header=f"{HEADER},Stand-In")
    assert written(folder) == 0
    assert not (folder / "plots" / "roofline.svg").exists()


def test_the_same_rows_are_the_same_image(folder: Path) -> None:
    for ending in ("svg", "pdf"):
        images = []
        for _ in range(2):
            written(folder, f"roofline.{ending}")
            images.append((folder / f"roofline.{ending}").read_bytes())
        assert images[0] == images[1]


def test_names_are_no_formulas(folder: Path) -> None:
    for name in ("$x^$", "a$b", "$"):
        table(folder, name, add(1, "2", "2"))
    assert written(folder.rename(folder.with_name("$\\frac$"))) == 4


def test_what_cannot_be_read_is_left_out_and_told(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    table(folder, "Sub", add(1, "2.5").replace("1,1024", "one,1024"), add(1, "2.5"))
    (folder / "Mul.csv").write_text("")
    rows, problems = write_roofline(folder, folder / "roofline.png")
    assert (rows, [problem.partition(": ")[0] for problem in problems]) == (
        5,
        [str(folder / "Mul.csv"), str(folder / "Sub.csv")],
    )
    assert "'ONE'" in problems[1]


def test_the_command_writes_the_image_beside_the_site(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("bokeh")
    site = folder.parent / "site"
    assert main(["report", str(folder), "--output", str(site), "--plots", "pdf"]) == 0
    assert "4 rows" in capsys.readouterr().out
    assert (site / "plots" / "roofline.pdf").is_file()


@pytest.mark.parametrize(("extra", "module"), [("report", "bokeh"), ("plot", "matplotlib")])
def test_without_an_extra_nothing_is_written(
    extra: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(folder), "--output", str(folder / "site"), "--plots", "png"]) == 2
    assert f"opatlas[{extra}]" in capsys.readouterr().err
    assert not (folder / "site").exists()
