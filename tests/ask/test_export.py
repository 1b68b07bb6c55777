"""Files for other tools read back equal, in their units."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import opatlas
from opatlas.ask.query.export import COLUMNS, long_table, perf_tables
from opatlas.cli.main import main
from opatlas.theory.model_calls import Phase, model_calls
from opatlas.theory.sources import resolve_model
from tests.ask.tables import product_rows, write_table

SIZES = [(16, 512, 1024), (32, 512, 1024)]
US = [12.5, 20.25]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database in a place that names device and versions, with messages next to it."""
    place = tmp_path / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    conditions = {"Cache State": "cold", "Instrument": "cupti"}
    write_table(place, "MatMulV2", product_rows(SIZES, US).assign(**conditions))
    messages = pd.DataFrame(
        {
            "message_bytes": ["4096"],
            "num_devices": ["4"],
            "dtype": ["DT_BF16"],
            "topology_tier": ["1"],
            "Duration(us)": ["7.5"],
            "Status": ["measured"],
        }
    )
    for kernel_type in ("hcom_allReduce_", "hcom_allGather_"):
        write_table(tmp_path / "data" / "NVIDIA_H200" / "nccl" / "2.28.9", kernel_type, messages)
    return place


def rows_of(folder: Path, name: str) -> pd.DataFrame:
    (table,) = (each for each in perf_tables(opatlas.open(folder)) if each.path.stem == name)
    return table.rows


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_the_long_table_reads_back_equal(folder: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    assert main(["export", str(folder), "--output", str(path)]) == 0
    read = pd.read_parquet(path) if suffix == "parquet" else pd.read_csv(path, dtype=dict(COLUMNS))
    written = long_table(opatlas.open(folder))
    pd.testing.assert_frame_equal(read, written)
    assert set(read["kernel_type"]) == {"MatMulV2", "hcom_allReduce_", "hcom_allGather_"}
    products = read[read["kernel_type"] == "MatMulV2"]
    assert products[["m", "n", "k"]].to_numpy().tolist() == [list(size) for size in SIZES]
    assert products["duration_us"].tolist() == US
    assert products["composed"].tolist() == [False, False]
    assert products["input_shapes"].tolist() == ["16,1024;512,1024", "32,1024;512,1024"]
    assert products["message_bytes"].isna().all()
    assert set(read["device"]) == {"NVIDIA_H200"}
    assert set(read["implementation"]) == {"torch", "nccl 2.28.9"}
    assert set(products["cache"]) == {"cold"}
    assert set(products["instrument"]) == {"cupti"}


def test_the_long_table_has_each_row_that_ships() -> None:
    database = opatlas.open("NVIDIA_H200")
    table = long_table(database)
    assert set(table["implementation"].str.split().str[0]) > {"torch", "flashinfer"}
    assert any(table["kernel_type"].str.startswith("hcom_"))
    table = table[~table["kernel_type"].str.startswith("hcom_")]
    for (kernel_type, label), rows in table.groupby(["kernel_type", "implementation"]):
        stored = database.answers.stored_rows(str(kernel_type), str(label).split()[0])
        assert rows["duration_us"].tolist() == stored.duration_us.tolist()
    assert set(table["heads"].dropna()) > {8}


def test_products_are_a_table_in_milliseconds(folder: Path) -> None:
    write_table(folder, "MatMulV3", product_rows(SIZES[:1], [11.0]))
    rows = rows_of(folder, "gemm_perf")
    assert list(rows.columns) == [
        *("framework", "version", "device", "op_name", "kernel_source"),
        *("gemm_dtype", "m", "n", "k", "latency"),
    ]
    assert rows[["m", "n", "k"]].to_numpy().tolist() == [list(size) for size in SIZES]
    # The faster one of the two kernels.
    assert rows["latency"].tolist() == [0.011, 0.02025]
    assert set(rows["gemm_dtype"]) == {"bfloat16"}
    assert rows[["framework", "version", "device"]].iloc[0].tolist() == ["torch", "2.11.0", "NVIDIA H200"]


def test_rows_of_an_implementation_name_it(folder: Path) -> None:
    place = folder.parents[1] / "liger" / "liger0.8.5_torch2.11.0_cuda13.0"
    write_table(place, "MatMulV2", product_rows(SIZES, [1.0, 1.0]))
    tables = [each.rows for each in perf_tables(opatlas.open(folder)) if each.path.stem == "gemm_perf"]
    named = {(table["framework"][0], table["version"][0], table["latency"].min()) for table in tables}
    assert named == {("torch", "2.11.0", 0.0125), ("liger", "0.8.5", 0.001)}


def test_messages_of_other_dtypes_are_left_out(folder: Path) -> None:
    path = folder.parents[1] / "nccl" / "2.28.9" / "hcom_allReduce_.csv"
    path.write_text(path.read_text().replace("DT_BF16", "FLOAT"))
    assert set(rows_of(folder, "nccl_perf")["op_name"]) == {"all_gather"}


def test_messages_count_elements_of_all_chunks(folder: Path) -> None:
    rows = rows_of(folder, "nccl_perf").set_index("op_name")
    assert rows.loc["all_reduce", "message_size"] == 4096 // 2
    assert rows.loc["all_gather", "message_size"] == 4 * 4096 // 2
    assert set(rows["latency"]) == {0.0075}
    assert set(rows["nccl_dtype"]) == {"half"}
    assert set(rows["num_gpus"]) == {4}


@pytest.mark.parametrize(
    ("phase", "table", "isl", "step"),
    [("decode", "generation_attention_perf", 1, 4095), ("prefill", "context_attention_perf", 4096, 0)],
)
def test_attention_of_equal_lengths_is_a_table(folder: Path, phase: Phase, table: str, isl: int, step: int) -> None:
    calls = model_calls(resolve_model("Qwen/Qwen3-32B"), tp=2, batch=4, context=4096, phase=phase)
    (call,) = (call for call in calls if call.part == "attention")
    row = {**call.cells, "Average Duration(us)": "250", "Instrument": "cupti", "Status": "measured"}
    uneven = {**row, "Runtime actual_seq_lengths_kv_values": "4096,4096,4096,4000"}
    # The rotary part of latent queries.
    slots = {"Input Shapes": "4,32,64", "Input Data Types": "DT_BF16", "Input Formats": "ND"}
    of_slots = {
        name: ";".join([*(words := row[name].split(";"))[:24], cell, *words[25:]]) for name, cell in slots.items()
    }
    latent = {**row, **of_slots, "Average Duration(us)": "200"}
    write_table(folder, call.kernel_type, pd.DataFrame([row, latent, uneven] if phase == "decode" else [row, latent]))
    rows = rows_of(folder, table)
    assert len(rows) == 1
    first = rows.iloc[0]
    assert (first["batch_size"], first["isl"], first["step"], first["latency"]) == (4, isl, step, 0.25)
    assert (first["num_heads"], first["num_key_value_heads"], first["head_dim"]) == (32, 4, 128)
    # The row has no Quality.
    assert "composition" in first["kernel_source"]


def test_a_folder_of_tables_reads_back_equal(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "h200_sxm"
    assert main(["export", str(folder), "--output", str(out)]) == 0
    for table in perf_tables(opatlas.open(folder)):
        pd.testing.assert_frame_equal(pd.read_parquet(out / table.path), table.rows, check_dtype=False)
        assert (out / table.path).with_name("collection_meta.yaml").exists()
    assert {str(path.relative_to(out)) for path in out.rglob("*.parquet")} == {
        "gemm/torch/2.11.0/gemm_perf.parquet",
        "comm/nccl/2.28.9/nccl_perf.parquet",
    }


def test_compositions_are_not_written(folder: Path, tmp_path: Path) -> None:
    write_table(folder, "SwiGlu", product_rows(SIZES, US).assign(Quality="composition"))
    assert main(["export", str(folder), "--output", str(tmp_path / "rows.csv")]) == 0
    assert "SwiGlu" not in (tmp_path / "rows.csv").read_text()


@pytest.mark.parametrize(
    ("kernel_type", "options", "status"),
    [
        ("MatMulV2", ["--output", "rows.xlsx"], 2),
        ("MatMulV2", ["--output", "rows.v2"], 2),
        ("MatMulV2", [], 2),
        ("Sort", ["--output", "rows"], 1),  # no table of aiconfigurator has it
    ],
)
def test_an_export_that_cannot_be_written_has_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_type: str, options: list[str], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "db", kernel_type, product_rows(SIZES, US))
    assert main(["export", "db", *options]) == status
    assert not list(tmp_path.glob("rows*"))
