"""`opatlas compare`: which databases it takes, its formats, and its exit status."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from commands import as_json, run
from compared import lost, measured, write_tables

COMPOSITION = "composition of 11 torch operators (pow, mean, ...)"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Four kernel types of torch; two rivals have some of them."""
    folder = write_tables(
        tmp_path / "base",
        {
            "AddRmsNorm": [measured(1, 21, stand_in=COMPOSITION), measured(2, 30, stand_in=COMPOSITION)],
            "MatMulV2": [measured(4, 50), measured(8, 100)],
            "Sort": [measured(16, 5)],
            "SwiGlu": [
                measured(1, 8),
                measured(2, 12, kernels="3", span="13"),
                measured(3, 9, kernels="2", span="30"),
                measured(4, 10, std_us=3),
                measured(5, 10),
                measured(6, 10),
            ],
        },
    )
    write_tables(
        folder / "implementations" / "flashinfer-0.5.3",
        {
            "AddRmsNorm": [measured(1, 3, missing="1"), lost(2, "unsupported", "hidden size 96: a multiple of 64")],
            "SwiGlu": [
                measured(1, 4),
                measured(2, 13.1),
                measured(3, 18),
                measured(4, 5),
                measured(5, 5, cache="warm"),
                lost(6, "failed", "result 0: 3 of 64 elements differ"),
            ],
        },
    )
    write_tables(
        folder / "implementations" / "flag_gems-5.0.2",
        {"MatMulV2": [measured(4, 55.2), lost(8, "timeout", "exceeded 60 s")], "SwiGlu": [measured(1, 6)]},
    )
    write_tables(folder / "implementations" / "flag_gems-4.9", {"MatMulV2": [measured(4, 1)]})
    return folder


Tables = dict[str, list[dict[str, str]]]


def tables(capsys: pytest.CaptureFixture[str], *arguments: object) -> Tables:
    """Returns the rows of the tables that the command prints, by their title; "" for those without."""
    status, out, err = run(capsys, "compare", *arguments, "--format", "markdown")
    assert (status, err) == (0, "")
    found: Tables = {}
    title = ""
    for block in out.replace("\\", "").split("\n\n"):
        lines = block.strip().splitlines()
        if not block.startswith("|"):
            title = block.strip().strip("*")
            continue
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found[title] = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
        title = ""
    return found


def test_the_implementations_of_a_base(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tables(capsys, base)
    assert [(row["database"], row["measured"], row["fastest"]) for row in found["databases"]] == [
        ("torch", "11", "7"),
        ("flag_gems 5.0.2", "2", "0"),
        ("flashinfer 0.5.3", "6", "2"),
    ]
    flag_gems, flashinfer = found["speed-up over torch"]
    assert (flag_gems["covered"], flag_gems["deployed"]) == ("1.10x (0.094x to 12.82x)", "1.02x (0.94x to 1.11x)")
    assert flashinfer["SLOW"] == "1"
    assert [row["composed"] for row in found["statuses"]] == ["", "7.00x"]
    assert flashinfer["covered"].startswith("1.00x (0.18x to ")
    rows = [row for row in found["rows"] if row["database"].startswith("flashinfer")]
    assert [(row["verdict"], row["speed-up"], row["row"].split("-")[1]) for row in rows] == [
        ("SLOW", "0.50x", "3x64"),
        ("FAST", "7.00x", "1x64"),
        ("FAST", "2.00x", "1x64"),
        ("AMBIGUOUS", "2.00x", "4x64"),
        ("SAME", "0.99x", "2x64"),
        ("NOT COMPARABLE", "2.00x", "5x64"),
    ]
    for row, words in zip(rows, ("host-bound", "composition", "", "30 %", "", "warm"), strict=True):
        assert words in row["remark"]
    assert {(row["database"], row["status"], row["rows"]) for row in found["rows without a speed-up"]} == {
        ("flag_gems 5.0.2", "missing", "8"),
        ("flag_gems 5.0.2", "timeout", "1"),
        ("flashinfer 0.5.3", "missing", "3"),
        ("flashinfer 0.5.3", "unsupported", "1"),
        ("flashinfer 0.5.3", "failed", "1"),
        ("flashinfer 0.5.3", "NOT COMPARABLE", "1"),
    }


def test_slower_rows_come_first_and_then_the_fastest_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = write_tables(tmp_path / "a", {"Sort": [measured(size, 10) for size in range(1, 61)]})
    theirs = [measured(size, 10 + size if size <= 30 else 10 / size) for size in range(1, 61)]
    (found,) = (
        rows
        for title, rows in tables(capsys, ours, write_tables(tmp_path / "b", {"Sort": theirs})).items()
        if title == "rows"
    )
    sizes = [int(row["row"].split("-")[1].partition("x")[0]) for row in found]
    assert sizes == [*(size for size in range(30, 0, -1) if size in sizes), *range(60, 30, -1)]
    assert sizes[0] == 30


def test_json_has_every_row_and_figure(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "compare", base)
    assert found["baseline"] == {"name": "torch", "version": "", "path": str(base), "state": ""}
    assert found["fastest"] == {"flashinfer": 2, "torch": 7, "": 2}
    assert len(found["rows"]) == 11
    flag_gems, flashinfer = found["rivals"]
    assert [each["name"] for each in (flag_gems, flashinfer)] == ["flag_gems", "flashinfer"]
    # The newest version of two, of which the older has another duration.
    assert flag_gems["version"] == "5.0.2"
    assert flag_gems["all"]["covered"] == pytest.approx(math.sqrt(50 / 55.2 * 8 / 6))
    assert (flag_gems["all"]["crashed"], flag_gems["all"]["missing"]) == (1, 8)
    all_rows = flashinfer["all"]
    # AddRmsNorm is a composition, row 5 is warm: row 4 noisy: of SwiGlu's pairs three count, of two kernels by
    # span or by sum.
    ratios = [8 / 4, 13 / 13.1, 9 / 18]
    product = math.prod(ratios)
    assert (all_rows["rows"], all_rows["measured"], all_rows["unsupported"], all_rows["wrong"]) == (11, 6, 1, 1)
    assert all_rows["covered"] == pytest.approx(product ** (1 / 3))
    assert (all_rows["covered_rows"], all_rows["deployed_rows"], all_rows["compositions"]) == (3, 7, 1)
    assert all_rows["deployed"] == pytest.approx(product ** (1 / 7))
    assert all_rows["fast"] == pytest.approx({"1.0": 2 / 11, "1.5": 2 / 11, "2.0": 2 / 11})
    assert all_rows["verdicts"] == {"FAST": 2, "SAME": 1, "SLOW": 1, "AMBIGUOUS": 1, "NOT COMPARABLE": 1}
    by_type = {each["kernel_type"]: each for each in flashinfer["kernel_types"]}
    assert all_rows["covered_low"] < all_rows["covered"] < all_rows["covered_high"]
    assert (all_rows["composed_rows"], all_rows["composed_low"]) == (1, None)
    assert flashinfer["evidence"] == {"pairs": {"default": 5}, "controls": [], "default_spreads": [0.015]}
    assert by_type["AddRmsNorm"]["covered"] is None
    assert by_type["AddRmsNorm"]["deployed"] is None
    bound = [row for row in found["rows"] if "flashinfer" in row["pairs"] and row["pairs"]["flashinfer"]["host_bound"]]
    assert [row["calls"]["torch"]["sum_us"] for row in bound] == [9]


def test_a_rival_without_common_rows_is_told_in_a_line(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(base / "implementations" / "liger-0.8.5", {"SwiGlu": [measured(7, 4)], "Rope": [measured(1, 4)]})
    content = as_json(capsys, "compare", base)
    assert content["without_common_rows"] == ["liger"]
    (row,) = (row for row in tables(capsys, base)["speed-up over torch"] if row["database"] == "liger 0.8.5")
    assert row["in common"] == "0"
    assert run(capsys, "compare", base, "--fail-slower", "50")[0] == 1


def test_rows_that_one_of_two_states_has_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [write_tables(tmp_path / name, {"SwiGlu": [measured(size, 4)]}) for size, name in enumerate("ab", 1)]
    content = as_json(capsys, "compare", *folders)
    (rival,) = content["rivals"]
    assert (content["without_common_rows"], rival["all"]["lost"], rival["all"]["new"]) == ([], 1, 1)
    assert rival["path"] in run(capsys, "compare", *folders)[1]


@pytest.mark.parametrize(("stand_in", "mean"), [("", "covered"), (COMPOSITION, "composed")])
@pytest.mark.parametrize("telling", [0, 1, 2])
def test_ambiguous_rows_count_in_no_mean(
    stand_in: str, mean: str, telling: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = range(2, 2 + telling)
    alike = [measured(size, 10, stand_in=stand_in) for size in sizes]
    ours = write_tables(tmp_path / "ours", {"Sort": [measured(1, 10, std_us=9, stand_in=stand_in), *alike]})
    theirs = [measured(1, 40, std_us=30), *(measured(size, 40) for size in sizes)]
    write_tables(ours / "implementations" / "liger-0.8", {"Sort": theirs})
    found = tables(capsys, ours)
    ((total,), (others,)) = found["speed-up over torch"], found["statuses"]
    assert {**total, **others}.get(mean, "").partition(" ")[0] == ("0.25x" if telling else "")
    # The speed-up of a row is shown, beside its interval.
    assert [row["speed-up"] for row in found["rows"]] == ["0.25x"] * (1 + telling)
    assert ("--where" in run(capsys, "compare", ours)[1]) == (telling <= 1)


def test_the_runs_of_a_pooled_duration_widen_its_margin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pooled = measured(1, 10, run="a", pooled="a 10; b 11; c 9")
    replaced = measured(2, 10, run="d", pooled="a 10; b 11; c 9")
    ours = write_tables(tmp_path / "ours", {"Sort": [pooled, replaced]})
    theirs = write_tables(tmp_path / "theirs", {"Sort": [measured(1, 8.5), measured(2, 8.5)]})
    rows = as_json(capsys, "compare", ours, theirs)["rows"]
    assert [row["pairs"]["theirs"]["verdict"] for row in rows] == ["AMBIGUOUS", "FAST"]
    assert [row["calls"]["ours"]["run_medians_us"] for row in rows] == [[10, 11, 9], []]


def rounds(size: int, ratio: float, half: float = 0.02, control: str = "") -> dict[str, str]:
    """A row of liger whose rounds with torch have a ratio."""
    ends = {"ratio": f"{ratio}", "low": f"{ratio - half}", "high": f"{ratio + half}", "rounds": "40;40"}
    return measured(size, 10, std_us=5, run="r", against="torch 2.13.0", control=control, **ends)


@pytest.mark.parametrize(("control", "verdicts"), [("1.004", ["FAST", "SAME"]), ("1.14", ["AMBIGUOUS", "SAME"])])
def test_rounds_decide_as_their_controls_allow(
    control: str, verdicts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The controls of a run lie in all kernel types, also in those that are not compared."""
    baseline = [measured(size, 10, run="r", implementation="torch 2.13.0") for size in (1, 2)]
    ours = write_tables(tmp_path / "ours", {"Sort": baseline, "Abs": baseline})
    theirs = {"Sort": [rounds(1, 1.2), rounds(2, 1.01)], "Abs": [rounds(1, 1.0, control=control)]}
    write_tables(ours / "implementations" / "liger-0.8", theirs)
    found = as_json(capsys, "compare", ours, "--ops", "Sort")
    pairs = [row["pairs"]["liger"] for row in found["rows"]]
    assert [pair["verdict"] for pair in pairs] == verdicts
    assert {name: pairs[0][name] for name in ("speed_up", "speed_up_low", "speed_up_high", "rounds", "basis")} == {
        "speed_up": 1.2,
        "speed_up_low": 1.18,
        "speed_up_high": 1.22,
        "rounds": 40,
        "basis": "rounds",
    }
    (controls,) = found["rivals"][0]["evidence"]["controls"]
    assert (controls["run_id"], controls["rows"]) == ("r", 1)
    assert controls["spread"] == pytest.approx(math.log(float(control)) / 0.6745)
    assert "1 control spread by" in run(capsys, "compare", ours)[1]


def test_siblings_of_a_default_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = tmp_path / "NVIDIA_H200"
    rows = {"Sort": [measured(1, 2)]}
    base = write_tables(device / "torch" / "torch2.11.0_cuda13.0", rows)
    for version in ("0.5.3_torch2.11.0_cuda13.0", "0.5.10_torch2.11.0_cuda13.0", "0.6.0_torch2.12.0_cuda13.0"):
        write_tables(device / "flashinfer" / f"flashinfer{version}", rows)
    write_tables(device / "nccl" / "2.28.9", rows)
    found = as_json(capsys, "compare", base)
    # 0.6.0 was measured with another torch than the base.
    assert [(each["name"], each["version"]) for each in found["rivals"]] == [("flashinfer", "0.5.10")]


def test_siblings_have_the_remark_of_a_default_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cache was warm for both, or for none."""
    device = tmp_path / "NVIDIA_H200"
    rows = {"Sort": [measured(1, 2)]}
    cold, warm = (write_tables(device / "torch" / f"torch2.11.0_cuda13.0{end}", rows) for end in ("", "_warm"))
    for name in ("0.5.3_torch2.11.0_cuda13.0", "0.7.0_torch2.11.0_cuda13.0_warm"):
        write_tables(device / "flashinfer" / f"flashinfer{name}", rows)
    assert [each["version"] for each in as_json(capsys, "compare", cold)["rivals"]] == ["0.5.3"]
    assert [each["version"] for each in as_json(capsys, "compare", warm)["rivals"]] == ["0.7.0"]


def test_named_databases_have_names_that_tell_them_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"Sort": [measured(1, 2)]}
    one, two = (write_tables(tmp_path / name, rows) for name in ("one", "two"))
    old, new = (write_tables(one / "implementations" / f"liger-{version}", rows) for version in ("0.8", "0.9"))

    def names(*folders: Path) -> list[str]:
        found = as_json(capsys, "compare", *folders)
        return [found["baseline"]["name"], *(each["name"] for each in found["rivals"])]

    assert names(two, one) == ["two", "one"]
    assert names(new, one) == ["torch", "liger"]
    assert names(new, old) == ["liger 0.9", "liger 0.8"]
    assert names(tmp_path / "x" / ".." / "one", two) == ["one", "two"]


def test_collectives_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = "message_bytes,num_devices,dtype,topology_tier,Duration(us)\n"
    for name, us in (("one", 100), ("two", 50)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hcom_allReduce_.csv").write_text(f"{header}1048576,2,DT_BF16,1,{us}\n")
    found = as_json(capsys, "compare", tmp_path / "one", tmp_path / "two", "--ops", "All_Reduce")
    assert found["rivals"][0]["all"]["covered"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("BASE --baseline flashinfre", "flashinfer"),
        ("BASE --ops SwiGul", "SwiGlu"),
        ("ALONE", "--implementation"),
        ("BASE BASE", "BASE"),
        ("NONE", "NONE"),
        ("BASE NONE", "NONE"),
        *((f"BASE --fail-slower={percent}", repr(percent)) for percent in ("-1%", "x", "nan", "%")),
    ],
)
def test_refusals(base: Path, tmp_path: Path, arguments: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    alone = write_tables(tmp_path / "alone", {"Sort": [measured(1, 2)]})
    places = {"BASE": str(base), "ALONE": str(alone), "NONE": str(tmp_path / "none")}
    status, out, err = run(capsys, "compare", *(places.get(word, word) for word in arguments.split()))
    assert (status, out) == (2, "")
    assert places.get(named, named) in err


def test_no_link_is_followed_to_an_implementation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"Sort": [measured(1, 2)]}
    one, other = (write_tables(tmp_path / name, rows) for name in ("one", "other"))
    for link, to in ((one / "implementations", tmp_path), (other / "implementations" / "liger-0.8", one)):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(to)
    assert run(capsys, "compare", one)[0] == 2
    assert run(capsys, "compare", other)[0] == 2


def test_a_file_that_cannot_be_read_costs_itself(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = base / "implementations" / "flashinfer-0.5.3" / "SwiGlu.csv"
    damaged.write_text("")
    status, out, err = run(capsys, "compare", base)
    assert status == 1
    assert str(damaged) in err
    assert "AddRmsNorm" in out
