"""What ships of a measured database."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.data.database import Database
from opatlas.row.location import shipped_note
from tests.support.shipped_database import ship

HEADER = "Input Shapes,Input Data Types,Output Shapes,Output Data Types,Average Duration(us),Status,Quality,Stand-In\n"


@pytest.fixture
def source(tmp_path: Path) -> Database:
    database = Database(tmp_path / "source")
    database.runs_dir.mkdir(parents=True)
    (database.runs_dir / "r.json").write_text("{}")
    (database.runs_dir / "r.jsonl.gz").write_bytes(b"")
    return database


def write(database: Database, kernel_type: str, *rows: str) -> None:
    lines = [f'"{n},2",FLOAT,"{n},2",FLOAT,{row}\n' for n, row in enumerate(rows, start=1)]
    database.csv_path(kernel_type).write_text(HEADER + "".join(lines))


def test_measured_rows_of_the_kernel_itself_ship(source: Database, tmp_path: Path) -> None:
    write(
        source,
        "Abs",
        "1.5,measured,quiet,",
        ",,,",
        ",failed,,",
        "2.5,failed,quiet,",
        '3.5,measured,composition,"composition of 2 torch operators (abs, mul)"',
        "4.5,measured,noisy,",
    )
    write(source, "Neg", ",,,")
    before = source.csv_path("Abs").read_bytes()
    target = tmp_path / "target"
    assert ship(source, target, "a GPU, cold cache") == {"Abs": (2, 4), "Neg": (0, 1)}
    shipped = Database(target)
    assert shipped.kernel_types() == ["Abs"]
    assert shipped.read("Abs").frame["Average Duration(us)"].tolist() == ["1.5", "4.5"]
    assert shipped_note(target) == "a GPU, cold cache"
    assert [path.name for path in shipped.runs_dir.iterdir()] == ["r.json"]
    assert source.csv_path("Abs").read_bytes() == before
