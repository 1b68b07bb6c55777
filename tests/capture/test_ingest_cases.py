"""Which launches are one case, and what is told of them."""

import statistics

import pytest
from captures import launch, write_capture
from hypothesis import given
from hypothesis import strategies as st

from opatlas.capture.cases import Aggregate

durations = st.lists(st.floats(0.001, 1e7).map(lambda value: round(value, 3)), min_size=1, max_size=40)


def cases_of(tmp_path, rows):
    aggregate = Aggregate()
    aggregate.add_file(write_capture(tmp_path / "kernel_details.csv", rows))
    return [case for cases in aggregate.cases().values() for case in cases]


@pytest.mark.parametrize(
    "other",
    [{"formats": "ND;FRACTAL_NZ"}, {"shapes": "16,32;32,64"}, {"out": "16,65"}, {"type": "MatMulV2"}],
)
def test_what_makes_another_case(tmp_path, other):
    assert len(cases_of(tmp_path, [launch(), launch(**other)])) == 2


@pytest.mark.parametrize(
    "same",
    [
        {"dtypes": "BF16;BF16"},
        {"formats": "FORMAT_ND;FORMAT_ND"},
        {
            "shapes": "16,32;64,32;;",
            "dtypes": "DT_BF16;DT_BF16;DT_UNDEFINED;DT_UNDEFINED",
            "formats": "ND;ND;NULL;NULL",
        },
    ],
)
def test_what_does_not(tmp_path, same):
    (case,) = cases_of(tmp_path, [launch(), launch(**same)])
    assert case.durations.count == 2
    assert case.cells["Input Data Types"] == "DT_BF16;DT_BF16"


def test_an_absent_input_with_its_default_dtype_is_no_other_case(tmp_path):
    """CANN 8.5 writes the dtype of the kernel's definition, older versions DT_UNDEFINED."""
    shapes = {"type": "GroupedMatmul", "shapes": "64,32;8,32,16;;;;;;8", "out": "64,16"}
    older = {"dtypes": "BF16;BF16;;;;;;INT64", "formats": "ND;ND;NULL;NULL;NULL;NULL;NULL;ND"}
    newer = {"dtypes": "BF16;BF16;FLOAT;UINT64;FLOAT;FLOAT16;FLOAT16;INT64", "formats": ";".join(["ND"] * 8)}
    (case,) = cases_of(tmp_path, [launch(**shapes, **newer, duration="10"), launch(**shapes, **older, duration="20")])
    assert (case.durations.count, case.durations.mean_us) == (2, 15.0)
    assert case.cells["Input Data Types"] == newer["dtypes"]
    sums = [launch(type="Add", shapes="4;", dtypes=f"FLOAT;{word}") for word in ("FLOAT", "DT_UNDEFINED")]
    assert len(cases_of(tmp_path, sums)) == 2


@given(durations)
def test_statistics_are_those_of_the_samples(tmp_path_factory, samples):
    (case,) = cases_of(tmp_path_factory.mktemp("c"), [launch(duration=str(sample)) for sample in samples])
    assert case.durations.count == len(samples)
    assert case.durations.mean_us == pytest.approx(statistics.fmean(samples))
    assert case.durations.median_us == statistics.median(samples)
    assert case.durations.std_us == pytest.approx(statistics.stdev(samples) if len(samples) > 1 else 0.0, abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=60))
def test_every_launch_is_in_its_case(tmp_path_factory, launches):
    rows = [launch(type=f"K{which}", duration=str(us)) for which, us in launches]
    sums = {case.kernel_type: case.durations for case in cases_of(tmp_path_factory.mktemp("c"), rows)}
    for which in {which for which, _ in launches}:
        mine = [us for other, us in launches if other == which]
        assert sums[f"K{which}"].count == len(mine)
        assert sums[f"K{which}"].mean_us == pytest.approx(statistics.fmean(mine))
