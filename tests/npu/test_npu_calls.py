"""The real torch_npu takes every replay's NPU call, and gives the results that the rows have; a wrong call is seen."""

from __future__ import annotations

from collections import defaultdict

import pytest
import wrong_replays
from custom_schemas import EARLIER, EARLIER_VARIABLE, SCHEMAS
from npu_verdicts import Case, cases, proofs, verdicts
from replaying import cells_of
from sample_rows import BACK, LAYER_INT8, ROWS, TOLD
from written_facts import write_proofs

from opatlas.row.columns import INPUT_DTYPES
from opatlas.run.devices.npu_operators import OR
from opatlas.run.registry import PROOFS, proof_of, replay_spec, replays_of_bench


def described(verdicts):
    """Kernel type, row, call and refusal, of the first ones."""
    lines = [
        f"{verdict.case}\n{replay_spec(replays_of_bench()[verdict.case.kernel_type]).npu}: "
        f"{verdict.refused or 'the replay refuses the row: ' + verdict.invalid}"
        for verdict in verdicts
    ]
    return "\n\n".join([f"{len(lines)} rows", *lines[:5]])


#: Eight ranks, each with 6 of 48 experts.
OF_A_GROUP = f"9,256;6,256,320;6,160,256;9,8;6,320;6,256;9,8 | {LAYER_INT8} -> 9,256;6 | DT_BF16;INT32 @ EP Size = 8"

#: Sixteen ranks, each with 16 of 256 experts, 4 tokens and 8 of the experts for each: room for 512 of them.
EXCHANGES = {
    "MoeDistributeDispatch": [
        f"4,7168;4,8 | DT_BF16;INT32 -> 512,7168;512;32;16;256;1 | INT8;{TOLD};INT32",
        f"4,7168;4,8 | DT_BF16;INT32 -> 512,7168;512;32;16;256 | DT_BF16;{TOLD}",
        # With the weights, as on A2: 2 x 8 x 64 numbers more for each node.
        f"4,7168;4,8;;;4,8 | DT_BF16;INT32;;;FLOAT -> 512,7168;512;32;16;2304;0;512 | INT8;{TOLD};INT32;FLOAT",
    ],
    "MoeDistributeDispatchV2": [
        f"4,7168;4,8;;4 | DT_BF16;INT32;;BOOL -> 512,7168;512;65536;16;256;1 | INT8;{TOLD};INT32",
        # Ranks may have up to 8 tokens.
        f"4,7168;4,8 | DT_BF16;INT32 -> 1024,7168;1024;131072;16;256;1 | DT_BF16;{TOLD};INT32",
    ],
    "MoeDistributeCombine": [f"512,7168;4,8;32;256;4,8;1 | DT_BF16;{BACK};INT32 -> 4,7168 | DT_BF16"],
    "MoeDistributeCombineV2": [
        f"512,7168;4,8;65536;256;4,8;1;4 | DT_BF16;{BACK};INT32;BOOL -> 4,7168 | DT_BF16",
        f"512,7168;4,8;65536;256;4,8 | FLOAT16;{BACK} -> 4,7168 | FLOAT16",
    ],
}
REFUSED = {
    "no_such_call": "torch_npu.npu_swiglu_of_tomorrow",
    "wrong_type": "npu_swiglu",
    "unknown_keyword": "axis",
    "other_shape": "'Output Shapes' is '4,4'",
    "other_dtype": "'Output Data Types' is 'FLOAT'",
    "too_few": "'size'",
    "not_a_list": "npu_broadcast",
    "returns_more": "npu.npu_broadcast.default",
    "reads_values": "in the replay itself",
    # The last one: another process would go on with those behind it.
    "ends_the_process": "-6",
}
PROVEN = {"right": "meta kernel", "by_schema": "schema", "depends_on_values": "schema"}


def replay_name(kernel_type):
    function = replays_of_bench()[kernel_type]
    return f"{function.__module__}.{function.__name__}"


def of_dispatch_ffn_combine():
    rows = [*ROWS["DispatchFFNCombine"], OF_A_GROUP]
    return [Case("DispatchFFNCombine", cells_of(row), True, replay_name("DispatchFFNCombine")) for row in rows]


@pytest.fixture(scope="module")
def found(npu_python, tmp_path_factory):
    """All verdicts, by what the rows are for: of one process, because torch_npu takes three seconds to import."""
    wanted = {
        "replays": cases(),
        "exchanges": [
            Case(kernel_type, cells_of(f"{row} @ EP Size = 16"), True, replay_name(kernel_type))
            for kernel_type, rows in EXCHANGES.items()
            for row in rows
        ],
        "present version": of_dispatch_ffn_combine(),
        "planted": [
            Case("SwiGlu", cells_of(wrong_replays.ROW), True, f"wrong_replays.{name}") for name in (*PROVEN, *REFUSED)
        ],
    }
    given = [case for cases_of_one in wanted.values() for case in cases_of_one]
    answers = iter(verdicts(npu_python, tmp_path_factory.mktemp("npu"), given))
    return {name: [next(answers) for _ in cases_of_one] for name, cases_of_one in wanted.items()}


@pytest.fixture(scope="module")
def verdicts_by_type(found):
    by_type = defaultdict(list)
    for verdict in found["replays"]:
        by_type[verdict.case.kernel_type].append(verdict)
    return by_type


@pytest.fixture(scope="module")
def planted(found):
    return dict(zip([*PROVEN, *REFUSED], found["planted"], strict=True))


@pytest.mark.parametrize("kernel_type", replays_of_bench())
def test_call_is_accepted(verdicts_by_type, kernel_type):
    verdicts = verdicts_by_type[kernel_type]
    # A captured row may contradict itself; a sample may not.
    wrong = [verdict for verdict in verdicts if verdict.refused or (verdict.invalid and verdict.case.is_sample)]
    assert not wrong, described(wrong)
    assert any(verdict.proof and verdict.case.is_sample for verdict in verdicts), "no sample row is replayed on an NPU"


def test_stored_proofs_are_up_to_date(request, verdicts_by_type):
    found = proofs(verdicts_by_type)
    if request.config.getoption("--write-npu-proofs", default=False):
        write_proofs(found)
    stored = {call: proof_of(call) for call in found}
    assert stored == found, f"out of date: run `pytest tests/npu --write-npu-proofs`, then commit {PROOFS}"


def test_every_custom_schema_is_that_of_a_replay():
    calls = {call for function in replays_of_bench().values() for call in replay_spec(function).npu.split(OR)}
    names = (("vllm_ascend.ops.triton.", "torch.ops.vllm_ascend_"), ("fla_npu.ops.ascendc.", "torch.ops.fla_npu."))
    calls = {call.replace(*name) for call in calls for name in names}
    named = {
        f"torch.ops.{namespace}.{schema.split('(')[0].strip()}"
        for namespace, schemas in SCHEMAS.items()
        for schema in schemas.split("\n\n")
    }
    assert named <= calls


def test_calls_of_a_group_are_accepted(found):
    for verdict in found["exchanges"]:
        assert verdict.proof == "meta kernel", verdict


@pytest.mark.parametrize("version", ["", *EARLIER])
def test_versions_of_dispatch_ffn_combine(npu_python, found, tmp_path, monkeypatch, version):
    monkeypatch.setenv(EARLIER_VARIABLE, version)
    of_version = verdicts(npu_python, tmp_path, of_dispatch_ffn_combine()) if version else found["present version"]
    for verdict in of_version:
        if "BOOL" in verdict.case.cells[INPUT_DTYPES] and version:
            assert "takes no" in verdict.refused, verdict
        elif version == "without counts":
            assert "expert_token_nums" in verdict.refused, verdict
        else:
            assert verdict.proof == "custom schema", verdict


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_call_is_refused(planted, name):
    assert REFUSED[name] in planted[name].refused


@pytest.mark.parametrize("name", PROVEN)
def test_right_call_is_proven(planted, name):
    assert planted[name].proof == PROVEN[name], planted[name]
