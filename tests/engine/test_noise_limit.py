"""Rows that scatter more than a limit allows are measured again, and fail if they stay so."""

from __future__ import annotations

import argparse

import pytest
import torch
from replaying import job_of

from opatlas.devices.cpu import CpuDevice
from opatlas.devices.device import DeviceSpec
from opatlas.engine.formula import pointwise
from opatlas.engine.group import Group
from opatlas.engine.noise_limit import ATTEMPTS, apply_noise_limit, make_attempt
from opatlas.engine.registry import replays
from opatlas.engine.result_check import Checked
from opatlas.engine.runner import Runner
from opatlas.engine.sampling import Sampling
from opatlas.instruments.instrument import MeasureSettings, Samples
from opatlas.model.schema import Status
from opatlas.options import share

QUIET, NOISY = (10.0, 10.1, 10.2), (10.0, 15.0, 20.0)
ROW = "4 | FLOAT -> 4 | FLOAT"


@pointwise
def negated(x):
    return -x


@replays("Negated", npu=None)
def negates(row, replay):
    replay(torch.abs if row.cells.get("wrong") else torch.neg, row.tensor(0, 1, 2), expected=negated)


class Scripted:
    """An instrument on a machine that is noisy at times."""

    name = "scripted"

    def __init__(self, attempts):
        self.left = list(attempts)

    def sample(self, call, before_each, rule):
        call()
        return Samples(tuple(self.left.pop(0)))


@pytest.fixture
def run(monkeypatch):
    def run(attempts, max_noise=0.05, **cells):
        instrument = Scripted(attempts)
        monkeypatch.setattr(CpuDevice, "instrument", lambda device: instrument)
        runner = Runner(DeviceSpec("cpu"), MeasureSettings(cache="warm", max_noise=max_noise))
        job = job_of("Negated", ROW, f"{__name__}.negates")
        job.cells.update(cells)
        return runner.run(job), instrument.left

    return run


def test_a_quiet_row_is_measured_once(run):
    outcome, left = run([QUIET, NOISY])
    assert outcome.status is Status.MEASURED
    assert outcome.measurement.samples_us == QUIET
    assert outcome.reason == ""
    assert left == [NOISY]


def test_a_noisy_row_is_measured_again_and_reported(run):
    outcome, _ = run([NOISY, QUIET])
    assert outcome.status is Status.MEASURED
    assert outcome.measurement.samples_us == QUIET
    assert "33.3 %" in outcome.reason


def test_a_row_that_stays_noisy_fails_and_reports_its_measurement(run):
    outcome, left = run([NOISY] * (ATTEMPTS + 1))
    assert outcome.status is Status.NOISY
    assert outcome.measurement is None
    assert len(left) == 1
    assert outcome.reason.count("33.3 %") == ATTEMPTS
    assert "--max-noise 5 %" in outcome.reason


def test_without_a_limit_any_noise_is_measured(run):
    outcome, _ = run([NOISY, QUIET], max_noise=None)
    assert outcome.measurement.samples_us == NOISY


def test_unknown_noise_is_not_within_the_limit(run):
    outcome, left = run([(10.0, 10.0), QUIET])
    assert outcome.status is Status.NOISY
    assert "unknown noise" in outcome.reason
    assert left == [QUIET]


def test_a_wrong_result_is_failed_however_noisy(run):
    outcome, _ = run([NOISY] * ATTEMPTS, wrong="yes")
    assert outcome.status is Status.FAILED


class BesideANoisyRank(Group):
    """Rank 0's view of two, with a substitute for the other."""

    def gather(self, values):
        return [list(values), [0.5]]


def test_ranks_try_again_where_one_of_them_is_noisy():
    instrument = Scripted([QUIET] * ATTEMPTS)
    settings = MeasureSettings(cache="warm", max_noise=0.05)
    sampling = Sampling("Add", {}, CpuDevice(DeviceSpec("cpu"), settings), instrument, settings, BesideANoisyRank(0, 2))
    samples = sampling.take(lambda: None, None)
    assert instrument.left == []
    outcome = sampling.outcome(samples, Checked(4, 4))
    assert outcome.status is Status.NOISY
    assert outcome.reason.count("50 % in 3 samples") == ATTEMPTS


def test_the_limit_itself_is_within():
    (noise,) = {make_attempt(NOISY).noise}
    assert make_attempt(NOISY).is_within(noise)
    assert not make_attempt(NOISY).is_within(noise * 0.999)


def test_other_outcomes_stay_unchanged(run):
    failed, _ = run([QUIET], wrong="yes")
    assert apply_noise_limit(failed, 0.05, [make_attempt(NOISY)]) is failed


def test_a_noisy_row_is_not_a_known_failure():
    assert not Status.NOISY.expected_to_fail


@pytest.mark.parametrize(
    ("text", "number"), [("5%", 0.05), ("0.05", 0.05), (" 2.5 % ", 0.025), ("150%", 1.5), ("1", 1)]
)
def test_a_share_is_percent_or_a_number(text, number):
    assert share(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["5", "0", "0%", "-5%", "nan", "inf%", "%", "", "five"])
def test_a_value_that_is_not_a_share_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"5% or 0\.05"):
        share(text)
