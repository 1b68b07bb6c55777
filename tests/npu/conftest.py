"""The environment of torch_npu."""

from __future__ import annotations

import pytest
from npu_environment import Unavailable, python_with_torch_npu


def pytest_addoption(parser):
    parser.addoption(
        "--write-npu-proofs",
        action="store_true",
        help="write bench/facts/npu_proofs.json anew, from the answers of the real torch_npu (default: compare)",
    )


@pytest.fixture(scope="session")
def npu_python(request, tmp_path_factory):
    """The Python of an environment with the real torch_npu; it stays in pytest's cache folder."""
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("npu") if cache is not None else tmp_path_factory.mktemp("npu")
    try:
        return python_with_torch_npu(folder)
    except Unavailable as error:
        pytest.skip(str(error))
