"""docs/tutorials/op-mapping.md: its commands print the output on the page, and its line is the one that helps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from captures import launch, write_capture
from doc_commands import ROOT

pytestmark = pytest.mark.usefixtures("forks")
PAGE = ROOT / "docs" / "tutorials" / "op-mapping.md"
NPU_FOLDER = "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def run(command: str, database: Path) -> subprocess.CompletedProcess[str]:
    words = [str(database) if word == "DB" else word for word in re.findall(r'"[^"]*"|\S+', command)]
    words = [word.strip('"') for word in words]
    assert words[0] == "opatlas"
    wide = {**os.environ, "COLUMNS": "100"}
    command = [sys.executable, "-m", "opatlas.cli.main", *words[1:]]
    return subprocess.run(command, env=wide, capture_output=True, text=True)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    gelu = launch(type="Gelu", shapes="16,1024", dtypes="DT_BF16", formats="ND", out="16,1024")
    capture = write_capture(tmp_path / "kernel_details.csv", [launch(type="MatMulV2"), gelu])
    folder = tmp_path / NPU_FOLDER
    done = run(f"opatlas ingest --profiling-path {capture} --database-path DB", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_output_of_the_commands_matches_the_page(database: Path) -> None:
    look, check = (command.strip() for command in blocks(PAGE, "sh"))
    _, missing, misspelt = blocks(PAGE, "text")
    assert missing.strip() in run(look, database).stdout
    line = blocks(PAGE, "yaml")[1]
    path = database / "op_mapping.yaml"
    without = path.read_text()
    path.write_text(without + line.replace("kernel_type: Gelu", "kernel_type: Gelu, query_mode: element_wise"))
    done = run(check, database)
    assert done.returncode == 1
    number = len(path.read_text().splitlines())
    assert re.sub(r"yaml:\d+", f"yaml:{number}", misspelt.strip()) in done.stdout
    path.write_text(without + line)
    assert run(check, database).returncode == 0
    assert "Gelu" not in run(look, database).stdout
