"""Samples: reproducible, without duplicates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opatlas.shapes.models import QWEN3_0_6B
from opatlas.shapes.strategies import draw_rows, space_rows

from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB, Space

REPOSITORY = Path(__file__).parents[2]
PATTERN = built_in_catalog().kernel("Add").patterns[0]
ADDS = space_rows([Space("Add", PATTERN, PATTERN.forms, Targets((QWEN3_0_6B,)), 32 * GB)])


@pytest.mark.parametrize(("seed", "count"), [(0, 1), (0, 60), (2**32, 25), (-1, 25)])
def test_the_same_seed_gives_the_same_rows(seed: int, count: int) -> None:
    sample = draw_rows(ADDS, count, seed=seed)
    assert list(sample.items()) == list(draw_rows(ADDS, count, seed=seed).items())
    assert len(sample) == count
    assert all(row.signature() == signature for signature, row in sample.items())


def test_another_process_gives_the_same_rows() -> None:
    """Whatever modules it has loaded: hypothesis mixes constants of loaded modules into some draws."""
    script = (
        "from opatlas.theory.plan import Request, plan_kernel, read_table; "
        "from opatlas.theory.sources import resolve_targets; from opatlas.shapes.strategies import sample_rows; "
        "from opatlas.theory.catalog import built_in_catalog; from opatlas.data.database import Database; import hashlib; "  # noqa: E501
        "kernels = [built_in_catalog().kernel(name) for name in ('MatMulV2', 'FusedInferAttentionScore')]; "
        "run = Request(resolve_targets([]), 700, 3, 32 * 10**9, sample_rows); "
        "plans = [plan_kernel(k, read_table(Database('none'), k.kernel_type), run).signatures for k in kernels]; "
        "print(hashlib.sha256(repr(plans).encode()).hexdigest())"
    )
    more = "import opatlas.data.journal, opatlas.cli.ingest; " + script
    digests = {
        subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        for code in (script, more)
    }
    assert len(digests) == 1


def test_hypothesis_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        "from opatlas.shapes.starter import write_starter; from opatlas.data.database import Database; "
        "write_starter(Database('database'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["database"]
