"""A profile that lists a collective twice: the duration counts once. No NPU wrote these files."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import launch, write_capture

from opatlas.capture.single_launches import read_launches
from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from opatlas.run.instruments.attribution import (
    BEGIN_MARK,
    END_MARK,
    AnotherCase,
    NoSamples,
    OwnKernel,
    PendingSamples,
    ProfiledRow,
    attribute,
    dimensions,
    own_kernel,
    row_mark,
)

#: (type, name, microseconds) of a launch between the marks of a sample.
Kernel = tuple[str, str, float]


def found(tmp_path: Path, kernel_type: str, *samples: list[Kernel]) -> OwnKernel | AnotherCase | NoSamples:
    """The outcome of a row by a profile that holds these samples."""
    mark = ("Neg", "aclnnNeg_Neg_Neg", 2.0)
    launches = [(mark, dimensions(row_mark(0)))]
    for kernels in samples:
        # The ranks line up with collectives that are outside of the sample.
        launches += [(("hcom_allReduce_", "hcom_allReduce__781_0_1", 80.0), "N/A"), (mark, dimensions(BEGIN_MARK))]
        launches += [(kernel, "N/A") for kernel in kernels]
        launches += [(mark, dimensions(END_MARK))]
    lines = [
        launch({"Start Time(us)": f"{10 * place}.000\t", "Name": name}, type=type_, shapes=shapes, duration=str(us))
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
    seen = found(tmp_path, kernel_type, *twice, [(*carrier, 23.0), (*own, 24.0)])
    assert isinstance(seen, OwnKernel)
    assert seen.durations_us == (20.0, 21.0, 22.0, 24.0)
    assert (seen.device_kernels, seen.helper_kernels) == (1, {})
    assert seen.assumptions == ()


def test_a_collective_with_only_its_carrier_has_the_carriers_duration(tmp_path: Path) -> None:
    carrier = ("allreduceAicpuKernel", "allreduceAicpuKernel", 20.0)
    seen = found(tmp_path, ALL_REDUCE.kernel_type, [carrier], [carrier])
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
    assert isinstance(found(tmp_path, ALL_REDUCE.kernel_type, [own, carrier], [carrier]), NoSamples)


def test_a_kernel_that_prepares_the_message_is_not_the_collective(tmp_path: Path) -> None:
    cast, own = ("Cast", "aclnnCast_CastAiCore_Cast", 5.0), ("hcom_allReduce_", "hcom_allReduce__1", 20.0)
    seen = found(tmp_path, ALL_REDUCE.kernel_type, [cast, own])
    assert isinstance(seen, OwnKernel)
    assert seen.durations_us == (20.0,)
