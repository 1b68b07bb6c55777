"""The checks of `opatlas check`: a planted defect is found with its line, and a clean row passes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from captures import launched, write_capture
from checked import RUN, check_named, findings, message, product, write_database, write_manifest
from hypothesis import given, strategies as st
from sessions import row

from opatlas.ask.checks import CHECKS, duration_checks
from opatlas.ask.checks.check import KNOWN_FINDINGS, CheckedDatabase, CheckResults, Finding, read_known, split_findings
from opatlas.ask.checks.duration_checks import alignments, families, model_us, shortest_us
from opatlas.cli.main import main
from opatlas.data.cells import microseconds
from opatlas.errors import OpAtlasError
from opatlas.files import UnsafePath
from opatlas.row.columns import (
    AVERAGE,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    NUM_DEVICES,
    PROFILING_AVERAGE,
    QUALITY,
    QUALITY_REASON,
    RUN_ID,
    STAND_IN,
    STATUS,
    STATUS_REASON,
    TOPOLOGY_TIER,
)
from opatlas.row.communication import COLLECTIVES, Collective
from opatlas.row.quality import judge, summarize, typical_mean
from opatlas.row.roofline import PEAKS, Link

OTHER_RUN = "20261122T010000-bbbbbb"
A3, H200 = PEAKS["ATLAS_800_A3_752T_128G_DIE"].links[1], PEAKS["NVIDIA_H200"].links[1]
UNMEASURED = {AVERAGE: "", MICROBENCH_MEDIAN: ""}
#: As cuBLAS has them on an H200.
SPIKE = [(219, 25.648), (353, 62.416), (438, 38.704)]


def database_of(folder: Path, rows: Sequence[dict[str, str]], kernel_type: str = "MatMulV2") -> CheckedDatabase:
    return CheckedDatabase(write_database(folder, {kernel_type: list(rows)}))


def found_in(folder: Path, check: str, *changes: dict[str, str]) -> list[str]:
    """What a check finds in a clean row and in changed ones, as `{line}: {value}`."""
    rows = [product(1, 9.0), *({**product(2 + i, 9.0), **change} for i, change in enumerate(changes))]
    return [f"{finding.line}: {finding.value}" for finding in findings(check, database_of(folder, rows))]


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_a_clean_table_passes(tmp_path: Path, check: str) -> None:
    tables = {"MatMulV2": [product(m, 9.0 + m) for m in (1, 2, 3)], "hcom_allReduce_": [message(1024, 9.0)]}
    assert not findings(check, CheckedDatabase(write_database(tmp_path, tables)))


@pytest.mark.parametrize(
    ("check", "change", "value"),
    [
        *(
            ("impossible", change, value)
            for change, value in [
                ({MICROBENCH_SAMPLES: "1"}, "MicroBench Std Duration(us) 0.1, MicroBench Samples 1"),
                ({MICROBENCH_MIN: "9.5"}, "MicroBench Min Duration(us) 9.5, MicroBench Median Duration(us) 9.0"),
                ({MICROBENCH_MEDIAN: "9.2"}, "MicroBench Median Duration(us) 9.2, MicroBench Std Duration(us) 0.1"),
                ({MICROBENCH_MIN: "5"}, "MicroBench Min Duration(us) 5, MicroBench Std Duration(us) 0.1"),
                ({AVERAGE: "-9"}, "Average Duration(us) -9"),
                ({AVERAGE: "fast"}, "Average Duration(us) fast"),
                ({MICROBENCH_SAMPLES: "0"}, "MicroBench Samples 0"),
                ({MICROBENCH_STD: "inf"}, "MicroBench Std Duration(us) inf"),
            ]
        ),
        ("statuses", {STATUS: "failed"}, "failed"),
        ("statuses", {STATUS: "perhaps"}, "perhaps"),
        ("statuses", {STATUS: "measured", **UNMEASURED}, "measured"),
        ("statuses", {STATUS: "failed", STATUS_REASON: "wrong result", **UNMEASURED}, ""),
        ("statuses", {STATUS: "", **UNMEASURED}, ""),
        ("origins", {RUN_ID: ""}, "9 us"),
        ("origins", {RUN_ID: OTHER_RUN}, "9 us"),
        ("origins", {RUN_ID: RUN}, ""),
        ("noisy", {MICROBENCH_STD: "1.0"}, "9 us"),
        *(("noisy", {QUALITY: word}, "9 us") for word in ("drifting", "bimodal", "noisy", "throttled")),
        # The quality of the samples counts before their deviation; compositions are not noisy.
        *(("noisy", {MICROBENCH_STD: "1.0", QUALITY: word}, "") for word in ("quiet", "unknown", "composition")),
        ("noisy", {MICROBENCH_STD: "1.0", QUALITY: "noisy", STAND_IN: "composition of 4"}, ""),
    ],
)
def test_a_planted_cell_is_found(tmp_path: Path, check: str, change: dict[str, str], value: str) -> None:
    found = found_in(tmp_path, check, change)
    assert f"3: {value}" in found if value else not found


@given(st.lists(st.floats(0.5, 1e6), min_size=1, max_size=30))
def test_the_statistics_of_any_samples_are_possible(samples: list[float]) -> None:
    summary, verdict = summarize(samples), judge(samples)
    change = {
        AVERAGE: microseconds(typical_mean(samples)),
        QUALITY_REASON: verdict.reason,
        MICROBENCH_MEDIAN: microseconds(summary.median_us),
        MICROBENCH_MIN: microseconds(summary.min_us),
        MICROBENCH_STD: microseconds(summary.std_us) if summary.count > 1 else "",
        MICROBENCH_SAMPLES: str(summary.count),
    }
    with tempfile.TemporaryDirectory() as folder:
        assert not found_in(Path(folder), "impossible", change)


def test_a_row_that_stands_twice_is_found_with_the_line_of_the_first(tmp_path: Path) -> None:
    rows = [product(1, 9.0), product(2, 9.0), product(1, 12.0)]
    (finding,) = findings("duplicates", database_of(tmp_path, rows))
    assert (finding.line, finding.weight) == (4, pytest.approx(12 / 9))
    assert all(of_first in finding.reason for of_first in ("line 2", "9 us"))


def test_noise_has_its_spread_as_weight(tmp_path: Path) -> None:
    (finding,) = findings("noisy", database_of(tmp_path / "a", [message(1024, 9.0, std=2.0)], "hcom_allReduce_"))
    assert finding.weight == pytest.approx(2 / 9)
    rows = [{**product(1, 9.0), MICROBENCH_STD: "", QUALITY: "noisy"}]
    assert [each.weight for each in findings("noisy", database_of(tmp_path / "b", rows))] == [0.0]


@pytest.mark.parametrize(
    ("facts", "value"),
    [
        ({}, ""),
        ({"name": "NVIDIA_H100_80GB_HBM3"}, "NVIDIA_H100_80GB_HBM3"),
        ({"driver": "570.9"}, "570.9"),
        ({"cuda": "12.8"}, "12.8"),
    ],
)
def test_a_run_on_another_device_or_software_is_found(tmp_path: Path, facts: dict[str, str], value: str) -> None:
    rows = [product(m, 9.0) for m in (1, 2, 3)] + [{**product(4, 9.0), RUN_ID: OTHER_RUN}]
    common = {"driver": "580.1"}
    write_database(tmp_path, {"MatMulV2": rows}, name="NVIDIA_H200", **common)
    write_manifest(tmp_path, OTHER_RUN, **{**common, **facts})
    found = findings("mixed", CheckedDatabase(tmp_path))
    file = str(tmp_path / "runs" / f"{OTHER_RUN}.json")
    assert [(each.row, each.file) for each in found] == ([(OTHER_RUN, file)] if value else [])
    assert all(value in each.value for each in found)


def test_files_that_cannot_be_read_are_found_and_the_others_are_checked(tmp_path: Path) -> None:
    write_database(tmp_path, {"MatMulV2": [product(1, 9.0)]})
    (tmp_path / "Add.csv").write_text("no,such,header\n1,2\n")
    (tmp_path / "runs" / "damaged.json").write_text("{")
    database = CheckedDatabase(tmp_path)
    found = sorted(finding.file for finding in findings("unreadable", database))
    assert found == [str(tmp_path / "Add.csv"), str(tmp_path / "runs")]
    assert list(database.tables) == ["MatMulV2"]


@pytest.mark.parametrize("shift", [0.0, 20.0])
def test_a_captured_signature_with_two_populations_is_found(tmp_path: Path, shift: float) -> None:
    durations = [us + far for us in (10.0, 10.1, 9.9, 10.05, 9.95, 10.2) for far in (0.0, shift)]
    path = write_capture(tmp_path / "kernel_details.csv", [launched("Add", us, row(4)) for us in durations])
    assert main(["ingest", "--profiling-path", str(path), "--database-path", str(tmp_path / "DB")]) == 0
    found = [finding.place for finding in findings("captures", CheckedDatabase(tmp_path / "DB"))]
    assert found == (["Add.csv:2"] if shift else [])


def products(*durations: tuple[int, float], std: float = 0.1) -> list[dict[str, str]]:
    return [product(m, us, std) for m, us in durations]


@pytest.mark.parametrize(
    ("check", "rows", "lines"),
    [
        ("monotone", products(*SPIKE), [3]),
        ("monotone", products(*SPIKE, std=10.0), []),
        # 40 us is more than 1.25 times 30 us; a row of unknown noise counts as noisy.
        ("monotone", products((1, 40.0), (2, 30.0)), [2]),
        ("monotone", [{**each, MICROBENCH_STD: ""} for each in products((1, 40.0), (2, 30.0))], []),
        # Only rows that were taken alike, and have the same weights, are compared.
        ("monotone", [product(353, 62.4), product(438, 38.7, Cache_State="warm")], []),
        ("monotone", [product(353, 62.4), product(438, 38.7, Instrument="kineto")], []),
        ("monotone", [product(353, 62.4, n=2048), product(438, 38.7)], []),
        ("monotone", [product(353, 62.4, Step="Qwen/Qwen3-8B,batch=353"), product(438, 38.7, Step="other")], []),
        # 2 x 4096 x 512 x 1024 operations take 4.3 us at 989.5 TFLOP/s.
        ("below-roofline", products((4096, 1.0)), [2]),
        ("below-roofline", products((4096, 6.0)), []),
        # The weights of 16384 x 8192 BF16 are 268 MB: a cold row reads them in 56 us at 4.8 TB/s.
        ("below-roofline", [product(1, 20.0, k=8192, n=16384)], [2]),
        ("below-roofline", [product(1, 20.0, k=8192, n=16384, Cache_State="warm")], []),
    ],
)
def test_durations_against_their_neighbours_and_the_peaks(
    tmp_path: Path, check: str, rows: list[dict[str, str]], lines: list[int]
) -> None:
    assert [finding.line for finding in findings(check, database_of(tmp_path, rows))] == lines


def test_a_row_names_the_faster_one_with_a_larger_m(tmp_path: Path) -> None:
    (finding,) = findings("monotone", database_of(tmp_path, products(*SPIKE)))
    assert (finding.place, finding.row, finding.value) == ("MatMulV2.csv:3", "353,512;1024,512", "62.42 us")
    assert "38.7 us of M 438" in finding.reason
    messages = [message(size, us) for size, us in ((1024, 5.0), (2048, 20.0), (4096, 7.0))]
    (finding,) = findings("monotone", database_of(tmp_path / "messages", messages, "hcom_allReduce_"))
    assert (finding.row, finding.line) == ("2048 bytes, 2 devices, DT_BF16, tier 1", 3)


def test_a_row_whose_m_equals_a_dimension_of_the_weights_is_compared(tmp_path: Path) -> None:
    database = database_of(tmp_path, products((512, 10.0), (1024, 20.0), (2048, 40.0)))
    (family,) = families(database, database.tables["MatMulV2"])
    assert list(family.m) == [512, 1024, 2048]


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1.0, 1e6)), min_size=1, max_size=12))
def test_durations_that_grow_with_m_have_no_findings(pairs: list[tuple[int, float]]) -> None:
    durations = zip(sorted({m for m, _ in pairs}), sorted(us for _, us in pairs), strict=False)
    with tempfile.TemporaryDirectory() as folder:
        database = database_of(Path(folder), products(*durations, std=0.0))
        assert not findings("monotone", database)


def test_without_known_peaks_the_roofline_is_not_checked(tmp_path: Path) -> None:
    write_database(tmp_path, {"MatMulV2": [product(4096, 1.0)]}, name="Some_CPU")
    database = CheckedDatabase(tmp_path)
    assert not findings("below-roofline", database)
    assert "Some_CPU" in check_named("below-roofline").skipped(database)


def collective(size: int, devices: int, tier: int, us: float, captured: str = "") -> dict[str, str]:
    cells = {NUM_DEVICES: str(devices), TOPOLOGY_TIER: str(tier), PROFILING_AVERAGE: captured}
    return {**message(size, us), **cells}


def a3(folder: Path, *rows: dict[str, str], kernel_type: str = "hcom_allReduce_") -> CheckedDatabase:
    name = "ATLAS_800_A3_752T_128G_DIE"
    return CheckedDatabase(write_database(folder, {kernel_type: list(rows)}, name=name))


def test_a_message_that_no_link_carries_is_found_and_its_neighbour_is_not(tmp_path: Path) -> None:
    # 256 MiB over 16 dies take 2,568 us at 196 GB/s, and would need 2.5 TB/s.
    sizes = ((64, 1010.0), (256, 202.0), (512, 8080.0))
    database = a3(tmp_path, *(collective(size << 20, 16, 1, us) for size, us in sizes))
    (finding,) = findings("links", database)
    assert (finding.line, finding.value) == (3, "202 us")
    assert all(told in finding.reason for told in ("2,492 GB/s", "196 GB/s"))
    assert not [*findings("monotone", database), *findings("link-model", database)]


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        # Measured, and captured by a profiler, on an A3.
        (collective(40_000_000, 16, 1, 3080.2, "3141.1"), "PASS"),
        (collective(1_300_000, 16, 1, 176.7, "182.5"), "PASS"),
        (collective(768_000, 8, 1, 186.4, "75.4"), "WARN"),
        (collective(74_000, 16, 1, 12.5, "25.9"), "WARN"),
        (collective(1_024, 8, 1, 5.4), "PASS"),
        (collective(40_000_000, 16, 1, 2500.0), "FAIL"),
        (collective(40_000_000, 16, 3, 2500.0), "not run"),
        (collective(40_000_000, 1, 1, 2500.0), "not run"),
    ],
)
def test_a_message_against_the_model_of_its_links(tmp_path: Path, row: dict[str, str], verdict: str) -> None:
    database = a3(tmp_path, row, kernel_type="hcom_allGather_")
    (aligned,) = alignments(database, database.tables["hcom_allGather_"])
    assert aligned.verdict == verdict
    assert (aligned.model_us is None) == (verdict == "not run")
    assert len(findings("links", database)) == (verdict == "FAIL")
    assert len(findings("link-model", database)) == (verdict == "WARN")


@given(st.sampled_from(COLLECTIVES), st.integers(1, 1 << 32), st.integers(2, 1024), st.sampled_from([A3, H200]))
def test_a_model_is_never_faster_than_the_links(kind: Collective, size: int, devices: int, link: Link) -> None:
    assert model_us(kind, size, devices, link) > shortest_us(kind, size, devices, link) > 0
    assert model_us(kind, 2 * size, devices, link) >= model_us(kind, size, devices, link)


def test_the_model_of_each_message_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = a3(tmp_path, *(collective(size << 20, 16, 1, 9000.0) for size in range(1, 4)))
    model = Mock(side_effect=model_us)
    monkeypatch.setattr(duration_checks, "model_us", model)
    for name in ("links", "link-model", "below-roofline", "monotone"):
        findings(name, database)
    assert model.call_count == 3


def test_messages_are_not_compared_with_links_that_nobody_knows(tmp_path: Path) -> None:
    write_database(tmp_path, {"hcom_allReduce_": [message(1 << 20, 1.0)]}, name="Some_CPU")
    database = CheckedDatabase(tmp_path)
    assert all("Some_CPU" in check_named(name).skipped(database) for name in ("links", "link-model"))
    assert check_named("below-roofline").skipped(database)


ENTRY = """
- checks: [noisy, monotone]
  kernel_type: MatMul*
  row: "353,*"
  date: 2026-11-22
  reason: a slow kernel
"""


def finding(row: str, kernel_type: str = "MatMulV2", weight: float = 1.0) -> Finding:
    return Finding(f"{kernel_type}.csv", 2, kernel_type, row, "1 us", "", weight)


def write_known(folder: Path, text: str) -> Path:
    (folder / KNOWN_FINDINGS).write_text(text)
    return folder


def test_an_entry_covers_what_its_patterns_match_and_at_most_so_many(tmp_path: Path) -> None:
    assert read_known(tmp_path, CHECKS) == []
    entries = read_known(write_known(tmp_path, ENTRY), CHECKS)
    found = [finding("353,5120;6400,5120"), finding("354,5120;6400,5120"), finding("353,5120", "Add")]
    sorted_out = split_findings(check_named("monotone"), found, entries)
    assert [known.row for known, _ in sorted_out.known] == ["353,5120;6400,5120"]
    assert len(sorted_out.new) == 2
    assert not split_findings(check_named("mixed"), found, entries).known
    few = read_known(write_known(tmp_path, ENTRY + "  most: 2\n"), CHECKS)
    found = [finding("353,1", weight=weight) for weight in (9.0, 3.0, 2.0)]
    sorted_out = split_findings(check_named("monotone"), found, few)
    assert [each.weight for each in sorted_out.new] == [9.0]
    assert [known.weight for known, _ in sorted_out.known] == [3.0, 2.0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- check: monotone\n  date: 2026-11-22\n  reason: x\n", "check"),
        (ENTRY.replace("noisy,", "nosy,"), "noisy"),
        (ENTRY.replace("2026-11-22", "soon"), "date"),
        (ENTRY.replace("a slow kernel", "''"), "reason"),
        (ENTRY + "  most: 0\n", "most"),
        (ENTRY + "  date: 2026-11-23\n", "date"),
        ("known: yes\n", KNOWN_FINDINGS),
        ("- [", KNOWN_FINDINGS),
    ],
)
def test_known_findings_that_mean_nothing_are_refused_with_their_place(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(OpAtlasError, match=named) as refused:
        read_known(write_known(tmp_path, text), CHECKS)
    assert KNOWN_FINDINGS in str(refused.value)


def test_an_entry_is_judged_where_all_cases_of_its_checks_ran(tmp_path: Path) -> None:
    database = database_of(tmp_path, products(*SPIKE))
    results = CheckResults(database, read_known(write_known(tmp_path, ENTRY.replace("MatMul*", "Add")), CHECKS), CHECKS)
    results.strict = True
    for name, new, unused in (("noisy", 0, 0), ("monotone", 1, 1)):
        found, fails = results.run(check_named(name), "MatMulV2")
        assert (len(found.new), len(fails)) == (new, new)
        assert len(results.unused_entries()) == unused


def test_known_findings_outside_of_the_database_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text(ENTRY)
    folder = tmp_path / "DB"
    folder.mkdir()
    (folder / KNOWN_FINDINGS).symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(UnsafePath):
        read_known(folder, CHECKS)
