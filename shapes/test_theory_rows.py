"""The tests of `pytest shapes/`, which add theory rows. The tests of the code are in tests/theory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from opatlas.errors import OpAtlasError
from opatlas.theory.space import FLUSH_BUFFER_BYTES, GB


def test_theory_rows(kernel_type: str, theory: Any, record_property: Any) -> None:
    """Adds the theory rows of a kernel type."""
    try:
        result = theory.add(kernel_type)
    except OpAtlasError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    record_property("theory_rows", asdict(result))
    if result.added or result.existing:
        return
    if result.over_budget:
        needed = (result.smallest_bytes + FLUSH_BUFFER_BYTES) / GB
        pytest.fail(
            f"no row of {kernel_type} fits the memory budget: the smallest needs {needed:.2f} GB; raise --max-hbm-gb",
            pytrace=False,
        )
    if result.refused:
        pytest.skip(f"the {kernel_type} of this device refuses all {result.refused} rows")
    if result.missing:
        pytest.skip(f"none of the models has the parts of {kernel_type} ({', '.join(result.missing)})")
