"""Rows that are not stored: a known roofline with noise is found again, and the interval says how well."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info

import opatlas
from opatlas.ask.query.kernel_model import Predictions, RegimeModel
from opatlas.ask.query.question import ask
from opatlas.theory.space import call_cells
from tests.ask.tables import RUN, product_rows, write_table

Size = tuple[int, int, int]
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_WEIGHTS = tuple(itertools.product((512, 1024, 2048, 4096), (1024, 2048, 4096)))


def roofline_us(sizes: Sequence[Size]) -> np.ndarray:
    """2 us of launch, 4 TB/s and 500 TFLOP/s."""
    m, n, k = np.array(sizes, dtype=np.float64).T
    return 2 + np.hypot(2 * (m * n + m * k + n * k) / 4e6, 2 * m * n * k / 5e8)


def measured(sizes: Sequence[Size], noise: float, seed: int = 0) -> np.ndarray:
    """The roofline's durations, with noise."""
    return roofline_us(sizes) * np.exp(np.random.default_rng(seed).normal(0, noise, len(sizes)))


@pytest.fixture
def database(tmp_path: Path) -> opatlas.OpenDatabase:
    sizes = [(m, n, k) for m in _TOKENS for n, k in _WEIGHTS]
    write_table(tmp_path / "db", "MatMulV2", product_rows(sizes, measured(sizes, 0.02)))
    return opatlas.open(tmp_path / "db", same_machine=True)


def test_the_interval_covers_a_known_roofline_between_the_rows(database: opatlas.OpenDatabase) -> None:
    sizes = [(m, n, k) for m in (3, 12, 48, 200, 700) for n, k in _WEIGHTS]
    truth = measured(sizes, 0.02, seed=1)
    answers = database.query_many("MatMulV2", product_rows(sizes, truth))
    assert set(answers["How"]) == {"interpolated"}
    off = np.abs(answers["Duration(us)"] / truth - 1)
    assert np.quantile(off, 0.9) < 0.06
    covered = (answers["Low(us)"] <= truth) & (truth <= answers["High(us)"])
    assert covered.mean() > 0.8
    assert np.median(answers["High(us)"] / answers["Low(us)"]) < 1.2


@pytest.mark.parametrize("between", [1.3, 1.5])
def test_the_interval_covers_what_no_row_is_near_enough_to_tell(tmp_path: Path, between: float) -> None:
    def waved(sizes: Sequence[Size], seed: int) -> np.ndarray:
        tokens = np.array([m for m, _, _ in sizes])
        return measured(sizes, 0.003, seed) * (1 + 0.1 * np.sin(2 * np.pi * np.log2(tokens)))

    # Each row has others with nearly as many tokens, which a question between them has not.
    sizes = [(m + step, n, k) for m in _TOKENS[4:-1] for step in (-1, 0, 1) for n, k in _WEIGHTS]
    write_table(tmp_path, "MatMulV2", product_rows(sizes, waved(sizes, 0)))
    asked = [(round(m * between), n, k) for m in _TOKENS[4:-2] for n, k in _WEIGHTS]
    truth = waved(asked, 1)
    answers = opatlas.open(tmp_path, same_machine=True).query_many("MatMulV2", product_rows(asked, truth))
    assert ((answers["Low(us)"] <= truth) & (truth <= answers["High(us)"])).mean() > 0.8


def test_a_size_beyond_all_rows_is_extrapolated_with_a_wider_interval(database: opatlas.OpenDatabase) -> None:
    near, far = (database.matmul(m=m, n=1024, k=1024) for m in (1500, 40000))
    assert (near.how, far.how) == (opatlas.How.INTERPOLATED, opatlas.How.EXTRAPOLATED)
    widths = [answer.interval_us[1] / answer.interval_us[0] for answer in (near, far)]
    assert widths[0] < widths[1]
    assert abs(far.duration_us / roofline_us([(40000, 1024, 1024)])[0] - 1) < 0.3


def test_the_order_of_the_rows_and_a_stored_or_damaged_fit_change_nothing(
    database: opatlas.OpenDatabase, own_cache: Path, tmp_path: Path
) -> None:
    first = database.matmul(m=48, n=512, k=1024)
    again = opatlas.open(database.path, same_machine=True).matmul(m=48, n=512, k=1024)
    assert again == first
    (stored,) = own_cache.rglob("*.msgpack")
    stored.write_bytes(b"no archive")
    assert opatlas.open(database.path, same_machine=True).matmul(m=48, n=512, k=1024) == first
    rows = pd.read_csv(database.path / "MatMulV2.csv", dtype=str, keep_default_na=False)
    write_table(tmp_path / "turned", "MatMulV2", rows.iloc[::-1])
    turned = opatlas.open(tmp_path / "turned", same_machine=True).matmul(m=48, n=512, k=1024)
    assert turned.duration_us == pytest.approx(first.duration_us, rel=0.02)


def test_without_a_cache_that_can_be_written_the_answer_is_the_same(
    database: opatlas.OpenDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = database.matmul(m=48, n=512, k=1024)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert opatlas.open(database.path, same_machine=True).matmul(m=48, n=512, k=1024) == first


@pytest.mark.parametrize(("shape", "us"), [((64, 32), 1.6), ((16, 4096), 1.7), ((2048, 4096), 9.6)])
def test_a_launch_is_not_scaled_with_the_sizes_of_few_rows(tmp_path: Path, shape: tuple[int, int], us: float) -> None:
    """Three rows of a kernel that takes 1.6 us and a microsecond for each 4 MB, most of two of them for the launch."""
    sizes = [(1, 4096), (64, 4096), (4096, 4096)]
    cells = [dict.fromkeys(("Input Shapes", "Output Shapes"), f"{m},{n}") for m, n in (*sizes, shape)]
    dtypes = {
        "Input Data Types": "DT_BF16",
        "Output Data Types": "DT_BF16",
        "Input Formats": "ND",
        "Output Formats": "ND",
    }
    rows = [
        {**each, **dtypes, "Average Duration(us)": str(1.6 + m * n * 4 / 4e6), "Status": "measured", "Run ID": RUN}
        for each, (m, n) in zip(cells, sizes, strict=False)
    ]
    write_table(tmp_path / "db", "Sigmoid", pd.DataFrame(rows))
    answer = opatlas.open(tmp_path / "db").query_row("Sigmoid", cells[-1] | dtypes)
    assert answer.how is opatlas.How.ANALYTIC
    assert answer.duration_us == pytest.approx(us, rel=0.25)
    assert answer.interval_us[0] < us < answer.interval_us[1]


def test_few_rows_give_an_analytic_answer_with_a_wide_interval(tmp_path: Path) -> None:
    sizes = [(16, 512, 1024), (64, 512, 1024)]
    write_table(tmp_path / "db", "MatMulV2", product_rows(sizes, roofline_us(sizes)))
    answer = opatlas.open(tmp_path / "db").matmul(m=32, n=512, k=1024)
    assert answer.how is opatlas.How.ANALYTIC
    assert answer.interval_us[1] / answer.interval_us[0] > 4


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        ("24,1024;512,1024", "24,512"),
        ("24,1024;1024,512", "24,512"),
        ("1024,1024;1024,512", "1024,512"),
        ("1024,1024;512,1024", "1024,512"),
        ("1024,1024;1024,1024", "1024,1024"),
        ("24,1024;512,512", None),
    ],
)
def test_outputs_of_products_follow_where_rows_have_transposed_and_other_weights(
    tmp_path: Path, inputs: str, output: str | None
) -> None:
    rows = product_rows([(m, n, k) for m in (1, 16, 128) for n in (256, 768) for k in (2048, 3072)], range(1, 13))
    plain = rows.assign(**{"Input Shapes": rows["Input Shapes"].str.replace(r";(\d+),(\d+)", r";\2,\1", regex=True)})
    write_table(tmp_path, "MatMulV3", pd.concat([rows, plain], ignore_index=True))
    completion = opatlas.open(tmp_path).answers.completion("MatMulV3", "torch")
    if output is None:
        with pytest.raises(opatlas.NoAnswer, match="output_shapes"):
            completion.complete(ask("MatMulV3", inputs))
    else:
        assert completion.complete(ask("MatMulV3", inputs))[0]["Output Shapes"] == output


def test_an_output_is_a_part_of_an_input_in_all_rows(tmp_path: Path) -> None:
    sizes = [(m, width) for m in (1, 2, 4, 8, 16, 32, 64) for width in (1024, 2048, 4096)]
    rows = product_rows([(m, 1, 1) for m, _ in sizes], [2 + m * width / 1e5 for m, width in sizes])
    rows["Input Shapes"] = [f"{m},{width}" for m, width in sizes]
    rows["Input Data Types"], rows["Input Formats"] = "DT_BF16", "ND"
    rows["Output Shapes"] = [f"{m},{width // 2}" for m, width in sizes]
    write_table(tmp_path / "db", "SwiGlu", rows)
    asked = opatlas.open(tmp_path / "db").query("SwiGlu", "40,3072")
    given = opatlas.open(tmp_path / "db").query("SwiGlu", "40,3072", output_shapes="40,1536")
    assert (asked.duration_us, asked.interval_us) == (given.duration_us, given.interval_us)
    assert asked.duration_us == pytest.approx(2 + 40 * 3072 / 1e5, rel=0.1)


def test_a_collective_is_known_by_its_message(tmp_path: Path) -> None:
    sizes = [2**power for power in range(10, 28)]
    rows = pd.DataFrame(
        {
            "message_bytes": sizes,
            "num_devices": 2,
            "dtype": "DT_BF16",
            "topology_tier": 1,
            "Duration(us)": [5 + size / 1e5 for size in sizes],
            "Status": "measured",
            "Run ID": RUN,
        }
    )
    write_table(tmp_path / "db", "hcom_allReduce_", rows)
    database = opatlas.open(tmp_path / "db")
    assert database.collective("all_reduce", bytes=2**20, devices=2).duration_us == pytest.approx(5 + 2**20 / 1e5)
    between = database.collective("all_reduce", bytes=3 * 2**19, devices=2)
    assert between.how is opatlas.How.INTERPOLATED
    assert between.duration_us == pytest.approx(5 + 3 * 2**19 / 1e5, rel=0.1)
    # Each of 8 devices sends 7/4 of the message, and each of 2 the message.
    more = database.collective("all_reduce", bytes=2**20, devices=8)
    assert more.how is opatlas.How.EXTRAPOLATED
    alike = database.collective("all_reduce", bytes=7 * 2**18, devices=2)
    assert more.duration_us == pytest.approx(alike.duration_us)
    # Two doublings of the devices.
    assert more.interval_us == pytest.approx((alike.interval_us[0] / 3, alike.interval_us[1] * 3))
    assert more.interval_us[0] < more.duration_us / 2 < 2 * more.duration_us < more.interval_us[1]
    with pytest.raises(opatlas.NoAnswer):
        database.collective("all_gather", bytes=2**20, devices=2)
    with pytest.raises(opatlas.OpAtlasError, match="all_reduce"):
        database.collective("all", bytes=2**20, devices=2)
    with pytest.raises(opatlas.OpAtlasError, match="1"):
        database.collective("all_reduce", bytes=2**20, devices=1)
    with pytest.raises(opatlas.OpAtlasError, match="collective"):
        database.query("hcom_allReduce_", "1048576")


def test_the_rows_have_typed_columns(database: opatlas.OpenDatabase) -> None:
    frame = database.frame("MatMulV2")
    assert set(frame[["m", "n", "k"]].itertuples(index=False, name=None)) >= {(16, 512, 1024), (1, 4096, 4096)}
    work = frame["m"] * frame["n"] * frame["k"]
    moved = frame["m"] * frame["n"] + frame["m"] * frame["k"] + frame["n"] * frame["k"]
    assert frame["tflops"].tolist() == pytest.approx((2 * work / frame["duration_us"] / 1e6).tolist())
    assert frame["gbps"].tolist() == pytest.approx((2 * moved / frame["duration_us"] / 1e3).tolist())
    assert set(frame["dtype"]) == {"BF16"}


def test_rows_of_other_dtypes_are_told_where_those_of_the_question_are_noisy(tmp_path: Path) -> None:
    """Rows with noisy samples predict nothing: those in FLOAT had answered for BF16 without a word."""
    sizes = [(m, 512, 1024) for m in _TOKENS]
    plain = product_rows(sizes, roofline_us(sizes)).assign(**{"Input Data Types": "FLOAT;FLOAT"})
    noisy = product_rows(sizes[:4], roofline_us(sizes[:4])).assign(Quality="noisy")
    for rows, is_other in ((noisy.assign(Quality="quiet"), False), (noisy, True)):
        write_table(tmp_path / str(is_other), "MatMulV2", pd.concat([plain, rows]))
        answer = opatlas.open(tmp_path / str(is_other)).query("MatMulV2", "100,1024;512,1024", dtypes="BF16")
        assert (answer.how is opatlas.How.MEASURED, answer.other_dtypes) == (False, is_other)


def test_a_kernel_that_reads_a_part_of_a_table_has_no_bandwidth(tmp_path: Path) -> None:
    """GatherV2 of an embedding had 1,027,712 GB/s."""
    cells = call_cells("GatherV2", "gather", {"m": 1, "vocab": 151936, "h": 4096}, dtype="BF16")
    write_table(tmp_path, "GatherV2", pd.DataFrame([{**cells, "Average Duration(us)": "2.0"}]))
    (row,) = opatlas.open(tmp_path).frame("GatherV2").to_dict("records")
    assert row["bytes"] > 10**9
    assert np.isnan(row["gbps"])


@pytest.mark.parametrize(("queries", "keys"), [(1, 4096), (4096, 4096), (128, 4096)])
def test_attention_is_known_by_its_sizes(tmp_path: Path, queries: int, keys: int) -> None:
    sizes = {"s": 4, "t": queries, "k": keys, "q": 32, "kv": 4, "d": 128}
    pattern = "packed_attention" if queries == keys else "paged_attention"
    cells = call_cells("FusedInferAttentionScore", pattern, sizes, dtype="BF16")
    write_table(tmp_path, "FusedInferAttentionScore", pd.DataFrame([{**cells, "Average Duration(us)": "99"}]))
    database = opatlas.open(tmp_path)
    asked = {"sequences": 4, "keys": keys, "heads": 32, "kv_heads": 4, "head_size": 128}
    answer = database.attention(**asked, queries=queries)
    assert (answer.duration_us, answer.how) == (99, opatlas.How.MEASURED)
    frame = database.frame("FusedInferAttentionScore")
    assert frame[["sequences", "queries", "keys", "heads"]].iloc[0].tolist() == [4, 4 * queries, 4 * keys, 32]
    with pytest.raises(opatlas.OpAtlasError):
        database.attention(**asked, dtype="FLOAT")
    with pytest.raises(opatlas.OpAtlasError, match="kv_heads"):
        database.attention(**{**asked, "kv_heads": asked["heads"] - 1})


def test_a_large_table_answers_from_several_models_and_from_their_stored_fits(tmp_path: Path, own_cache: Path) -> None:
    sizes = [
        (m, n, k)
        for m in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192)
        for n in (256, 512, 1024, 2048, 3072, 4096)
        for k in (256, 512, 1024, 2048, 3072, 4096)
    ]
    write_table(tmp_path / "db", "MatMulV2", product_rows(sizes, measured(sizes, 0.01)))
    asked = [(40, 1536, 1024), (6, 640, 5120), (300, 2048, 2048)]
    first = [opatlas.open(tmp_path / "db").matmul(m=m, n=n, k=k) for m, n, k in asked]
    for answer, us in zip(first, roofline_us(asked), strict=True):
        assert answer.duration_us == pytest.approx(us, rel=0.1)
        assert answer.interval_us[0] < answer.duration_us < answer.interval_us[1]
    assert len(list(own_cache.rglob("*.msgpack"))) == 1
    assert [opatlas.open(tmp_path / "db").matmul(m=m, n=n, k=k) for m, n, k in asked] == first


def test_fits_and_predictions_use_one_thread_of_blas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(m, n, 1024) for m in (1, 2, 4, 8, 16) for n in (512, 1024)]
    write_table(tmp_path, "MatMulV2", product_rows(sizes, measured(sizes, 0.01)))
    within: list[int] = []

    def blas_threads() -> list[int]:
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    class Watched(RegimeModel):
        def __init__(self, *args: Any) -> None:
            within.extend(blas_threads())
            super().__init__(*args)

        def predict(self, *args: Any) -> Predictions:
            within.extend(blas_threads())
            return super().predict(*args)

    monkeypatch.setattr("opatlas.ask.query.kernel_model.RegimeModel", Watched)
    before = blas_threads()
    if not before:
        pytest.skip("numpy has a BLAS whose threads threadpoolctl does not know")
    opatlas.open(tmp_path).matmul(m=6, n=768, k=1024)
    assert set(within) == {1}
    assert blas_threads() == before
