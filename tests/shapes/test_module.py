"""`python -m shapes`, which is not how theory rows are added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), ([], 2), (["--rows", "3"], 2)])
def test_the_module_tells_what_to_run_instead(arguments: list[str], status: int) -> None:
    command = [sys.executable, "-m", "shapes", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == status
    told, other = (done.stderr, done.stdout) if status else (done.stdout, done.stderr)
    assert "`pytest shapes/`" in told
    assert other == ""
