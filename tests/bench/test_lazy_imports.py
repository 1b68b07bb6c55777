"""What a device process imports before its first row costs every session and every replacement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from bench import expected, impl, runner
impl.add, expected.add
print("torch._dynamo" in sys.modules)
"""


def test_the_kernels_do_not_bring_torchs_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
