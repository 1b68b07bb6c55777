"""The small rows of real captures, where these lie beside the checkout."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from replaying import replay_functions, runner

from bench.job import Job
from bench.registry import replay_spec
from bench.rows import ReplayRow
from database.schema import INPUT_SHAPES, INPUT_SLOTS, OUTPUT_SLOTS, Status
from database.signature import signature

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "data" / "ascend_profiler"
LARGEST_BYTES = 64 << 20


def captured_rows():
    """Module and name of the replay, kernel type, cells: each signature once."""
    functions = {
        kernel_type: name
        for name, function in replay_functions().items()
        for kernel_type in replay_spec(function).kernel_types
    }
    seen = set()
    for path in sorted(CAPTURES.glob("*/kernel_details*.csv")):
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                kernel_type, shapes = row.get("Type", ""), row.get(INPUT_SHAPES)
                if kernel_type not in functions or not shapes or shapes == "N/A":
                    continue
                cells = {column: row[column] for column in (*INPUT_SLOTS, *OUTPUT_SLOTS)}
                name = f"{kernel_type}-{signature(kernel_type, cells)}"
                if name not in seen:
                    seen.add(name)
                    yield pytest.param(functions[kernel_type], kernel_type, cells, id=name)


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures beside the checkout")
@pytest.mark.parametrize(("function", "kernel_type", "cells"), list(captured_rows()))
def test_captured_row(function, kernel_type, cells):
    device = torch.device("cpu")
    if ReplayRow(kernel_type, cells, device).bytes() > LARGEST_BYTES:
        pytest.skip("large")
    module, _, name = function.rpartition(".")
    outcome = runner().run(Job(module, "", name, kernel_type, cells, timeout_s=60))
    # None of them contradicts itself, so none may be refused.
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
