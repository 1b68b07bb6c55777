"""The results of all commands on a small database: as tables of any width, as Markdown, and as JSON alone."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from captures import launched, write_capture

from opatlas.cli.main import all_commands, main
from tests.ask.tables import product_rows, write_table

_SIZES = [(m, n, 1024) for m in (1, 2, 4, 8, 16, 32, 64) for n in (256, 1024, 4096)]
#: Statuses of commands that report findings.
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
        ["combine", str(folder.with_name("combined")), db, "--pool"],
        ["history", db, "MatMulV2"],
        ["history", db],
        ["compare", db, other],
        ["diagnose", capture],
        ["diagnose", capture, "--against", capture],
        ["query", db, "MatMulV2", "8,1024", "1024,1024"],
        ["model", "Qwen/Qwen3-32B", db, "--batch", "1", "--context", "1024"],
        ["model", "Qwen/Qwen3-32B", db, "--batch", "1", "--context", "1024", "--next", "3", "--dry-run"],
        ["diagnose", capture, "--superkernel"],
    ]


@pytest.mark.parametrize("command", ["", *all_commands()])
def test_help_fits_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([*([command] if command else []), "--help"])
    text = capsys.readouterr().out
    assert text
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_each_command_prints_a_table_and_json(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for command in commands(folder):
        for columns in ("60", "80", ""):
            monkeypatch.setenv("COLUMNS", columns)
            assert main(command) in _FOUND, command
            out = capsys.readouterr().out
            assert out, command
        assert main([*command, "--format", "markdown"]) in _FOUND, command
        assert "| --- |" in capsys.readouterr().out.replace("--:", "---"), command
        assert main([*command, "--json"]) in _FOUND, command
        assert json.loads(capsys.readouterr().out), command
