"""Samples found again in a profile: by marks, else by order and number."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from opatlas.capture.single_launches import Launch
from opatlas.row.columns import BASE, INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES
from opatlas.run.instruments.attribution import (
    BEGIN_MARK,
    BY_ORDER,
    END_MARK,
    MARK_TYPE,
    MOST_ROWS,
    NoSamples,
    PendingSamples,
    ProfiledRow,
    ProfiledSamples,
    attribute,
    dimensions,
    parse_row_mark,
    row_mark,
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
    return ProfiledRow("Add", cells, PendingSamples(number, samples, samples + 1))


def durations_of(found: ProfiledSamples) -> list[list[float]]:
    return [[launch.duration_us for launch in call] for call in found.calls]


durations = st.lists(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=2), min_size=1, max_size=4)


@given(st.lists(durations, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_each_row_gets_its_own_samples_and_nothing_else(rows: list[list[list[float]]], noise: random.Random) -> None:
    profile = Profile()
    for number, samples in enumerate(rows):
        profile.row(number, samples, noise)
    found = attribute(profile.launches, [asked(number, len(samples)) for number, samples in enumerate(rows)])
    for samples, row in zip(rows, found, strict=True):
        assert isinstance(row, ProfiledSamples)
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


@given(st.integers(0, 14))
def test_a_profile_of_one_row_that_lost_its_head_has_the_samples_that_are_left(lost: int) -> None:
    """torch_npu's profiler may drop the first kernels of its window, the mark of the row among them."""
    profile = Profile()
    profile.row(0, [[5.0], [6.0], [7.0]])
    (found,) = attribute(profile.launches[lost:], [asked(0, 3)])
    # Set-up and the mark of the row, four launches for each sample (the second is its first mark), and the check.
    left = [[5.0], [6.0], [7.0]][lost // 4 :]
    if len(left) < 2:
        assert isinstance(found, NoSamples)
        return
    assert isinstance(found, ProfiledSamples)
    assert durations_of(found) == left
    assert bool(found.assumption) == (len(left) < 3)


@given(st.data())
def test_a_profile_of_one_row_that_lost_lines_never_gives_a_wrong_duration(data: st.DataObject) -> None:
    profile = Profile()
    profile.row(0, [[5.0], [6.0], [7.0], [8.0]])
    lost = data.draw(st.sets(st.integers(0, len(profile.launches) - 1), max_size=4))
    kept = [launch for place, launch in enumerate(profile.launches) if place not in lost]
    (found,) = attribute(kept, [asked(0, 4)])
    if isinstance(found, ProfiledSamples):
        assert all(call in ([5.0], [6.0], [7.0], [8.0]) for call in durations_of(found))


def test_a_sample_that_is_missing_behind_the_mark_of_its_row_is_not_a_lost_head() -> None:
    profile = Profile()
    profile.row(0, [[5.0], [6.0], [7.0]])
    (found,) = attribute([*profile.launches[:2], *profile.launches[6:]], [asked(0, 3)])
    assert isinstance(found, NoSamples)


def test_another_devices_kernels_do_not_come_between() -> None:
    profile = Profile()
    profile.row(0, [[5.0], [6.0]])
    ours = list(profile.launches)
    for launch in ours:
        profile.kernel("Add", "0", 500.0, device="1")
        profile.launches[-1] = Launch("1", launch.start_ns + 1, 500.0, "Add", launch.cells, {})
    profile.launches.sort(key=lambda launch: launch.start_ns)
    (found,) = attribute(profile.launches, [asked(0, 2)])
    assert isinstance(found, ProfiledSamples)
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


def without_marks(profile: Profile) -> list[Launch]:
    return [launch for launch in profile.launches if launch.kernel_type != MARK_TYPE]


def test_without_marks_the_last_calls_count_where_their_number_is_right() -> None:
    profile = Profile()
    profile.row(0, [[5.0], [6.0]])
    profile.row(1, [[7.0]])
    first, second = attribute(without_marks(profile), [asked(0, 2), asked(1, 1)])
    assert isinstance(first, ProfiledSamples)
    assert isinstance(second, ProfiledSamples)
    assert (durations_of(first), durations_of(second)) == ([[5.0], [6.0]], [[7.0]])
    assert first.assumption == BY_ORDER
    (wrong,) = attribute(without_marks(profile), [asked(0, 3)])
    assert isinstance(wrong, NoSamples)
    assert "3 kernels" in wrong.reason


def test_without_marks_rows_of_one_signature_are_distinguished_by_their_order() -> None:
    profile = Profile()
    for us in (5.0, 8.0):
        profile.kernel("Add", "4", 999.0)
        profile.kernel("Add", "4", us)
    rows = [ProfiledRow("Add", asked(4, 1).cells, PendingSamples(number, 1, 2)) for number in (0, 1)]
    found = attribute(profile.launches, rows)
    assert [durations_of(row) for row in found if isinstance(row, ProfiledSamples)] == [[[5.0]], [[8.0]]]


def test_marks_of_older_stacks_have_another_name() -> None:
    """Where a graph was captured, CANN called the kernel NegAiCore."""
    profile = Profile()
    profile.row(0, [[5.0], [6.0]])
    launches = [
        replace(launch, kernel_type="NegAiCore") if launch.kernel_type == MARK_TYPE else launch
        for launch in profile.launches
    ]
    (found,) = attribute(launches, [asked(0, 2)])
    assert isinstance(found, ProfiledSamples)
    assert durations_of(found) == [[5.0], [6.0]]


def test_marks_distinguish_rows() -> None:
    marks = [row_mark(number) for number in range(MOST_ROWS)]
    assert len(set(marks)) == MOST_ROWS
    assert [parse_row_mark(dimensions(mark)) for mark in marks] == list(range(MOST_ROWS))
    assert {parse_row_mark(dimensions(shape)) for shape in (BEGIN_MARK, END_MARK)} == {None}
    assert [parse_row_mark(text) for text in ("", "103", "103,0,1", "103,33,1", "103,1,x", "104,1,1")] == [None] * 6
    with pytest.raises(ValueError, match=f"rows 0 to {MOST_ROWS - 1}"):
        row_mark(MOST_ROWS)
