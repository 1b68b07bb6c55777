"""`pytest shapes/` adds theory rows: a test for each kernel type."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernel_type" in metafunc.fixturenames:
        theory: Any = metafunc.config.pluginmanager.get_plugin("opatlas-theory")
        metafunc.parametrize("kernel_type", list(theory.plan.kernels))


@pytest.fixture(scope="session")
def theory(request: pytest.FixtureRequest) -> Any:
    """The part of the session that adds rows; see plugins/theory.py."""
    return request.config.pluginmanager.get_plugin("opatlas-theory")
