"""A wrong NPU call is seen."""

from __future__ import annotations

import pytest
from npu_verdicts import Case, verdicts
from replaying import cells_of

REFUSED = {
    "no_such_call": "torch_npu.npu_swiglu_of_tomorrow does not exist",
    "wrong_type": "npu_swiglu",
    "unknown_keyword": "axis",
    "other_shape": "other results than those of the row: column 'Output Shapes' is '4,4': output 0 of",
    "other_dtype": "other results than those of the row: column 'Output Data Types' is 'FLOAT': output 0 of",
    "too_few": "missing value for argument 'size'",
    "not_a_list": "npu_broadcast",
    "returns_more": "npu.npu_broadcast.default returns 1 values, and the timed call returns 2",
    "reads_values": "in the replay itself",
    "ends_the_process": "the process ended: exit status -6",
}
PROVEN = {"right": "meta kernel", "by_schema": "schema", "depends_on_values": "schema"}


@pytest.fixture(scope="module")
def found(npu_python, tmp_path_factory):
    import wrong_replays

    cases = [
        Case("SwiGlu", cells_of(wrong_replays.ROW), is_sample=True, function=f"wrong_replays.{name}")
        for name in [*REFUSED, *PROVEN]
    ]
    found = verdicts(npu_python, tmp_path_factory.mktemp("npu"), cases)
    return dict(zip([*REFUSED, *PROVEN], found, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_call_is_refused(found, name):
    assert REFUSED[name] in found[name].refused


@pytest.mark.parametrize("name", PROVEN)
def test_right_call_is_proven(found, name):
    assert found[name].proof == PROVEN[name], found[name]
