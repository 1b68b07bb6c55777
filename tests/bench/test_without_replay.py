"""Every kernel type of real captures is replayed, or is told why not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from opatlas.engine.kernel_facts import WITHOUT_REPLAY, replays_of_bench
from opatlas.model.slots import EMPTY_WORDS

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "data" / "ascend_profiler"


def captured_types():
    found = set()
    for path in CAPTURES.rglob("*.csv"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                if "Task ID" in row:
                    found.add(row.get("Type") or row.get("OP Type") or "")
    return found - EMPTY_WORDS


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures beside the checkout")
def test_every_captured_type_is_replayed_or_told_why_not():
    assert len(captured_types()) > 60
    assert sorted(captured_types() - set(replays_of_bench()) - set(WITHOUT_REPLAY)) == []


#: What msmodeling's databases of an A3 have, under both names: no capture of it is here.
IN_DATABASES = {"mla_preprocess_0_mix_aic", "mla_preprocess"}


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures beside the checkout")
def test_nothing_is_told_of_types_that_no_capture_has():
    assert sorted(set(WITHOUT_REPLAY) - captured_types() - IN_DATABASES) == []


@pytest.mark.parametrize("kernel_type", WITHOUT_REPLAY)
def test_reason_follows_a_name(kernel_type):
    reason = WITHOUT_REPLAY[kernel_type]
    assert reason[0].islower()
    assert not reason.endswith(".")
    assert "\n" not in reason
