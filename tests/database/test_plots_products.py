"""The plot of durations of matrix products against their rows, made by a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from printed import numbers_in

from opatlas.cli.main import main
from opatlas.errors import TableError
from opatlas.report.plots.durations import ProductLine, ProductPoint, product_lines, products_figure

HEADER = (
    "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Average Duration(us),"
    "MicroBench Min Duration(us),MicroBench Std Duration(us),Cache State\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        '"64,512;1024,512",DT_BF16;DT_BF16,ND;ND,"64,1024",DT_BF16,5.5,5.1,0.2,cold\n',
        '"8,512;1024,512",DT_BF16;DT_BF16,ND;ND,"8,1024",DT_BF16,4.5,4.1,0.1,cold\n',
        '"8,512;1024,512",FLOAT;FLOAT,ND;ND,"8,1024",FLOAT,9,8,0.1,cold\n',
        '"16,512;1024,512",DT_BF16;DT_BF16,ND;ND,"16,1024",DT_BF16,,,,\n',
        '"512,8;1024,512",DT_BF16;DT_BF16,ND;ND,"8,1024",DT_BF16,7,7,0,cold\n',
        '"8,256;1024,256",DT_BF16;DT_BF16,ND;ND,"8,1024",DT_BF16,3,3,0,cold\n',
    ]
    (tmp_path / "MatMulV2.csv").write_text(HEADER + "".join(rows), encoding="utf-8")
    return tmp_path


def test_a_line_is_a_weight_in_a_dtype_by_its_rows(folder: Path) -> None:
    assert product_lines(folder, "MatMulV2", (1024, 512)) == {
        ProductLine("1024 x 512", "BF16", "cold"): [ProductPoint(8, 4.5, 4.1, 0.1), ProductPoint(64, 5.5, 5.1, 0.2)],
        ProductLine("1024 x 512", "FLOAT", "cold"): [ProductPoint(8, 9.0, 8.0, 0.1)],
    }


def test_a_weight_has_one_colour_and_a_cache_state_one_kind_of_line() -> None:
    pytest.importorskip("matplotlib")
    cold, warm, points = Path("cold"), Path("warm"), [ProductPoint(8, 4.5, 4.1, 0.1), ProductPoint(64, 5.5, 5.1, 0.2)]
    lines = {
        (folder, ProductLine(weight, "BF16", folder.name)): points
        for folder in (cold, warm)
        for weight in ("8 x 4", "4 x 8")
    }
    (axis,) = products_figure(lines, "MatMulV2", {cold: "A", warm: "A"}).axes
    drawn = dict(zip(lines, axis.get_lines(), strict=True))
    colors = {
        weight: {line.get_color() for (_, of), line in drawn.items() if of.weight == weight}
        for weight in ("8 x 4", "4 x 8")
    }
    assert [len(of_weight) for of_weight in colors.values()] == [1, 1]
    assert colors["8 x 4"] != colors["4 x 8"]
    assert {(folder, line.get_linestyle()) for (folder, _), line in drawn.items()} == {(cold, "-"), (warm, "--")}
    (axis,) = products_figure(lines, "MatMulV2", {cold: "A", warm: "B"}).axes
    assert axis.get_title() == "MatMulV2 on A, B"
    assert axis.get_lines()[-1].get_label() == "4 x 8, BF16, warm, B"


def test_the_command_makes_a_file(folder: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    file = folder / "plot.svg"
    assert (
        main(["plot", "--kind=products", str(folder), "--weights", "1024,512", "1024,256", "--output", str(file)]) == 0
    )
    assert numbers_in(capsys.readouterr().out.partition("plot.svg: ")[2]) == (4, 3)
    assert b"rows M" in file.read_bytes() or file.stat().st_size > 10_000


def test_one_product_is_one(folder: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    assert (
        main(["plot", "--kind=products", str(folder), "--weights", "1024,256", "--output", str(folder / "plot.svg")])
        == 0
    )
    assert numbers_in(capsys.readouterr().out.partition("plot.svg: ")[2]) == (1, 1)


def test_a_weight_that_nobody_measured_is_an_error(folder: Path, capsys) -> None:
    assert main(["plot", "--kind=products", str(folder), "--weights", "7,7", "--output", str(folder / "a.svg")]) == 1
    assert "weight 7,7" in capsys.readouterr().err


def test_a_weight_is_two_numbers(folder: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["plot", "--kind=products", str(folder), "--weights", "7", "--output", "a.svg"])
    assert "'7'" in capsys.readouterr().err


def test_a_shape_that_is_none_is_named_with_its_line(folder: Path) -> None:
    with open(folder / "MatMulV2.csv", "a", encoding="utf-8") as file:
        file.write('"x,512;1024,512",DT_BF16;DT_BF16,ND;ND,"64,1024",DT_BF16,5.5,5.1,0.2,cold\n')
    with pytest.raises(TableError) as caught:
        product_lines(folder, "MatMulV2", (1024, 512))
    assert (caught.value.path.name, caught.value.line) == ("MatMulV2.csv", 8)
