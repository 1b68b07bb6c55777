"""The plot of bus bandwidth against message size, made by a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from printed import numbers_in

from opatlas.cli.main import main
from opatlas.model.communication import ALL_GATHER, ALL_REDUCE
from opatlas.report.plots.communication import communication_title, message_lines

HEADER = "message_bytes,num_devices,dtype,topology_tier,Duration(us),bandwidth_gbps,MicroBench Rank Spread(us)\n"
ROWS = "2048,4,DT_BF16,1,20,,\n1024,4,DT_BF16,1,10.0,,5\n1024,4,DT_BF16,1,,,\n1024,2,DT_FLOAT,0,1.0,,0.5\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hcom_allReduce_.csv").write_text(HEADER + ROWS)
    return tmp_path


def test_lines_are_of_what_was_measured(folder: Path) -> None:
    lines = message_lines(folder, ALL_REDUCE)
    assert [(label.partition(",")[0], numbers_in(label)) for label in lines] == [("BF16", (4, 1)), ("FLOAT", (2, 0))]
    small, large = next(iter(lines.values()))
    assert (small.message_bytes, large.message_bytes) == (1024, 2048)
    # 3/2 of 1024 bytes in 10 us, in 5 us on the fastest rank.
    assert (small.bus_gbps, small.fastest_gbps) == pytest.approx((0.1536, 0.3072))
    assert message_lines(folder, ALL_GATHER) == {}


def test_the_title_has_device_and_library(folder: Path, tmp_path: Path) -> None:
    places = [tmp_path / "data" / "NVIDIA_H200" / "nccl" / "2.28.9", tmp_path / "data" / "AMD_EPYC" / "gloo" / "2.13.0"]
    both = communication_title([*places, places[0]])
    assert both.startswith(communication_title([folder]))
    assert all(both.count(word) == 1 for word in ("NVIDIA_H200", "NCCL 2.28.9", "AMD_EPYC", "Gloo", "2.13.0"))


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_same_data_give_the_same_file(folder: Path, ending: str, capsys) -> None:
    pytest.importorskip("matplotlib")
    files = [folder / f"{name}.{ending}" for name in ("one", "other")]
    for file in files:
        assert main(["plot", "--kind=collectives", str(folder), "--output", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "3 messages of all_reduce" in capsys.readouterr().out
    if ending == "svg":
        # Curves of both lines: their markers and their legend.
        assert files[0].read_text().count("<use") > 3


@pytest.mark.parametrize(
    "arguments",
    [["plot", "--kind=collectives", "."], ["plot", "--kind=products", ".", "--weights", "1024,512"]],
    ids=lambda words: words[1],
)
def test_a_file_that_can_hold_no_plot_is_wrong_usage(arguments: list[str], capsys) -> None:
    assert main([*arguments, "--output", "a.jpg"]) == 2
    assert "a.jpg: " in capsys.readouterr().err


def test_what_was_not_measured_cannot_be_plotted(folder: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    assert main(["plot", "--kind=collectives", str(folder), "--ops", "all_gather", "--output", "a.svg"]) == 1
    assert str(folder) in capsys.readouterr().err
    assert [path.suffix for path in folder.iterdir()] == [".csv"]


def test_a_folder_without_collectives_is_told_so(folder: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "Add.csv").write_text("Input Shapes\n")
    for name, named in (("missing", "database"), ("kernels", "hcom_*.csv")):
        assert main(["plot", "--kind=collectives", str(tmp_path / name), "--output", "a.svg"]) == 2
        err = capsys.readouterr().err
        assert str(tmp_path / name) in err
        assert named in err


def test_a_cell_that_is_no_number_is_named(folder: Path, capsys) -> None:
    (folder / "hcom_allReduce_.csv").write_text(HEADER + "many,4,DT_BF16,1,20,,\n")
    assert main(["plot", "--kind=collectives", str(folder), "--output", str(folder / "a.svg")]) == 1
    assert f"{folder / 'hcom_allReduce_.csv'}:2: " in capsys.readouterr().err
