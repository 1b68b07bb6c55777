"""Tests that need an NVIDIA GPU; they skip without one."""

from __future__ import annotations

import pytest

from opatlas.errors import OpAtlasError
from opatlas.row.versions import cuda_version
from opatlas.run.devices.device import InstrumentMissing, available_devices
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.process.device_process import DeviceProcess


def pytest_addoption(parser):
    parser.addoption(
        "--write-gpu-calls",
        action="store_true",
        help="write bench/facts/gpu_calls.json anew, from the operators that ran here (default: compare)",
    )
    parser.addoption(
        "--write-implementation-proofs",
        action="store_true",
        help="write the measurements of this machine into bench/facts/implementation_proofs.json (default: compare)",
    )


@pytest.fixture(scope="session")
def gpu():
    """The first GPU at hand."""
    if cuda_version() is None:
        pytest.skip("torch was built without CUDA")
    try:
        return available_devices("cuda")[0]
    except OpAtlasError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def runner(gpu):
    """Three cold samples of each row by CUPTI, in this process."""
    from opatlas.run.runner import Runner

    try:
        return Runner(gpu, MeasureSettings(repeat_count=3, instrument="cupti"))
    except InstrumentMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def processes(gpu, worker_id, tmp_path_factory):
    """A device process for each implementation, opened when it is needed; one is open at a time.

    The lock of a device lies in the temporary folder: workers of pytest-xdist have one each, and wait for nobody.
    """
    opened: dict[str, DeviceProcess] = {}
    own = pytest.MonkeyPatch()
    if worker_id != "master":
        own.setenv("TMPDIR", str(tmp_path_factory.mktemp("device")))

    def process_of(name: str) -> DeviceProcess:
        if name not in opened:
            while opened:
                opened.popitem()[1].close()
            opened[name] = DeviceProcess(gpu, MeasureSettings(repeat_count=3, instrument="cupti"))
        return opened[name]

    yield process_of
    while opened:
        opened.popitem()[1].close()
    own.undo()
