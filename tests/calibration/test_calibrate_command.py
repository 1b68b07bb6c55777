"""`opatlas calibrate`: real sessions on this machine's CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opatlas.cli.main import main
from opatlas.model.location import cpu_device_name
from tests.query.tables import RUN, product_rows, write_table

SIZES = [(2**m, 32, 64) for m in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database of this CPU, with four products that take a nanosecond each: no machine is that fast."""
    rows = product_rows(SIZES, [1e-3] * 4).assign(**{"Cache State": "cold", "Instrument": "wall-clock"})
    write_table(tmp_path / "db", "MatMulV2", rows)
    manifest = {
        "started_at": 1.7e9,
        "device": {"name": cpu_device_name(), "kind": "cpu"},
        "packages": {"torch": "2.0.0"},
    }
    (tmp_path / "db/runs").mkdir()
    (tmp_path / f"db/runs/{RUN}.json").write_text(json.dumps(manifest))
    return tmp_path / "db"


def test_rows_are_measured_and_compared_and_the_database_does_not_change(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(folder), "--choose"]) == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    status = main(["calibrate", str(folder), "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    # Ratios of thousands; this machine decides whether they are steady.
    assert (status, found["verdict"]) in ((3, "scaled"), (4, "do not use"))
    rows = [row for family in found["families"] for row in family["rows"]]
    assert len(rows) == len(SIZES)
    assert all(row["reason"] == "" and row["ratio"] > 100 and not row["is_within"] for row in rows)
    assert not found["is_other_device"]
    assert any("2.0.0" in difference for difference in found["differences"])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_database_without_a_file_is_calibrated_with_rows_that_are_chosen_now(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "fit.json"
    assert main(["calibrate", str(folder), "--json", str(written)]) in (3, 4)
    assert str(folder) in capsys.readouterr().out
    assert json.loads(written.read_text())["database"] == str(folder)
    assert not (folder / "calibration.json").exists()


def test_a_session_that_cannot_start_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "MatMulV2.csv"
    path.write_text(path.read_text().replace("wall-clock", "sundial"))
    assert main(["calibrate", str(folder)]) == 1
    assert "sundial" in capsys.readouterr().err


def test_the_database_of_an_implementation_is_refused(folder: Path) -> None:
    write_table(folder / "implementations/flashinfer-0.5.3", "MatMulV2", product_rows(SIZES[:1], [1.0]))
    assert main(["calibrate", str(folder / "implementations/flashinfer-0.5.3")]) == 2


def test_a_device_without_a_database_is_wrong_usage() -> None:
    assert main(["calibrate", "NVIDIA_H9000"]) == 2
