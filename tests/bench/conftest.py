"""An option of the tests of replays."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-refusals",
        action="store_true",
        help="write the reasons of tests/bench/refusals.txt anew (default: compare)",
    )
