"""`opatlas show`: what a database holds, and which databases there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from abs_rows import cells, write

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest

XEON = {"name": "Intel_Xeon_Processor", "kind": "cpu", "facts": {"torch": "2.13.0+cpu", "threads": 2}}


def measured(size: int, std: str, quality: str = "") -> dict[str, str]:
    of_samples = {"MicroBench Median Duration(us)": "10", "MicroBench Std Duration(us)": std, "Quality": quality}
    how = {"Cache State": "cold", "Instrument": "wall-clock", "Status": "measured", "Run ID": "run-1"}
    return {**cells(size), "Average Duration(us)": "10", **of_samples, **how}


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Rows that were measured, captured, that failed, and that never ran."""
    database = Database(tmp_path / "Intel_Xeon_Processor" / "torch" / "torch2.13.0_cpu")
    none = dict.fromkeys(measured(1, ""), "")
    captured = {**none, **cells(5), "Profiling Average Duration(us)": "7"}
    rows = [
        measured(1, "0.1", "quiet"),
        measured(2, "0.2", "drifting"),
        # Of a version without the column.
        measured(3, "4"),
        measured(4, "0.1"),
        captured,
        {**none, **cells(6), "Status": "failed"},
        {**none, **cells(7)},
    ]
    database.path.mkdir(parents=True)
    write(database, [{**dict.fromkeys(captured, ""), **row} for row in rows])
    Manifest("run-1", 1e9, {}, "", device=XEON, statuses={"measured": 4}).write(database)
    Manifest("run-2", 1.1e9, {"command": "pytest shapes/"}, "", statuses={"added": 7}).write(database)
    return database


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Returns what the command prints as JSON."""

    def run(*arguments: str, status: int = 0) -> Any:
        assert main(["show", *arguments, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return run


def test_the_implementations_that_were_measured_on_its_rows(
    database: Database, told: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    other = database.implementation_dir("flashinfer", "0.5.3")
    other.mkdir(parents=True)
    write(Database(other), [measured(1, "0.1")])
    assert told(str(database.path))["implementations"] == ["flashinfer 0.5.3"]
    assert main(["show", str(database.path)]) == 0
    assert "flashinfer 0.5.3" in capsys.readouterr().out
    assert told(str(other))["implementations"] == []


def test_rows_are_counted_by_what_is_known_of_them(
    database: Database, told: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(str(database.path))
    (table,) = found["kernel_types"]
    numbers = {name: table[name] for name in ("rows", "measured", "captured", "failed", "missing", "noisy")}
    assert numbers == {"rows": 7, "measured": 4, "captured": 1, "failed": 1, "missing": 2, "noisy": 2}
    assert table["noise"] == pytest.approx(0.015)
    assert table["quality"] == {"quiet": 1, "drifting": 1, "not judged": 2}
    assert (table["cache"], table["instrument"]) == ({"cold": 4}, {"wall-clock": 4})
    assert table["status"] == {"measured": 4, "failed": 1, "": 2}
    # `pytest shapes/` measured nothing.
    assert (found["runs"], found["ingests"], found["last_run_at"]) == (1, 0, 1e9)
    ((device, runs),) = found["devices"].items()
    assert runs == 1
    assert all(fact in device for fact in ("Intel_Xeon_Processor", "2 threads", "2.13.0"))
    assert main(["show", str(database.path)]) == 0
    assert ["Abs", "7", "4", "1", "1", "2", "2", "1.5", "%"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


@pytest.mark.parametrize("composed", [{"Quality": "composition"}, {"Quality": "noisy", "Stand-In": "composition of 4"}])
def test_compositions_are_not_among_the_measured_rows(
    tmp_path: Path, composed: dict[str, str], told: Callable[..., Any]
) -> None:
    database = Database(tmp_path / "database")
    database.path.mkdir()
    rows = [{"Stand-In": "", **measured(1, "0.1", "quiet")}, {**measured(2, "9"), **composed}]
    write(database, [{**dict.fromkeys(rows[0], ""), **row} for row in rows])
    (table,) = told(str(database.path))["kernel_types"]
    numbers = {name: table[name] for name in ("rows", "measured", "composed", "missing", "noisy")}
    assert numbers == {"rows": 2, "measured": 1, "composed": 1, "missing": 0, "noisy": 0}
    assert table["noise"] == pytest.approx(0.01)
    assert table["quality"] == {"quiet": 1, "composition": 1}


@pytest.mark.filterwarnings("error")
def test_zeros_that_stand_for_no_duration_are_no_noise(tmp_path: Path, told: Callable[..., Any]) -> None:
    database = Database(tmp_path / "database")
    database.path.mkdir()
    zeros = {name: "0" for name in measured(1, "0") if name.endswith("Duration(us)")}
    write(database, [measured(1, "0.1"), {**measured(2, "0"), **zeros}])
    (table,) = told(str(database.path))["kernel_types"]
    assert (table["measured"], table["noise"]) == (1, pytest.approx(0.01))


def test_without_a_name_databases_are_listed(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "Intel_Xeon_Processor" / "torch" / "notes").mkdir()
    monkeypatch.setattr("opatlas.row.location.ROOT", tmp_path)
    (found,) = told()
    assert found["path"] == str(database.path)
    assert main(["show"]) == 0
    assert str(database.path.relative_to(tmp_path)) in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_shown(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    (database.path / "Broken.csv").write_text("a,b\n1\n")
    assert main(["show", str(database.path)]) == 1
    out, err = capsys.readouterr()
    assert "\nAbs " in out
    assert "Broken.csv" in err


def test_a_folder_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
