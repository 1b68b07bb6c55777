"""The nights of docs/ci.md: the transcripts are what the commands print."""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from doc_commands import ROOT
from many_runs import write_runs

from opatlas.cli.main import main

PAGE = ROOT / "docs" / "ci.md"
HEADER = ("Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats")
ROWS = {
    "Add": [("64,1024;64,1024", "DT_BF16;DT_BF16", "ND;ND", "64,1024", "DT_BF16", "ND")],
    "RmsNorm": [
        ("64,1024;1024", "DT_BF16;DT_BF16", "ND;ND", "64,1024;64,1", "DT_BF16;FLOAT", "ND;ND"),
        ("64,1024;1000", "DT_BF16;DT_BF16", "ND;ND", "64,1024;64,1", "DT_BF16;FLOAT", "ND;ND"),
    ],
    "MatMulV2": [
        ("64,512;256,512", "DT_BF16;DT_BF16", "ND;ND", "64,256", "DT_BF16", "ND"),
        ("4000000,400000;64,400000", "DT_BF16;DT_BF16", "ND;ND", "4000000,64", "DT_BF16", "ND"),
    ],
}


def transcripts() -> list[tuple[str, list[str]]]:
    """The command and the output of each block of the page with a prompt."""
    blocks = re.findall(r"^```console\n\$ (.*)\n((?:.*\n)*?)```$", PAGE.read_text("utf-8"), re.MULTILINE)
    return [(command, output.splitlines()) for command, output in blocks]


def masked(lines: Sequence[str], folder: Path) -> list[str]:
    """Lines without what differs from run to run: numbers with a fraction, times, rules beside titles, and gaps."""
    text = re.sub(" +", " ", "\n".join(lines).replace(f"{folder}/", ""))
    return re.sub(r"\d{8}_\d{6}|\d+\.\d+|(?<= )1 min \d+ s|=+|-{4,}", "#", text).splitlines()


def missing(shown: Sequence[str], printed: Iterator[str]) -> list[str]:
    """The shown lines that were not printed in this order."""
    return [line for line in shown if line != "..." and line not in printed]


def test_the_red_night_prints_what_the_page_shows(tmp_path: Path) -> None:
    (command, shown), _ = transcripts()
    database = tmp_path / "DB"
    database.mkdir()
    for name, rows in ROWS.items():
        write(database / f"{name}.csv", [dict(zip(HEADER, row, strict=True)) for row in rows])
    program, *words = command.split()
    assert program == "pytest"
    here = [f"--rootdir={ROOT}", f"-c{ROOT}/pytest.ini", "-p", "no:cacheprovider"]
    quickly = ["--repeat-count=2", "--cache=warm"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(ROOT / "bench"), *words[1:], *quickly, *here],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert not missing(masked(shown, tmp_path), iter(masked(done.stdout.splitlines(), tmp_path))), done.stdout


def write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_the_regression_is_the_one_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *_, (command, shown) = transcripts()
    rows = [
        [(10 + number) * math.exp(error) for error in np.random.default_rng(number).normal(0, 0.01, 8)]
        for number in range(40)
    ]
    rows[1][5:] = [us * 1.3 for us in rows[1][5:]]
    write_runs(tmp_path / "DB", rows, {0: "2.10.0", 5: "2.11.0"})
    _, name, _, *options = command.split()
    assert main([name, str(tmp_path / "DB"), *options]) == 1
    out, err = capsys.readouterr()
    printed = (out + err).replace(str(tmp_path / "DB"), "DB")
    assert [line for line in printed.splitlines() if line] == [line for line in shown if line]


def test_steps_of_the_workflow_end_at_a_failing_command() -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "ci" / "npu.yml").read_text())
    (job,) = workflow["jobs"].values()
    options = job["defaults"]["run"]["shell"].split()[1]
    assert "e" in options
