"""The fuzzers of tests/fuzz: the rules of their targets hold, and they find planted bugs."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import planted_bugs
import pytest

from tests.fuzz.engine import ROOT, fuzz
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS

#: For each target, as in `make fuzz`. CI takes less.
_SECONDS = float(os.environ.get("OPATLAS_FUZZ_SECONDS", "60"))
_PLANTED_SECONDS = 1


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_good_inputs_hold(target, tmp_path):
    for number, data in enumerate(target.seeds()):
        folder = tmp_path / str(number)
        folder.mkdir()
        target.check(data, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_hold(name):
    """OPATLAS_FUZZ_SEED=7 draws other inputs; the ones that find something are kept below .fuzz/."""
    seed = int(os.environ.get("OPATLAS_FUZZ_SEED", random.randrange(1 << 32)))
    outcome = fuzz(name, seed, _SECONDS)
    assert not outcome.findings, "\n\n".join(map(str, outcome.findings))
    assert outcome.inputs


def _planted(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    return fuzz(f"planted_bugs:{name}", 1, _PLANTED_SECONDS, findings=tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("raises", "RecursionError"),
        ("crashes", "ends its process"),
        pytest.param("does_not_hold", "Broken", marks=pytest.mark.slow),
        pytest.param("hangs", "hangs", marks=pytest.mark.slow),
        pytest.param("fills_memory", "MemoryError", marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_found(name, kind, tmp_path, monkeypatch):
    outcome = _planted(name, tmp_path, monkeypatch)
    finding = outcome.findings[0]
    assert kind in finding.kind
    assert planted_bugs.MARK in finding.path.read_bytes()
    # The place in the code is reported, whatever ended the process.
    assert name in finding.text
    repeated = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", f"planted_bugs:{name}", "--repeat", str(finding.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert repeated.returncode
    assert name in repeated.stderr


def test_nothing_is_found_where_all_holds(tmp_path, monkeypatch):
    outcome = _planted("holds", tmp_path, monkeypatch)
    assert outcome.inputs
    assert not outcome.findings
    assert not list(tmp_path.iterdir())


def test_the_same_seed_draws_the_same_inputs():
    good = [b'{"a": 1, "b": [2, 3]}', b"1,2\n3,4\n"]

    def drawn(seed: int) -> list[bytes]:
        mutator = Mutator(seed, good)
        return [mutator.draw() for _ in range(200)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_targets_are_listed():
    listed = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(TARGETS)
