"""Imports of a process before its first row cost every session and every replacement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: torch's compiler, and the readers and writers of tables: half a second and more.
HEAVY = ("torch._dynamo", "pandas", "pyarrow")
CODE = f"""
import sys
from opatlas.isolation import device_main
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.engine import runner
impl.add, formulas.add
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_a_device_process_imports_neither_torchs_compiler_nor_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_endpoint_client_is_imported_at_its_first_use() -> None:
    code = "import sys, opatlas.plugins.models, opatlas.cli.diagnose; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
