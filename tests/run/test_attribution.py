"""Samples found again in a profile, by marks; and which launches of a call are the row's kernel."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from captures import cells, launch as launch_line, write_capture
from hypothesis import given

from opatlas.capture.single_launches import Launch, read_launches
from opatlas.row.columns import BASE, INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES
from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from opatlas.run.instruments.attribution import (
    BEGIN_MARK,
    END_MARK,
    MARK_TYPE,
    MOST_ROWS,
    AnotherCase,
    NoSamples,
    OwnKernel,
    PendingSamples,
    ProfiledRow,
    ProfiledSamples,
    attribute,
    dimensions,
    own_kernel,
    parse_row_mark,
    row_mark,
    whole_call,
)


class Profile:
    """Writes launches one after the other, 10 us apart."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def kernel(self, kernel_type: str, shapes: str, us: float = 1.0, device: str = "0") -> None:
        cells = {**dict.fromkeys(BASE, ""), INPUT_SHAPES: f'"{shapes}"', INPUT_DTYPES: "FLOAT", INPUT_FORMATS: "ND"}
        at = 10_000 * len(self.launches)
        self.launches.append(Launch(device, at, us, kernel_type, cells, {}))

    def mark(self, shape: tuple[int, ...]) -> None:
        self.kernel(MARK_TYPE, dimensions(shape))

    def row(self, number: int, samples: list[list[float]], noise: random.Random | None = None) -> None:
        """A row as the device runs it: warm-up and set-up, then samples of some kernels each, then the check."""
        self.kernel("Add", str(number), 999.0)
        self.mark(row_mark(number))
        for kernels in samples:
            for _ in range(noise.randrange(3) if noise else 1):
                self.kernel("ZerosLike", "50331648", 40.0)
            self.mark(BEGIN_MARK)
            for us in kernels:
                self.kernel("Add", str(number), us)
            self.mark(END_MARK)
        self.kernel("Cast", str(number), 777.0)


def asked(number: int, samples: int) -> ProfiledRow:
    cells = {INPUT_SHAPES: str(number), INPUT_DTYPES: "FLOAT", INPUT_FORMATS: "ND"}
    return ProfiledRow("Add", cells, PendingSamples(number, samples))


def durations_of(found: object) -> list[list[float]]:
    assert isinstance(found, ProfiledSamples)
    return [[launch.duration_us for launch in call] for call in found.calls]


durations = st.lists(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=2), min_size=1, max_size=4)


@given(st.lists(durations, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_each_row_gets_its_own_samples_and_nothing_else(rows: list[list[list[float]]], noise: random.Random) -> None:
    profile = Profile()
    for number, samples in enumerate(rows):
        profile.row(number, samples, noise)
    found = attribute(profile.launches, [asked(number, len(samples)) for number, samples in enumerate(rows)])
    for samples, row in zip(rows, found, strict=True):
        assert durations_of(row) == samples


@given(st.data())
def test_a_profile_that_lost_lines_never_gives_a_wrong_duration(data: st.DataObject) -> None:
    profile = Profile()
    rows = [[[1.0], [1.0], [1.0]], [[2.0], [2.0]], [[3.0], [3.0]]]
    for number, samples in enumerate(rows):
        profile.row(number, samples)
    lost = data.draw(st.sets(st.integers(0, len(profile.launches) - 1), max_size=4))
    kept = [launch for place, launch in enumerate(profile.launches) if place not in lost]
    for number, row in enumerate(attribute(kept, [asked(number, len(s)) for number, s in enumerate(rows)])):
        if isinstance(row, ProfiledSamples):
            assert durations_of(row) == rows[number]


def test_another_devices_kernels_do_not_come_between() -> None:
    profile = Profile()
    profile.row(0, [[5.0], [6.0]])
    ours = list(profile.launches)
    for launch in ours:
        profile.kernel("Add", "0", 500.0, device="1")
        profile.launches[-1] = Launch("1", launch.start_ns + 1, 500.0, "Add", launch.cells, {})
    profile.launches.sort(key=lambda launch: launch.start_ns)
    (found,) = attribute(profile.launches, [asked(0, 2)])
    assert durations_of(found) == [[5.0], [6.0]]


def reason(profile: Profile, *rows: ProfiledRow) -> str:
    found = attribute(profile.launches, rows)[-1]
    assert isinstance(found, NoSamples)
    return found.reason


def test_inconsistent_records_are_not_a_measurement() -> None:
    profile = Profile()
    profile.row(0, [[1.0], [1.0]])
    assert {"2", "3"} <= set(re.findall(r"\d+", reason(profile, asked(0, 3))))
    nothing = reason(profile, asked(1, 2))
    profile.row(1, [[1.0], []])
    assert reason(profile, asked(1, 2)) != nothing
    profile.row(2, [[1.0], [1.0, 1.0]])
    assert "Add and Add+Add" in reason(profile, asked(2, 2))
    assert reason(Profile(), asked(0, 1)) == nothing


def test_marks_of_older_stacks_have_another_name() -> None:
    """Where a graph was captured, CANN called the kernel NegAiCore."""
    profile = Profile()
    profile.row(0, [[5.0], [6.0]])
    launches = [
        replace(launch, kernel_type="NegAiCore") if launch.kernel_type == MARK_TYPE else launch
        for launch in profile.launches
    ]
    (found,) = attribute(launches, [asked(0, 2)])
    assert durations_of(found) == [[5.0], [6.0]]


def test_marks_distinguish_rows() -> None:
    marks = [row_mark(number) for number in range(MOST_ROWS)]
    assert len(set(marks)) == MOST_ROWS
    assert [parse_row_mark(dimensions(mark)) for mark in marks] == list(range(MOST_ROWS))
    assert {parse_row_mark(dimensions(shape)) for shape in (BEGIN_MARK, END_MARK)} == {None}
    assert [parse_row_mark(text) for text in ("", "103", "103,0,1", "103,33,1", "103,1,x", "104,1,1")] == [None] * 6
    with pytest.raises(ValueError, match=f"rows 0 to {MOST_ROWS - 1}"):
        row_mark(MOST_ROWS)


ROW = cells("8,4", "8,4")
UNKNOWN = dict.fromkeys(BASE, "N/A")


def made(kernel_type: str, us: float, row: dict[str, str] = ROW, **counters: float) -> Launch:
    return Launch("0", 0, us, kernel_type, row, counters, f"aclnn{kernel_type}")


def own(*calls: tuple[Launch, ...], kernel_type: str = "Sort") -> OwnKernel:
    found = own_kernel(kernel_type, ROW, ProfiledSamples(calls))
    assert isinstance(found, OwnKernel), found
    return found


def test_helpers_have_no_part_in_durations_and_counters() -> None:
    found = own(
        (made("Cast", 3.0, cycles=9.0), made("Sort", 10.0, cycles=1.0), made("Cast", 1.0)),
        (made("Cast", 5.0, cycles=9.0), made("Sort", 12.0, cycles=3.0), made("Cast", 1.0)),
    )
    assert found.durations_us == (10.0, 12.0)
    assert found.counters == {"cycles": 2.0}
    assert found.device_kernels == 3
    assert found.helper_kernels == {"Cast": pytest.approx(5.0)}
    assert (found.ran_as, found.assumptions) == (None, ())


def test_an_implementation_is_measured_with_all_launches_of_a_call() -> None:
    calls = ((made("my_norm", 10.0, cycles=2.0), made("my_copy", 1.0)), (made("my_norm", 12.0), made("my_copy", 2.0)))
    found = whole_call(ProfiledSamples(calls))
    assert isinstance(found, OwnKernel)
    assert found.durations_us == (11.0, 14.0)
    assert found.kernel_names == ("my_norm", "my_copy")
    assert (found.device_kernels, found.helper_kernels, found.ran_as) == (2, {}, None)
    assert isinstance(whole_call(ProfiledSamples((*calls, (made("my_norm", 10.0),)))), NoSamples)
    assert isinstance(whole_call(ProfiledSamples((*calls, ()))), NoSamples)


def test_of_several_launches_of_its_type_the_rows_case_counts() -> None:
    other = cells("16,4", "16,4")
    found = own((made("Sort", 99.0, other), made("Sort", 10.0)))
    assert found.durations_us == (10.0,)
    assert found.helper_kernels == {"Sort": 99.0}


def test_the_rows_case_launched_twice_gives_their_mean_with_a_note() -> None:
    found = own((made("Sort", 9.0), made("Sort", 11.0)))
    assert found.durations_us == (10.0,)
    assert found.helper_kernels == {}
    (assumption,) = found.assumptions
    assert "2 times" in assumption


@pytest.mark.parametrize(
    ("asked", "ran"), [("AddAiCore", "Add"), ("Add", "AddAicore"), ("GatherV2", "GatherV3"), ("MatMulV2", "MatMulV3")]
)
def test_a_sibling_runs_in_its_place(asked: str, ran: str) -> None:
    found = own((made("Cast", 3.0), made(ran, 10.0)), kernel_type=asked)
    assert found.durations_us == (10.0,)
    assert found.ran_as is not None
    assert (found.ran_as.kernel_type, found.ran_as.cells) == (ran, ROW)


def test_its_own_type_comes_before_a_sibling() -> None:
    found = own((made("MatMulV3", 3.0), made("MatMulV2", 10.0)), kernel_type="MatMulV2")
    assert (found.durations_us, found.ran_as) == ((10.0,), None)
    assert found.helper_kernels == {"MatMulV3": 3.0}


@pytest.mark.parametrize("ran", ["Sort", "SortAiCore"])
def test_a_launch_with_other_tensors_is_never_taken(ran: str) -> None:
    found = own_kernel("Sort", ROW, ProfiledSamples(((made(ran, 10.0, cells("8,8", "8,4")),),)))
    assert isinstance(found, AnotherCase)
    for words in (ran, "input slot 0", "(8,4) BF16 ND", "(8,8) BF16 ND"):
        assert words in found.reason


def test_a_launch_without_tensors_is_taken_and_reported() -> None:
    found = own((made("Sort", 10.0, UNKNOWN),))
    assert found.durations_us == (10.0,)
    assert len(found.assumptions) == 2
    two = own_kernel("Sort", ROW, ProfiledSamples(((made("Sort", 10.0, UNKNOWN), made("Sort", 1.0, UNKNOWN)),)))
    assert isinstance(two, NoSamples)
    assert own((made("Sort", 99.0, UNKNOWN), made("Sort", 10.0))).durations_us == (10.0,)


#: (type, name, microseconds) of a launch between the marks of a sample.
Kernel = tuple[str, str, float]


def of_collective(tmp_path: Path, kernel_type: str, *samples: list[Kernel]) -> OwnKernel | AnotherCase | NoSamples:
    """The outcome of a row by a profile that holds these samples."""
    mark = ("Neg", "aclnnNeg_Neg_Neg", 2.0)
    launches = [(mark, dimensions(row_mark(0)))]
    for kernels in samples:
        # The ranks line up with collectives that are outside of the sample.
        launches += [(("hcom_allReduce_", "hcom_allReduce__781_0_1", 80.0), "N/A"), (mark, dimensions(BEGIN_MARK))]
        launches += [(kernel, "N/A") for kernel in kernels]
        launches += [(mark, dimensions(END_MARK))]
    lines = [
        launch_line(
            {"Start Time(us)": f"{10 * place}.000\t", "Name": name}, type=type_, shapes=shapes, duration=str(us)
        )
        for place, ((type_, name, us), shapes) in enumerate(launches)
    ]
    path = write_capture(tmp_path / "kernel_details.csv", lines)
    (samples_of_row,) = attribute(
        read_launches(path).launches, [ProfiledRow(kernel_type, {}, PendingSamples(0, len(samples)))]
    )
    if isinstance(samples_of_row, NoSamples):
        return samples_of_row
    return own_kernel(kernel_type, {}, samples_of_row)


@pytest.mark.parametrize(
    ("kernel_type", "carrier"),
    [
        (ALL_REDUCE.kernel_type, ("hcom_allReduce_", "hcom_allReduce_AivKernel")),
        (ALL_REDUCE.kernel_type, ("allreduceAicpuKernel", "allreduceAicpuKernel")),
        (ALL_GATHER.kernel_type, ("allgatherAicpuKernel", "allgatherAicpuKernel")),
        (REDUCE_SCATTER.kernel_type, ("reduce_scatterAicpuKernel", "reduce_scatterAicpuKernel")),
        (ALL_GATHER.kernel_type, ("aiv_all_gather", "hcom_allGather_AivKernel_1")),
    ],
)
def test_the_kernel_that_carries_a_collective_counts_no_second_time(
    tmp_path: Path, kernel_type: str, carrier: tuple[str, str]
) -> None:
    own = (kernel_type, f"{kernel_type}_781_0_1")
    twice = [[(*own, us), (*carrier, us - 1)] for us in (20.0, 21.0, 22.0)]
    seen = of_collective(tmp_path, kernel_type, *twice, [(*carrier, 23.0), (*own, 24.0)])
    assert isinstance(seen, OwnKernel)
    assert seen.durations_us == (20.0, 21.0, 22.0, 24.0)
    assert (seen.device_kernels, seen.helper_kernels) == (1, {})
    assert seen.assumptions == ()


def test_a_collective_with_only_its_carrier_has_the_carriers_duration(tmp_path: Path) -> None:
    carrier = ("allreduceAicpuKernel", "allreduceAicpuKernel", 20.0)
    seen = of_collective(tmp_path, ALL_REDUCE.kernel_type, [carrier], [carrier])
    assert isinstance(seen, OwnKernel)
    assert seen.durations_us == (20.0, 20.0)
    assert seen.ran_as is None
    (assumption,) = seen.assumptions
    assert "allreduceAicpuKernel" in assumption


def test_a_sample_with_only_the_carrier_among_samples_with_both_is_refused(tmp_path: Path) -> None:
    own, carrier = (
        ("hcom_allReduce_", "hcom_allReduce__1", 20.0),
        ("allreduceAicpuKernel", "allreduceAicpuKernel", 19.0),
    )
    assert isinstance(of_collective(tmp_path, ALL_REDUCE.kernel_type, [own, carrier], [carrier]), NoSamples)


def test_a_kernel_that_prepares_the_message_is_not_the_collective(tmp_path: Path) -> None:
    cast, own = ("Cast", "aclnnCast_CastAiCore_Cast", 5.0), ("hcom_allReduce_", "hcom_allReduce__1", 20.0)
    seen = of_collective(tmp_path, ALL_REDUCE.kernel_type, [cast, own])
    assert isinstance(seen, OwnKernel)
    assert seen.durations_us == (20.0,)
