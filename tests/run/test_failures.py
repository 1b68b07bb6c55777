"""Outcomes of rows that raise: clean reasons, pytest's own verdicts, groups of exceptions."""

from __future__ import annotations

import sys
import unittest

import pytest
import torch
from opatlas.bench import formulas
from replaying import job_of, runner

from opatlas.row.errors import InvalidRow
from opatlas.row.status import Status
from opatlas.run.devices.fatal_errors import fatal_device_error, is_out_of_memory
from opatlas.run.job import MOST_CHARACTERS, MOST_CHARACTERS_OF_DETAIL
from opatlas.run.outcome import error_text, outcome_of
from opatlas.run.registry import replays
from opatlas.text import cut_middle

POISON = "CUDA error: an illegal memory access was encountered"
FULL = "CUDA out of memory. Tried to allocate 20.00 MiB"


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "text", ["lone \udcff surrogate", "\x1b[2Jcleared", "nul \0", "a\rb", "\u202eturned", "x" * 10**7]
)
@pytest.mark.parametrize("kind", [RuntimeError, InvalidRow])
def test_a_reason_is_one_printable_line_whatever_an_exception_says(kind: type[Exception], text: str) -> None:
    outcome = outcome_of(kind(text))
    assert outcome.reason.isprintable()
    assert len(outcome.reason) <= MOST_CHARACTERS
    assert len(outcome.detail) <= MOST_CHARACTERS_OF_DETAIL
    assert (outcome.reason + outcome.detail).encode()


def test_an_exception_without_a_readable_message_fails_its_row() -> None:
    outcome = outcome_of(Mute())
    assert outcome.status is Status.FAILED
    assert outcome.reason.startswith("Mute: ")


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    cut = cut_middle("begin" + "x" * 1000 + "end", 200)
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert len(cut) <= 200


@replays("Skipping", npu=None)
def skipping(row, replay):
    pytest.skip("no such library")


@replays("Unittest", npu=None)
def unittest_skipping(row, replay):
    raise unittest.SkipTest("no such library")


@replays("Expecting", npu=None)
def expecting_failure(row, replay):
    pytest.xfail("known to be wrong")


@replays("Failing", npu=None)
def failing(row, replay):
    pytest.fail("too bad")


@pytest.mark.parametrize(
    ("function", "status", "said"),
    [
        (skipping, Status.SKIPPED, "no such library"),
        (unittest_skipping, Status.SKIPPED, "no such library"),
        (expecting_failure, Status.FAILED, "known to be wrong"),
        (failing, Status.FAILED, "too bad"),
    ],
)
def test_outcomes_of_pytest_mean_the_same_in_a_row(function, status, said) -> None:
    outcome = runner().run(job_of("Any", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.{function.__name__}"))
    assert outcome.status is status
    assert said in outcome.reason


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no exception groups before 3.11")
class TestGroupsOfExceptions:
    def group(self, *errors: Exception, depth: int = 1) -> Exception:
        inner: Exception = ExceptionGroup("several", errors)  # noqa: F821
        return inner if depth == 1 else self.group(inner, depth=depth - 1)

    @pytest.mark.parametrize("depth", [1, 2, 40])
    def test_a_device_error_in_one_counts(self, depth: int) -> None:
        outcome = outcome_of(self.group(ValueError("something else"), RuntimeError(POISON), depth=depth))
        assert outcome.status is Status.DEVICE_ERROR

    def test_the_cause_of_a_member_counts(self) -> None:
        member = ValueError("later")
        member.__cause__ = RuntimeError(POISON)
        assert fatal_device_error(error_text(self.group(member)))

    def test_running_out_of_memory_in_one_counts(self) -> None:
        outcome = outcome_of(self.group(RuntimeError(FULL)))
        assert outcome.status is Status.OOM
        assert is_out_of_memory(error_text(self.group(MemoryError(), depth=2)))

    def test_members_other_than_device_errors_fail_the_row(self) -> None:
        assert outcome_of(self.group(ValueError("a"), TypeError("b"))).status is Status.FAILED


@replays("Neg", npu=None)
def with_a_plain_function(row, replay):
    replay(torch.neg, row.tensor(0), expected=torch.neg)


def test_a_function_without_a_kind_of_formula_is_named_with_the_kinds():
    outcome = runner().run(job_of("Neg", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.with_a_plain_function"))
    assert (outcome.status, outcome.detail) == (Status.FAILED, "")
    assert "neg" in outcome.reason
    assert "@pointwise" in outcome.reason


@replays("Neg", npu=None)
def with_a_misspelt_formula(row, replay):
    replay(torch.neg, row.tensor(0), expected=formulas.negg)


def test_a_misspelt_function_gets_a_suggestion_with_the_line_of_the_replay():
    outcome = runner().run(job_of("Neg", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.with_a_misspelt_formula"))
    assert outcome.status is Status.FAILED
    assert "negate" in outcome.reason
    files = [line.split('"')[1] for line in outcome.detail.splitlines() if line.startswith("  File")]
    assert [file.rpartition("/")[2] for file in files] == ["test_failures.py", "function_lookup.py"]
