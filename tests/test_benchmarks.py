"""The scripts of tests/benchmarks run, with few rows; people look at their measurements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("bench_merge", "--rows=50", "--rounds=1"),
        ("bench_combine", "--rows=50", "--rounds=1"),
        ("bench_collect", "--rows=50", "--rounds=1"),
        ("bench_replay", "--rows=20", "--rounds=1"),
        ("bench_gpu_session", "--device=cpu", "--rows=5", "--most-mb=0.1"),
        ("bench_verdicts", "--rows=1", "--extra=0.3", "--repeat-count=2", "--cache=warm"),
        ("bench_gpu_repeat", "database/data/Intel_Xeon_Processor/torch/torch2.11.0_cpu", "--device=cpu", "--rows=3"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_benchmark_runs(arguments: tuple[str, ...]) -> None:
    """Status 1: a target is missed, which few rows may do."""
    script, *options = arguments
    command = [sys.executable, "-m", f"tests.benchmarks.{script}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "target" in done.stdout
