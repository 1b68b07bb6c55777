"""`opatlas fit`: all models ahead of the first question."""

from __future__ import annotations

from pathlib import Path

import pytest

import opatlas
from opatlas.cli.main import main
from opatlas.query.fits import fit_models
from opatlas.query.kernel_model import Asked
from opatlas.query.predictor import FitSource
from tests.query.tables import product_rows, write_table

SIZES = [(m, n, 1024) for m in (1, 2, 4, 8, 16, 32, 64, 128) for n in (512, 1024, 2048)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, launch_us in (("db", 5), ("db/implementations/mine-1.0", 4)):
        write_table(tmp_path / name, "MatMulV2", product_rows(SIZES, [launch_us + m * n / 1e5 for m, n, _ in SIZES]))
    write_table(tmp_path / "db", "MatMulV3", product_rows(SIZES[:3], [5, 6, 7]))
    return tmp_path / "db"


def sources(folder: Path) -> dict[tuple[str, str], FitSource | None]:
    return {(fit.kernel_type, fit.implementation): fit.source for fit in fit_models(opatlas.open(folder))}


def test_every_type_and_implementation_is_fitted_once(folder: Path, own_cache: Path) -> None:
    first = sources(folder)
    torch = opatlas.open(folder).answers.stored_rows("MatMulV2", "torch").label
    assert first == {
        ("MatMulV2", torch): FitSource.ROWS,
        ("MatMulV2", "mine 1.0"): FitSource.ROWS,
        ("MatMulV3", torch): FitSource.TOO_FEW_ROWS,
    }
    written = {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.npz")}
    assert written
    assert sources(folder) == {
        name: FitSource.CACHE if source is FitSource.ROWS else source for name, source in first.items()
    }
    assert {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.npz")} == written


def test_a_fit_knows_how_far_off_it_is(folder: Path) -> None:
    for _ in range(2):
        fits = [fit for fit in fit_models(opatlas.open(folder)) if fit.kernel_type == "MatMulV2"]
        assert all(0 <= fit.p90(Asked.NEAR) < 0.2 for fit in fits)
    few = next(fit for fit in fit_models(opatlas.open(folder)) if fit.kernel_type == "MatMulV3")
    assert few.p90(Asked.NEAR) != few.p90(Asked.NEAR)


def test_a_table_that_cannot_be_read_fails_and_the_others_are_fitted(
    folder: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "Add.csv").write_bytes(b"\xff\xfe\x00")
    assert main(["fit", str(folder)]) == 1
    told = capsys.readouterr()
    assert str(own_cache / "opatlas" / "query") in told.out
    assert "Add" in told.err
    assert list(own_cache.rglob("*.npz"))


def test_a_cache_that_cannot_be_written_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["fit", str(folder)]) == 1
    assert sources(folder)["MatMulV2", "mine 1.0"] is FitSource.ROWS_NOT_KEPT
