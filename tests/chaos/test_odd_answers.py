"""A device process with wrong or late answers: no row gets the duration of another."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import odd_device
import pytest

from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.device_process import DeviceProcess

ODD = int(odd_device.ODD)
#: Of a row whose answer never comes; of all others.
TIMEOUT_S = 1.0
PATIENT_S = 300.0


class Odd:
    """A launcher that starts odd_device.py in the place of a device process."""

    patience_s = 1.0

    def __init__(self, way: str) -> None:
        self._way = way
        self.starts = 0

    def command(self, words: Sequence[str]) -> list[str]:
        self.starts += 1
        # The descriptor follows the name of the module.
        fd = words[words.index("opatlas.run.process.device_main") + 1]
        return [sys.executable, odd_device.__file__, fd, self._way]


def job(size: int, timeout_s: float = PATIENT_S) -> Job:
    return Job("module", "module.py", "test_it", "Odd", {"Input Shapes": str(size)}, timeout_s)


def sample(outcome: RowOutcome) -> float | None:
    return outcome.measurement.samples_us[0] if outcome.measurement else None


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DeviceProcess]]:
    monkeypatch.setenv("PYTHONPATH", str(Path(odd_device.__file__).parent))
    started: list[DeviceProcess] = []
    yield started
    for device in started:
        device.close()


def odd(devices: list[DeviceProcess], way: str) -> tuple[DeviceProcess, Odd]:
    launcher = Odd(way)
    devices.append(DeviceProcess(DeviceSpec("odd"), MeasureSettings(), launcher))
    return devices[0], launcher


@pytest.mark.parametrize(
    ("way", "status", "starts"),
    [
        # The second answer comes before the next job is sent, or after: that gets a fresh process either way.
        ("answers_twice", Status.MEASURED, 2),
        # A thread of an earlier row may have sent these: the row is tried once more.
        ("answers_for_another", Status.CRASHED, 3),
        ("replays_its_answer_to_the_row_before", Status.CRASHED, 3),
        ("answers_without_a_job", Status.CRASHED, 2),
        ("answers_unreadably", Status.CRASHED, 2),
        ("answers_half", Status.TIMEOUT, 2),
        ("ends_with_one", Status.CRASHED, 2),
        ("kills_its_keeper", Status.CRASHED, 2),
    ],
)
def test_an_odd_answer_costs_its_row_at_most(
    devices: list[DeviceProcess], way: str, status: Status, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALICE", str(tmp_path / "ran"))
    monkeypatch.setenv("ORPHAN", str(tmp_path / "orphan"))
    device, launcher = odd(devices, way)
    of_odd_s = TIMEOUT_S if status is Status.TIMEOUT else PATIENT_S
    outcomes = {size: device.run(job(size, of_odd_s if size == ODD else PATIENT_S)) for size in (1, ODD, 3, 4)}
    assert {size: outcome.status for size, outcome in outcomes.items()} == {
        **dict.fromkeys((1, 3, 4), Status.MEASURED),
        ODD: status,
    }
    assert all(sample(outcome) in (None, size) for size, outcome in outcomes.items())
    assert launcher.starts == starts
    if way == "ends_with_one":
        assert outcomes[ODD].exit_code == 1
    # Nothing that the process sends is unpickled.
    assert not (tmp_path / "ran").exists()
    if way == "kills_its_keeper":
        assert "keeper" in outcomes[ODD].reason
        assert not Path("/proc", (tmp_path / "orphan").read_text()).exists()


def test_a_process_that_has_begun_takes_the_first_job_and_ends_where_there_is_none(
    devices: list[DeviceProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody waits so long.
    monkeypatch.setattr("opatlas.run.process.ranks.END_TIMEOUT_S", 600.0)
    device, launcher = odd(devices, "answers_half")
    device.begin()
    device.close()
    device.begin()
    device.begin()
    assert sample(device.run(job(1))) == 1
    assert launcher.starts == 2


def test_a_process_that_cannot_be_started_is_reported_as_a_lost_device(
    devices: list[DeviceProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With no more processes, or a Python that must not be executed: one reason, not the traceback of every row."""
    python = tmp_path / "python"
    python.write_text("")
    device, _ = odd(devices, "answers_twice")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(DeviceGone, match="Permission denied"):
        device.run(job(1))


def test_a_running_process_that_closed_its_connection_is_not_waited_for_long(
    devices: list[DeviceProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("END_TIMEOUT_S", "PROFILED_END_TIMEOUT_S"):
        monkeypatch.setattr(f"opatlas.run.process.ranks.{name}", 0.5)
    device, _ = odd(devices, "closes_and_goes_on")
    # With ten minutes for the row, it would be a timeout if the connection's end were not seen.
    outcome = device.run(job(ODD, timeout_s=600))
    assert (outcome.status, sample(outcome)) == (Status.CRASHED, None)
    assert "closed its connection" in outcome.reason
    assert sample(device.run(job(3))) == 3
