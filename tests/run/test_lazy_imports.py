"""Imports of a process before its first row cost every session and every replacement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: torch's compiler, and the readers and writers of tables: half a second and more.
HEAVY = ("torch._dynamo", "pandas", "pyarrow")
CODE = f"""
import sys
from opatlas.run.process import device_main
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run import runner
impl.add, formulas.add
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_a_device_process_imports_neither_torchs_compiler_nor_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_endpoint_client_is_imported_at_its_first_use() -> None:
    modules = "opatlas.outer.generation.session_models, opatlas.outer.diagnosis.command"
    code = f"import sys, {modules}; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("words", ["MatMulV2 64,7168 4608,7168", "MatMulV2 777,7168 4608,7168", "all_reduce 1048576 2"])
def test_an_answer_of_a_query_imports_no_pandas(words: str) -> None:
    code = "import sys; from opatlas.cli.main import main; main(sys.argv[1:]); print('pandas' in sys.modules)"
    command = [sys.executable, "-c", code, "query", "NVIDIA_H200", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "duration(us)" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"
