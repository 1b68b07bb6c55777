"""What a session says before its rows run, and which rows it was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from doc_commands import ROOT
from opatlas.bench import test_norm
from opatlas.plugins.choice import requested_rows


@pytest.mark.parametrize(
    ("arguments", "keyword", "asked"),
    [
        (["bench"], "", {"RmsNorm", "Unknown"}),
        (["bench/test_norm.py"], "", {"RmsNorm"}),
        (["bench/test_norm.py::test_rms_norm"], "", {"RmsNorm"}),
        (["bench/test_matmul.py"], "", set()),
        (["bench/test_matmul.py", "bench/formulas", "bench"], "", {"RmsNorm"}),
        (["no/such/place"], "", {"RmsNorm", "Unknown"}),
        (["bench"], "rms_norm", {"RmsNorm"}),
        (["bench"], "Unknown or rms", {"RmsNorm", "Unknown"}),
    ],
)
def test_rows_are_requested_by_file_and_by_k(arguments: list[str], keyword: str, asked: set[str]) -> None:
    """In xdist's controller too, which collects nothing and knows the replays of bench/ alone."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(keyword=keyword), args=arguments, invocation_params=SimpleNamespace(dir=ROOT)
    )
    requested = requested_rows(config, {"RmsNorm": test_norm.test_rms_norm})
    assert {name for name in ("RmsNorm", "Unknown") if requested(name, f"{name}-1x2")} == asked
