"""Tests that need an NVIDIA GPU; they skip without one."""

from __future__ import annotations

import pytest

from bench.devices.at_hand import devices_at_hand
from bench.instruments import InstrumentMissing
from bench.job import MeasureSettings
from database.errors import OpAtlasError
from database.versions import cuda_version


def pytest_addoption(parser):
    parser.addoption(
        "--write-gpu-calls",
        action="store_true",
        help="write bench/kernels/gpu_calls.json anew, from what ran here (default: compare)",
    )


@pytest.fixture(scope="session")
def gpu():
    """The first GPU at hand."""
    if cuda_version() is None:
        pytest.skip("torch was built without CUDA")
    try:
        return devices_at_hand("cuda")[0]
    except OpAtlasError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def runner(gpu):
    """Three cold samples of each row by CUPTI, in this process."""
    from bench.runner import Runner

    try:
        return Runner(gpu, MeasureSettings(repeat_count=3, instrument="cupti"))
    except InstrumentMissing as error:
        pytest.skip(str(error))
