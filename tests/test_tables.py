"""The tables of all commands on a small database: within 80 columns, and as JSON alone on the terminal."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from captures import launched, write_capture

from opatlas.cli.main import COMMANDS, main
from tests.query.tables import product_rows, write_table

_SIZES = [(m, n, 1024) for m in (1, 2, 4, 8, 16, 32, 64) for n in (256, 1024, 4096)]
#: Statuses of commands that tell what they found.
_FOUND = (0, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a") / "db"
    us = [5 + m * n / 1e3 for m, n, _ in _SIZES]
    write_table(folder, "MatMulV2", product_rows(_SIZES, us))
    write_table(folder.with_name("other"), "MatMulV2", product_rows(_SIZES, [each * 1.2 for each in us]))
    write_capture(folder.with_name("kernel_details.csv"), [launched("Mul", 10.0 + n) for n in range(9)])
    return folder


def commands(folder: Path) -> list[list[str]]:
    """Returns the commands that print a table, and take a second at most."""
    db, other, capture = (str(folder.with_name(name)) for name in ("db", "other", "kernel_details.csv"))
    return [
        ["show"],
        ["show", db],
        ["show", "--kernels", "norm"],
        ["ingest", "--profiling-path", capture, "--database-path", str(folder.with_name("ingested"))],
        ["implementations"],
        ["implementations", "flashinfer"],
        ["check", db, "-p", "no:cacheprovider"],
        ["combine", str(folder.with_name("combined")), db, "--dry-run", "--pool"],
        ["history", db, "MatMulV2"],
        ["history", db],
        ["compare", db, other],
        ["diagnose", capture],
        ["diagnose", capture, "--row", "1"],
        ["diagnose", capture, "--against", capture],
        ["query", db, "MatMulV2", "8,1024", "1024,1024"],
        ["fit", db],
        ["plan", db, "--dry-run", "--next", "3", "--step", "Qwen/Qwen3-32B,batch=1,context=1024,phase=decode"],
        ["model", "Qwen/Qwen3-32B", db, "--batch", "1", "--context", "1024"],
        ["superkernel", capture],
    ]


def wide(text: str) -> list[str]:
    """Returns the lines that are wider than 80 columns, but for a path or an id that is wider by itself."""
    return [line for line in text.splitlines() if len(line) > 80 and max(map(len, line.split())) < 40]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([*([command] if command else []), "--help"])
    text = capsys.readouterr().out
    assert text
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_table_of_a_plan_fits_80_columns_in_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = next(command for command in commands(folder) if command[0] == "plan")
    assert main(plan) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()), default=0) in range(1, 81)


def test_tables_fit_80_columns_and_are_json_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for command in commands(folder):
        assert main(command) in _FOUND, command
        out, err = capsys.readouterr()
        assert (wide(out + err), bool(out)) == ([], True), command
        assert re.findall(r"\d%(?!\])", out + err) == [], command
        assert main([*command, "--json", "-"]) in _FOUND, command
        assert json.loads(capsys.readouterr().out), command
