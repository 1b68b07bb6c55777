"""Each rule on a launch that is planted for it, and on one just outside its limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from opatlas.ask.query.features import kernel_work
from opatlas.cli.main import main
from opatlas.outer.diagnosis.diagnosis import diagnose
from opatlas.outer.diagnosis.peaks import known_peaks
from opatlas.outer.diagnosis.verdicts import LANGUAGES, KernelVerdict, verdict_rules
from tests.ask.tables import product_rows, write_table
from tests.outer.planted import OTHER_COUNTERS, PIPES, capture, kernel

#: 40 vector cores and 20 cube cores, by the largest Block Dim.
_FULL = [kernel(), kernel(core="AI_CORE", blocks="20", aic_mac_ratio="0.5")]


def first_of(folder: Path, launch: Mapping[str, str], peaks: str = "") -> KernelVerdict | str:
    """Returns the verdict to act on of a launch next to two of which no rule holds."""
    found = diagnose(capture(folder, [*_FULL, launch], (*PIPES, *OTHER_COUNTERS)), known_peaks(peaks))
    return found.verdicts.first[2]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("verdict", "inside", "outside"),
    [
        ("AICPU", {"us": 20.0, "core": "AI_CPU"}, {"us": 19.9, "core": "AI_CPU"}),
        ("not enough work", {"blocks": "39"}, {"blocks": "80"}),
        ("not enough work", {"blocks": "100"}, {"blocks": "40"}),
        ("not enough work", {"core": "AI_CORE", "blocks": "19"}, {"core": "AI_CORE", "blocks": "20"}),
        (
            "not enough work",
            {"core": "MIX_AIC", "blocks": "10", "mix_blocks": "20"},
            {"core": "MIX_AIC", "blocks": "10", "mix_blocks": "40"},
        ),
        ("bank conflict", {"aiv_vec_bank_cflt_ratio": "0.05"}, {"aiv_vec_bank_cflt_ratio": "0.04"}),
        ("bank conflict", {"aiv_vec_bankgroup_cflt_ratio": "0.05"}, {"aiv_vec_bankgroup_cflt_ratio": "0.04"}),
        ("memory bound", {"aiv_mte2_ratio": "0.81"}, {"aiv_mte2_ratio": "0.8"}),
        ("memory bound", {"aic_mte2_ratio": "0.9", "aic_mac_ratio": "0.9"}, {"aic_mte2_ratio": "0.7"}),
        ("store bound", {"aiv_mte3_ratio": "0.81"}, {"aiv_mte3_ratio": "0.8"}),
        ("store bound", {"aic_fixpipe_ratio": "0.81"}, {"aic_fixpipe_ratio": "0.8"}),
        ("scalar bound", {"aiv_scalar_ratio": "0.81"}, {"aiv_scalar_ratio": "0.8"}),
        ("compute bound", {"aic_mac_ratio": "0.9", "aic_mte2_ratio": "0.85"}, {"aic_mac_ratio": "0.8"}),
        ("compute bound", {"aiv_vec_ratio": "0.81"}, {"aiv_vec_ratio": "0.8"}),
        ("bound by nothing", {"us": 20.1}, {"us": 20.0}),
        ("low vector utilization", {"us": 30, "aiv_vec_ratio": "0.49"}, {"us": 30, "aiv_vec_ratio": "0.5"}),
        ("low vector utilization", {"us": 30, "aiv_vec_ratio": "0.4"}, {"us": 20, "aiv_vec_ratio": "0.4"}),
        (
            "low vector utilization",
            {"us": 30, "aiv_vec_ratio": "0", "core": "MIX_AIC", "blocks": "20"},
            {"us": 30, "aiv_vec_ratio": "0", "core": "AI_CORE", "blocks": "20"},
        ),
        (
            "low vector utilization",
            {"us": 30, "aiv_vec_ratio": "0.35", "aic_mac_ratio": "0.49", "core": "MIX_AIC", "blocks": "20"},
            {"us": 30, "aiv_vec_ratio": "0.35", "aic_mac_ratio": "0.5", "core": "MIX_AIC", "blocks": "20"},
        ),
        (
            "control flow",
            {"us": 30, "aiv_vec_ratio": "0.1", "aiv_scalar_ratio": "0.55"},
            {"us": 30, "aiv_vec_ratio": "0.1", "aiv_scalar_ratio": "0.5"},
        ),
        (
            "control flow",
            {"us": 1, "blocks": "1", "kernel_type": "LogicalAnd", "Input Shapes": '"1;1"', "Output Shapes": "1"},
            {"us": 1, "blocks": "1", "kernel_type": "LogicalAnd", "Input Shapes": '"1;2"', "Output Shapes": "2"},
        ),
        ("data layout", {"kernel_type": "TransposeD", "us": 2}, {"kernel_type": "TransposeD", "us": 1}),
        # What need not run need not run better.
        (
            "data layout",
            {"kernel_type": "Transpose", "us": 300, "aiv_vec_ratio": "0.1", "aiv_mte2_ratio": "0.9"},
            {"kernel_type": "Mul", "us": 300, "aiv_vec_ratio": "0.1", "aiv_mte2_ratio": "0.9"},
        ),
        ("host-bound", {"wait": "11"}, {"wait": "10"}),
    ],
)  # fmt: skip
def test_a_rule_holds_beyond_its_limit_only(
    verdict: str, inside: dict[str, str], outside: dict[str, str], tmp_path: Path
) -> None:
    assert first_of(tmp_path, kernel(**inside)) == verdict  # type: ignore[arg-type]
    assert first_of(tmp_path, kernel(**outside)) != verdict  # type: ignore[arg-type]


def test_waits_are_the_hosts_only_where_they_take_a_share_of_the_time(tmp_path: Path) -> None:
    long = kernel(us=10_000.0, aiv_mte2_ratio="0.9")
    found = diagnose(capture(tmp_path, [kernel(wait="11"), long]))
    assert not found.verdicts.holds[KernelVerdict.HOST_BOUND].any()
    assert found.verdicts.long_waits.sum() == 1


def test_a_slow_clock_is_that_of_the_whole_capture(tmp_path: Path) -> None:
    clocks = {"Rated Freq": "1800"}
    counters = (*PIPES, *OTHER_COUNTERS)
    slow = diagnose(capture(tmp_path, [kernel(**clocks, **{"Current Freq": "1700"})] * 2, counters))
    assert set(slow.verdicts.first) == {KernelVerdict.CLOCK}
    assert first_of(tmp_path, kernel(**clocks, **{"Current Freq": "1720"})) == ""


def test_l2_misses_decide_where_a_kernel_waits_for_memory(tmp_path: Path) -> None:
    hits = {"aiv_write_cache_hit": "49", "aiv_write_cache_miss_allocate": "51"}
    found = diagnose(capture(tmp_path, [kernel(**hits), kernel()], OTHER_COUNTERS))
    # A capture has one group of counters, and these have no ratios.
    assert found.verdicts.l2_hit_rate[0] == 0.49
    assert found.verdicts.first.tolist() == [KernelVerdict.L2_MISSES, ""]
    of_memory = kernel(**hits, aiv_mte2_ratio="0.9")
    assert first_of(tmp_path, of_memory) == KernelVerdict.L2_MISSES
    assert first_of(tmp_path, kernel(**{**hits, "aiv_write_cache_hit": "51"}, aiv_mte2_ratio="0.9")) == "memory bound"
    other = diagnose(capture(tmp_path, [*_FULL, kernel(**hits, aiv_vec_ratio="0.9")], (*PIPES, *OTHER_COUNTERS)))
    assert other.verdicts.first[2] == KernelVerdict.COMPUTE_BOUND
    assert other.counts[KernelVerdict.L2_MISSES] == 1


#: A product of 2 x 4096^3 operations: 388.4 us at 353.9 T/s, the BF16 peak of this device.
_DEVICE, _PEAK_US = "ATLAS_800_A2_376T_64G", 2 * 4096**3 / 353.9e6
_SQUARE = {"Input Shapes": '"4096,4096;4096,4096"', "Output Shapes": '"4096,4096"', "core": "AI_CORE", "blocks": "20"}


@pytest.mark.parametrize(
    ("of_peak", "verdict"),
    [(1.01, "above the roof"), (0.99, "at the roof"), (0.81, "at the roof"), (0.79, "below the roof")],
)
def test_the_roofline_of_a_product(of_peak: float, verdict: str, tmp_path: Path) -> None:
    launch = kernel(_PEAK_US / of_peak, "MatMulV3", **_SQUARE)
    path = capture(tmp_path, [launch], OTHER_COUNTERS)
    found = diagnose(path, known_peaks(_DEVICE))
    assert found.shares.share[0] == pytest.approx(of_peak)
    assert found.verdicts.first[0] == verdict
    (ranked,) = found.ranking
    assert ranked.lost_us == pytest.approx(max(_PEAK_US / of_peak - _PEAK_US, 0), abs=1e-6)
    assert diagnose(path).ranking[0].lost_us == pytest.approx(_PEAK_US / of_peak)
    assert not diagnose(path).ranking[0].lost_is_known


def test_rules_of_a_database_of_a_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    # 2 x 4096^3 operations are 138.9 us at 989.5 T/s.
    halves = [(4096, 4096, 4096), (8192, 2048, 4096), (2048, 8192, 4096), (8192, 4096, 2048), (4096, 8192, 2048)]
    rows = product_rows([*halves, (4096, 2048, 8192)], [150.0, 300.0, 300.0, 300.0, 100.0, 300.0])
    rows["MicroBench Device Kernels"] = ["2", "1", "2", "2", "1", "2"]
    rows["Kernel Names"] = ["memset + nvjet", "nvjet", "cast + nvjet", "memset + nvjet", "nvjet", "memset + nvjet"]
    rows["Span Median(us)"] = ["150", "300", "300", "361", "100", "359"]
    write_table(folder, "MatMulV2", rows)
    rows["Quality"] = "throttled"
    write_table(folder, "MatMulV3", rows.iloc[:1])
    found = diagnose(folder)
    roof = [
        KernelVerdict.AT_ROOF,
        *[KernelVerdict.BELOW_ROOF] * 2,
        KernelVerdict.HOST_BOUND,
        KernelVerdict.ABOVE_ROOF,
        KernelVerdict.BELOW_ROOF,
    ]
    assert [found.findings(line)[-1].rule.verdict for line in (0, 1, 2, 4, 5)] == [*roof[:3], *roof[4:]]
    firsts = found.verdicts.first.tolist()
    assert firsts == [roof[0], roof[1], "several kernels", roof[3], roof[4], roof[5], "clock"]
    assert found.verdicts.holds[KernelVerdict.HOST_BOUND].tolist() == [False] * 3 + [True] + [False] * 3
    assert found.ranking[0].lost_us == pytest.approx(300 - 2 * 4096**3 / 989.5e6)


#: A small product, a longer one, one of 12.6 ms, and one at the roof (138.9 us of 150 us).
_OF_GPU = [(8, 512, 512), (8, 512, 1024), (65536, 4096, 8192), (4096, 4096, 4096)]


@pytest.mark.parametrize(
    ("us", "verdicts"),
    [
        ([1.2, 2.4, 12_600.0, 150.0], ["latency bound", "latency bound", "below the roof", "at the roof"]),
        ([1.2, 2.5, 12_600.0, 150.0], ["latency bound", "below the roof", "below the roof", "at the roof"]),
        # No row is short enough to show the cost of a launch.
        ([11.0, 12.0, 12_600.0, 150.0], ["below the roof"] * 3 + ["at the roof"]),
    ],
)
def test_only_rows_near_the_shortest_one_are_bound_by_latency(
    us: list[float], verdicts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    write_table(folder, "MatMulV2", product_rows(_OF_GPU, us))
    assert main(["diagnose", str(folder), "--json"]) == 0
    ranking = json.loads(capsys.readouterr().out)["ranking"]
    assert {each["duration_us"]: each["verdict"] for each in ranking} == dict(zip(us, verdicts, strict=True))


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT + cublasLt::splitKreduce_kernel", "below the roof"),
        ("cutlass::Kernel + cutlass::reduction::kernel::ReduceSplitK", "below the roof"),
        ("pytorch_flash::flash_fwd_splitkv_kernel + pytorch_flash::flash_fwd_splitkv_combine_kernel", "below the roof"),
        ("flashinfer::BatchDecode + flashinfer::PersistentVariableLengthMergeStatesKernel", "below the roof"),
        ("at::native::elementwise_kernel + nvjet_sm90_tst_64x8", "several kernels"),
    ],
)
def test_a_librarys_own_parts_of_a_kernel_are_not_to_be_fused(names: str, verdict: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    rows = product_rows([(64, 4608, 7168)], [22.0])
    rows["MicroBench Device Kernels"], rows["Kernel Names"] = "2", names
    write_table(folder, "MatMulV2", rows)
    assert diagnose(folder).ranking[0].verdict == verdict


@pytest.mark.parametrize(
    ("cells", "moved", "operations"),
    [
        # Queries of 2 sequences read 3 + 5 keys of 1 head, and their values.
        ({"Input Shapes": "2,4,8;9,1,8;9,1,8"}, 2 * (8 * 16 + 2 * 4 * 16), 4 * 8 * 4 * 8),
        # Rotary parts of 2: the values are the keys without them.
        ({"Input Shapes": f"2,4,8;9,1,8;9,1,8{';' * 22}2,4,2"}, 2 * (8 * 10 + 2 * 4 * 18), 2 * 8 * 4 * 18),
        ({"Input Shapes": "2,4,8;9,1,8;9,1,8", "Runtime actual_seq_lengths_kv_values": ""}, None, None),
        ({"Input Shapes": "2,4,8;9,1,8;9,1,8", "Runtime input_layout": "BSH"}, None, None),
    ],
    ids=["keys and values", "latent", "no lengths", "another layout"],
)
def test_the_work_of_attention(cells: dict[str, str], moved: int | None, operations: int | None) -> None:
    row = {
        "Input Data Types": ";".join(["DT_BF16"] * 25),
        "Input Formats": ";".join(["ND"] * 25),
        "Runtime actual_seq_lengths_values": "1,2",
        "Runtime actual_seq_lengths_kv_values": "3,8",
        "Runtime num_key_value_heads": "1",
        "Runtime input_layout": "TND",
        **cells,
    }
    work = kernel_work("FusedInferAttentionScore", row)
    assert (work and work.moved_bytes, work and work.operations) == (moved, operations)


def test_collectives_are_neither_ranked_nor_judged(tmp_path: Path) -> None:
    for core in ("HCCL", "COMMUNICATION"):
        odd = kernel(us=900.0, core=core, blocks="1", wait="500", aiv_vec_bank_cflt_ratio="1", aiv_mte2_ratio="1")
        path = capture(tmp_path, [kernel(), odd], (*PIPES, *OTHER_COUNTERS))
        found = diagnose(path)
        assert (found.kernel_us, found.collective_us, len(found.ranking)) == (10.0, 900.0, 1)
        assert found.verdicts.first[1] == ""


def test_equal_launches_are_ranked_together_unless_their_verdicts_differ(tmp_path: Path) -> None:
    path = capture(tmp_path, [kernel(10), kernel(30), kernel(12), kernel(11, aiv_mte2_ratio="0.9")])
    ranking = diagnose(path).ranking
    assert [(each.launches, each.lost_us) for each in ranking] == [(1, 30), (2, 22), (1, 11)]
    assert ranking[1].line == 2


def test_the_bandwidth_of_counters_is_the_one_that_was_used(tmp_path: Path) -> None:
    counters = [f"ai{core}_main_mem_{way}_bw(GB/s)" for core in "cv" for way in ("read", "write")]
    read, write = counters[2:]
    found = diagnose(capture(tmp_path, [kernel(**{read: "60", write: "25"})], (*PIPES, *counters)))
    assert found.ideals(0)["memory bandwidth used (GB/s)"][0] == 85
    (tmp_path / "without").mkdir()
    least = diagnose(capture(tmp_path / "without", [kernel()])).ideals(0)["memory bandwidth used (GB/s)"][0]
    assert least is not None
    assert 0 < least < 85


def test_each_verdict_has_a_rule_and_advice() -> None:
    assert set(verdict_rules()) == set(KernelVerdict)
    for rule in verdict_rules().values():
        assert rule.source
        assert rule.advice.source
        assert set(rule.advice.apis) <= set(LANGUAGES)
        assert "obsolete" in rule.advice.apis.get("TBE", "obsolete")
    assert sum(bool(rule.advice.document) for rule in verdict_rules().values()) == 5


def test_findings_name_the_cells_by_the_files_own_columns(tmp_path: Path) -> None:
    text = capture(tmp_path, [kernel(), kernel(blocks="1")]).read_text()
    other = tmp_path / "op_summary.csv"
    other.write_text(
        text.replace("Block Dim,Mix Block Dim", "Block Num,Mix Block Num").replace("Name,Type", "Op Name,OP Type")
    )
    (finding,) = diagnose(other).findings(1)
    assert finding.cells == {"Block Num": 1.0, "Mix Block Num": 0.0, "Accelerator Core": "AI_VECTOR_CORE", "cores": 40}


def test_counters_that_are_lacking_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path, [kernel()], ("aic_l0a_read_bw(GB/s)",))
    assert main(["diagnose", str(path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    lacking = {each["verdict"]: each for each in content["untested"]}
    assert {"memory bound", "compute bound", "bank conflict", "L2 misses", "clock"} <= set(lacking)
    assert "aiv_vec_bank_cflt_ratio" in lacking["bank conflict"]["counters"]
    pipes = diagnose(capture(tmp_path, [kernel()]))
    assert [rule.verdict for rule in pipes.untested()] == ["clock", "bank conflict", "L2 misses"]
