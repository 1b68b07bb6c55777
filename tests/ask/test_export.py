"""Files for other tools read back equal, in their units."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import opatlas
from opatlas.cli.main import main
from opatlas.cli.query import COLUMNS, long_table
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


def test_compositions_are_not_written(folder: Path, tmp_path: Path) -> None:
    write_table(folder, "SwiGlu", product_rows(SIZES, US).assign(Quality="composition"))
    assert main(["export", str(folder), "--output", str(tmp_path / "rows.csv")]) == 0
    assert "SwiGlu" not in (tmp_path / "rows.csv").read_text()


@pytest.mark.parametrize(
    ("kernel_type", "options", "status"),
    [("MatMulV2", ["--output", "rows.xlsx"], 2), ("MatMulV2", ["--output", "rows.v2"], 2), ("MatMulV2", [], 2)],
)
def test_an_export_that_cannot_be_written_has_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_type: str, options: list[str], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "db", kernel_type, product_rows(SIZES, US))
    assert main(["export", "db", *options]) == status
    assert not list(tmp_path.glob("rows*"))
