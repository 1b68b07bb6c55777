"""The results of all commands on a small database: as narrow tables, as Markdown, and as JSON alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from captures import launched, write_capture

from opatlas.cli.main import main
from tests.ask.tables import product_rows, write_table

_SIZES = [(m, n, 1024) for m in (1, 2, 4, 8, 16, 32, 64) for n in (256, 1024, 4096)]


def commands(folder: Path) -> list[str]:
    """Returns the commands that print a table, and take a second at most."""
    us = [5 + m * n / 1e3 for m, n, _ in _SIZES]
    write_table(folder / "db", "MatMulV2", product_rows(_SIZES, us))
    write_table(folder / "other", "MatMulV2", product_rows(_SIZES, [each * 1.2 for each in us]))
    write_capture(folder / "kernel_details.csv", [launched("Mul", 10.0 + n) for n in range(9)])
    return [
        "show",
        "show db",
        "show --kernels norm",
        "ingest --profiling-path kernel_details.csv --database-path ingested",
        "implementations",
        "implementations flashinfer",
        "check db -p no:cacheprovider",
        "combine combined db --pool",
        "history db MatMulV2",
        "history db",
        "compare db other",
        "diagnose kernel_details.csv",
        "diagnose kernel_details.csv --against kernel_details.csv",
        "diagnose kernel_details.csv --superkernel",
        "query db MatMulV2 8,1024 1024,1024",
        "model Qwen/Qwen3-32B db --batch 1 --context 1024",
        "model Qwen/Qwen3-32B db --batch 1 --context 1024 --next 3 --dry-run",
    ]


def test_each_command_prints_a_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    for command in commands(tmp_path):

        def printed(*options: str, words: str = command) -> str:
            # 1: a command that reports findings.
            assert main([*words.split(), *options]) in (0, 1), words
            return capsys.readouterr().out

        # Paths, and commands to copy, stay whole.
        wide = [line for line in printed().splitlines() if len(line) > 80 and str(tmp_path) not in line]
        assert printed(), command
        assert not wide, wide
        assert "| --- |" in printed("--format", "markdown").replace("--:", "---"), command
        assert json.loads(printed("--json")), command
