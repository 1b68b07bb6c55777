"""Which launches of a call are the row's kernel: durations and counters are theirs, helpers are listed apart."""

from __future__ import annotations

import pytest
from captures import cells

from opatlas.capture.single_launches import Launch
from opatlas.row.columns import BASE
from opatlas.run.instruments.attribution import (
    AnotherCase,
    NoSamples,
    OwnKernel,
    ProfiledSamples,
    own_kernel,
    whole_call,
)

ROW = cells("8,4", "8,4")
UNKNOWN = dict.fromkeys(BASE, "N/A")


def launch(kernel_type: str, us: float, row: dict[str, str] = ROW, **counters: float) -> Launch:
    return Launch("0", 0, us, kernel_type, row, counters, f"aclnn{kernel_type}")


def own(*calls: tuple[Launch, ...], kernel_type: str = "Sort") -> OwnKernel:
    found = own_kernel(kernel_type, ROW, ProfiledSamples(calls))
    assert isinstance(found, OwnKernel), found
    return found


def test_helpers_have_no_part_in_durations_and_counters() -> None:
    found = own(
        (launch("Cast", 3.0, cycles=9.0), launch("Sort", 10.0, cycles=1.0), launch("Cast", 1.0)),
        (launch("Cast", 5.0, cycles=9.0), launch("Sort", 12.0, cycles=3.0), launch("Cast", 1.0)),
    )
    assert found.durations_us == (10.0, 12.0)
    assert found.counters == {"cycles": 2.0}
    assert found.device_kernels == 3
    assert found.helper_kernels == {"Cast": pytest.approx(5.0)}
    assert (found.ran_as, found.assumptions) == (None, ())


def test_an_implementation_is_measured_with_all_launches_of_a_call() -> None:
    calls = (
        (launch("my_norm", 10.0, cycles=2.0), launch("my_copy", 1.0)),
        (launch("my_norm", 12.0), launch("my_copy", 2.0)),
    )
    found = whole_call(ProfiledSamples(calls))
    assert isinstance(found, OwnKernel)
    assert found.durations_us == (11.0, 14.0)
    assert found.kernel_names == ("my_norm", "my_copy")
    assert (found.device_kernels, found.helper_kernels, found.ran_as) == (2, {}, None)
    assert isinstance(whole_call(ProfiledSamples((*calls, (launch("my_norm", 10.0),)))), NoSamples)
    assert isinstance(whole_call(ProfiledSamples((*calls, ()))), NoSamples)


def test_of_several_launches_of_its_type_the_rows_case_counts() -> None:
    other = cells("16,4", "16,4")
    found = own((launch("Sort", 99.0, other), launch("Sort", 10.0)))
    assert found.durations_us == (10.0,)
    assert found.helper_kernels == {"Sort": 99.0}


def test_the_rows_case_launched_twice_gives_their_mean_with_a_note() -> None:
    found = own((launch("Sort", 9.0), launch("Sort", 11.0)))
    assert found.durations_us == (10.0,)
    assert found.helper_kernels == {}
    (assumption,) = found.assumptions
    assert "2 times" in assumption


@pytest.mark.parametrize(
    ("asked", "ran"),
    [("AddAiCore", "Add"), ("Add", "AddAicore"), ("GatherV2", "GatherV3"), ("MatMulV2", "MatMulV3")],
)
def test_a_sibling_runs_in_its_place(asked: str, ran: str) -> None:
    found = own((launch("Cast", 3.0), launch(ran, 10.0)), kernel_type=asked)
    assert found.durations_us == (10.0,)
    assert found.ran_as is not None
    assert (found.ran_as.kernel_type, found.ran_as.cells) == (ran, ROW)


def test_its_own_type_comes_before_a_sibling() -> None:
    found = own((launch("MatMulV3", 3.0), launch("MatMulV2", 10.0)), kernel_type="MatMulV2")
    assert (found.durations_us, found.ran_as) == ((10.0,), None)
    assert found.helper_kernels == {"MatMulV3": 3.0}


@pytest.mark.parametrize("ran", ["Sort", "SortAiCore"])
def test_a_launch_with_other_tensors_is_never_taken(ran: str) -> None:
    found = own_kernel("Sort", ROW, ProfiledSamples(((launch(ran, 10.0, cells("8,8", "8,4")),),)))
    assert isinstance(found, AnotherCase)
    for words in (ran, "input slot 0", "(8,4) BF16 ND", "(8,8) BF16 ND"):
        assert words in found.reason


def test_other_kernels_alone_are_named() -> None:
    found = own_kernel("Sort", ROW, ProfiledSamples(((launch("Cast", 1.0), launch("TopK", 2.0)),)))
    assert isinstance(found, AnotherCase)
    assert "Cast + TopK" in found.reason


def test_a_launch_without_tensors_is_taken_and_reported() -> None:
    found = own((launch("Sort", 10.0, UNKNOWN),))
    assert found.durations_us == (10.0,)
    assert len(found.assumptions) == 2
    two = own_kernel("Sort", ROW, ProfiledSamples(((launch("Sort", 10.0, UNKNOWN), launch("Sort", 1.0, UNKNOWN)),)))
    assert isinstance(two, NoSamples)
    assert own((launch("Sort", 99.0, UNKNOWN), launch("Sort", 10.0))).durations_us == (10.0,)
