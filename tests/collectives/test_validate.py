"""The analytic model, and the command that compares folders of hcom_*.csv with it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opatlas.cli.main import main
from opatlas.collectives.validate import A3, Link, duration_us
from opatlas.model.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVES,
    REDUCE_SCATTER,
    Collective,
)

#: op, devices, message bytes and microseconds of data/a3_comm_bench_vs_profiler.csv: the captured column.
A3_CAPTURES = [
    (ALL_GATHER, 16, 1_300_000, 182.5),
    (ALL_GATHER, 16, 3_800_000, 366.6),
    (ALL_GATHER, 16, 8_800_000, 722.4),
    (ALL_GATHER, 16, 40_000_000, 3141.1),
    (REDUCE_SCATTER, 16, 1_300_000, 221.2),
    (REDUCE_SCATTER, 16, 8_800_000, 887.2),
    (REDUCE_SCATTER, 16, 40_000_000, 3795.8),
    (ALL_GATHER, 8, 3_500_000, 172.0),
    (REDUCE_SCATTER, 8, 3_500_000, 197.9),
]


def write(folder: Path, collective: Collective, rows: list[dict[str, object]]) -> Path:
    path = folder / f"{collective.kernel_type}.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(message_bytes: int, duration_us: float, devices: int = 16, **more: object) -> dict[str, object]:
    return {"message_bytes": message_bytes, "num_devices": devices, "Duration(us)": duration_us, **more}


def test_the_formulas_by_hand() -> None:
    link = Link(100.0, 2.0, efficiency=0.5)  # 50 kB/us
    # 8 devices, 400 kB: a ring is 28 us and 14 us of data, a tree 12 us and 16 us.
    assert duration_us(ALL_REDUCE, 400_000, 8, link) == pytest.approx(28.0)
    # 400 MB: the ring moves less.
    assert duration_us(ALL_REDUCE, 400_000_000, 8, link) == pytest.approx(28 + 14_000)
    assert duration_us(ALL_GATHER, 50_000, 8, link) == duration_us(REDUCE_SCATTER, 50_000, 8, link)
    assert duration_us(ALL_GATHER, 50_000, 8, link) == pytest.approx(3 * 2 + 7)
    assert duration_us(ALL_TO_ALL, 50_000, 8, link) == pytest.approx(3 * 2 + 1)
    # A tree sends 50 kB three times; 50 MB are scattered and gathered.
    assert duration_us(BROADCAST, 50_000, 8, link) == pytest.approx(3 * (2 + 1))
    assert duration_us(BROADCAST, 50_000_000, 8, link) == pytest.approx((3 + 7) * 2 + 2 * 7 / 8 * 1000)


@given(st.sampled_from(COLLECTIVES), st.integers(1, 1 << 30), st.integers(2, 512), st.sampled_from(sorted(A3)))
def test_no_duration_beats_the_link(collective: Collective, size: int, devices: int, tier: int) -> None:
    modelled_us = duration_us(collective, size, devices, A3[tier])
    assert modelled_us > 0
    # all_to_all's model counts what stays with its own device too.
    assert collective.bus_bandwidth_gbps(size, devices, modelled_us) <= A3[tier].bandwidth_gbps * A3[tier].efficiency
    assert duration_us(collective, size + 1, devices, A3[tier]) >= modelled_us


def test_an_a3_is_within_a_factor_of_two_of_the_model(tmp_path: Path, capsys) -> None:
    for collective in (ALL_GATHER, REDUCE_SCATTER):
        write(tmp_path, collective, [row(m, us, n) for op, n, m, us in A3_CAPTURES if op is collective])
    assert main(["validate-comm", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "hcom_allGather_: 5 of 5 rows within a factor of 2" in shown
    assert "all within" in shown


def test_what_is_off_is_shown_worst_first_and_fails(tmp_path: Path, capsys) -> None:
    slow, slower = (duration_us(ALL_GATHER, m, 16, A3[1]) * factor for m, factor in ((1 << 20, 3.0), (1 << 21, 9.0)))
    write(tmp_path, ALL_GATHER, [row(1 << 20, slow), row(1 << 21, slower)])
    assert main(["validate-comm", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "0 of 2 rows within a factor of 2; measured / modelled: min 3.00, median 6.00, max 9.00" in lines[1]
    assert lines[0] == "model: tier 1: 196 GB/s, 0.5 us, 70% (Atlas 800 A3)"
    assert [line.split()[-1] for line in lines[4:]] == ["9.00", "3.00"]
    assert main(["validate-comm", str(tmp_path), "--tolerance", "10"]) == 0
    assert main(["validate-comm", str(tmp_path), "--tolerance", "10", "--min-bytes", str(1 << 22)]) == 1
    shown = capsys.readouterr().out
    assert "no row to compare, 2 too small" in shown
    assert f"error: {tmp_path}: no row to compare" in shown


def test_rows_of_another_device_are_not_compared_with_the_links_of_an_a3(tmp_path: Path, capsys) -> None:
    folder, other = tmp_path / "AMD_EPYC" / "gloo" / "2.13.0", tmp_path / "ATLAS_800_A3_752T_128G_DIE" / "hccl" / "v8.5"
    for each in (folder, other):
        each.mkdir(parents=True)
        write(each, ALL_REDUCE, [row(1 << 20, 1000.0, 2, topology_tier=1)])
    assert main(["validate-comm", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "AMD_EPYC" in said
    assert "--link 1:GBPS:US" in said
    assert "within a factor" not in said
    main(["validate-comm", str(folder), "--link", "1:2:50", "--efficiency", "1"])
    assert capsys.readouterr().out.splitlines()[0] == "model: tier 1: 2 GB/s, 50 us, 100%"
    main(["validate-comm", str(other)])
    assert capsys.readouterr().out.splitlines()[0] == "model: tier 1: 196 GB/s, 0.5 us, 70% (Atlas 800 A3)"


@pytest.mark.parametrize("column", ["Duration(us)", "Average Duration(us)", "Profiling Average Duration(us)"])
def test_files_of_other_tools(tmp_path: Path, capsys, column: str) -> None:
    """With a duration column of another name, no dtype, no tier, and numbers as pandas writes them."""
    own = duration_us(ALL_TO_ALL, 1 << 20, 2, A3[2])
    rows = [{"message_bytes": "1048576.0", "num_devices": 2, column: own}, {"num_devices": 2, column: ""}]
    write(tmp_path, ALL_TO_ALL, rows)
    assert main(["validate-comm", str(tmp_path)]) == 0
    assert "1 of 1 rows within a factor of 2; measured / modelled: min 1.00, median 1.00, max 1.00, 1 without a" in (
        capsys.readouterr().out
    )


def test_links_and_efficiency_are_taken(tmp_path: Path, capsys) -> None:
    own = duration_us(ALL_REDUCE, 1 << 28, 2, Link(450.0, 10.0, efficiency=0.9))
    write(tmp_path, ALL_REDUCE, [row(1 << 28, own, 2, topology_tier=1)])
    options = ["--link", "1:450:10", "--efficiency", "0.9", "--tolerance", "1.0001"]
    assert main(["validate-comm", str(tmp_path), *options]) == 0
    assert main(["validate-comm", str(tmp_path), "--tolerance", "1.0001"]) == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"message_bytes": 8, "num_devices": 2}], ":1: no column of durations"),
        ([{"message_bytes": "x", "num_devices": 2, "Duration(us)": 1}], ":2: column 'message_bytes' = 'x' is no whole"),
        ([{"message_bytes": 8, "num_devices": 1, "Duration(us)": 1}], "'num_devices' = '1' is no whole number of at"),
        (
            [row(8, 1.0, topology_tier=7)],
            "column 'topology_tier' = 7: no such tier. There are 0 inter_pod, 1 intra_pod",
        ),
        ([row(8, 1.0, devices=1000)], "the grid 48 x 8 x 2 has 768 devices, and 1000 are needed"),
        ([{"message_bytes": 8, "Duration(us)": 1}], "no column 'num_devices'"),
    ],
)
def test_what_cannot_be_read_is_told_and_fails(tmp_path: Path, capsys, rows: list, words: str) -> None:
    write(tmp_path, ALL_REDUCE, rows)
    assert main(["validate-comm", str(tmp_path)]) == 1
    assert words in capsys.readouterr().out


def test_rows_that_cannot_be_compared_are_named_and_the_others_are_compared(tmp_path: Path, capsys) -> None:
    own = duration_us(ALL_REDUCE, 1 << 20, 16, A3[1])
    good = row(1 << 20, own, topology_tier=1)
    bad = [{**good, "num_devices": 1}, {**good, "message_bytes": "1e6"}, {**good, "Duration(us)": "abc"}]
    path = write(tmp_path, ALL_REDUCE, [good, *bad, good, {**good, "Duration(us)": ""}])
    assert main(["validate-comm", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "2 of 2 rows within a factor of 2" in shown
    for line, column, value in ((3, "num_devices", "1"), (4, "message_bytes", "1e6"), (5, "Duration(us)", "abc")):
        assert f"error: {path}:{line}: column {column!r} = {value!r}" in shown
    assert "no row to compare" not in shown
    write(tmp_path, ALL_REDUCE, bad)
    assert main(["validate-comm", str(tmp_path)]) == 1
    assert f"error: {tmp_path}: no row to compare" not in capsys.readouterr().out


def test_a_folder_without_any(tmp_path: Path, capsys) -> None:
    assert main(["validate-comm", str(tmp_path)]) == 1
    assert "holds none of hcom_allReduce_.csv" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option",
    [
        ["--tolerance", "0.5"],
        ["--link", "1:0:1"],
        ["--link", "5:100:1"],
        ["--min-bytes", "-1"],
        ["--link", "nonsense"],
        ["--efficiency", "2"],
    ],
)
def test_wrong_usage(tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["validate-comm", str(tmp_path), *option])
    assert ended.value.code == 2
