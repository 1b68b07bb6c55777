"""Traces of torch.profiler: reading, the operator of each device event, CUDA graphs."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from captures import table
from hypothesis import given, strategies as st
from torch_calls import BF16, I32, expect_replay, made, of_tokens, paged, ragged, tensor

from opatlas.capture import torch_launches, torch_trace, traces
from opatlas.capture.capture_discovery import TRACE, find_captures, kind_of_capture
from opatlas.capture.cuda_graphs import pair_graphs
from opatlas.capture.ingest import rebuild_profiling
from opatlas.capture.launches import SkipReason
from opatlas.capture.operator_rows import CapturedRow
from opatlas.capture.torch_launches import read_outcomes, read_torch_trace, with_lengths_of_step
from opatlas.capture.torch_trace import captured_gpu, read_trace
from opatlas.cli.ingest import ingest
from opatlas.data.database import Database
from opatlas.data.manifest import read_ingests
from opatlas.errors import OpAtlasError, UsageError
from opatlas.row.attention import COMPLETENESS, KV_VALUES, batch_cells, read_sequences, row_key
from opatlas.row.columns import INPUT_SHAPES, RUNTIME_IN_SIGNATURE, WITHOUT_LENGTHS
from opatlas.row.errors import Unsupported
from opatlas.row.versions import Versions

TRACES = Path(__file__).parents[1] / "data" / "torch_traces"
NAMES = sorted(file.name.removesuffix("-replay.pt.trace.json.gz") for file in TRACES.glob("*-replay*"))
LEAVES = ("mm", "mul", "add", "silu", "_fused_rms_norm", "copy_", "mean", "cat", "pow", "index_select")


def fixture(name, what):
    return TRACES / f"{name}-{what}.pt.trace.json.gz"


@pytest.fixture(autouse=True)
def no_captures_of_other_tests():
    torch_launches._captures_in.cache_clear()


@pytest.fixture
def toy_table(monkeypatch):
    """A table of operators that makes a row of any call of LEAVES and attention."""
    attention = "aten::scaled_dot_product_attention"
    known = {*(f"aten::{name}" for name in LEAVES), "x::a", "x::b", attention}
    monkeypatch.setattr(torch_trace, "is_known", known.__contains__)
    monkeypatch.setattr(torch_trace, "wins_over_inner", {attention, "x::b"}.__contains__)
    cells = {"Input Shapes": "2", "Input Data Types": "FLOAT", "Output Shapes": "2", "Output Data Types": "FLOAT"}
    monkeypatch.setattr(
        torch_launches, "row_of", lambda operator, kernels: CapturedRow(operator.name.partition("::")[2], cells)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["eager", "capture", "replay"])
def test_durations_by_outcome_are_those_of_all_device_events(name, what):
    """With the table of the library."""
    path = fixture(name, what)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    whole_ns = sum(round(each["dur"] * 1000) for each in events if each.get("cat") in torch_trace._DEVICE)
    counts = read_torch_trace(path, path, lambda size: None).counts
    assert counts.time_ns.total() == whole_ns
    (device,) = counts.devices
    assert device.busy_us <= whole_ns / 1000
    assert device.busy_us + device.idle_us == pytest.approx(device.span_us, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_has_the_kernels_of_the_eager_calls(toy_table, name):
    eager = defaultdict(set)
    outcomes = read_outcomes(fixture(name, "eager"))
    for outcome in outcomes:
        eager[outcome.name].add(kernels_of(outcomes, outcome))
    outcomes = read_outcomes(fixture(name, "replay"))
    of_graph = [each for each in outcomes if each.is_replay and isinstance(each.row, CapturedRow)]
    assert not outcomes.problems
    assert len(of_graph) > 30
    # Splits of products and copies may differ; nine of ten calls have the very kernels.
    same = sum(kernels_of(outcomes, each) in eager[each.name] for each in of_graph)
    assert same >= 0.9 * len(of_graph)
    assert Counter(each.name for each in of_graph)["aten::mm"] % 3 == 0


def kernels_of(outcomes, outcome):
    return tuple(outcomes.trace.names[outcomes.trace.name[event]] for event in outcome.events)


def changed_replay(tmp_path, name, change):
    """Writes the capture, and the replay with other device events; gives the reasons of its outcomes, and problems."""
    (tmp_path / f"{name}-capture.trace.json.gz").write_bytes(fixture(name, "capture").read_bytes())
    trace = json.loads(gzip.decompress(fixture(name, "replay").read_bytes()))
    replays = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") in torch_trace._DEVICE:
            replays[event["args"]["correlation"]].append(event)
    for number, replay in enumerate(replays.values()):
        change(trace["traceEvents"], sorted(replay, key=lambda event: event["ts"]), number)
    path = tmp_path / f"{name}-replay.trace.json"
    path.write_text(json.dumps(trace))
    outcomes = read_outcomes(path)
    rows = [outcome for outcome in outcomes if isinstance(outcome.row, CapturedRow)]
    return len(rows), outcomes.problems


def shuffle(seed):
    def change(events, replay, number):
        names = [(event["name"], event["cat"]) for event in replay]
        random.Random(seed).shuffle(names)
        for event, (name, category) in zip(replay, names, strict=True):
            event["name"], event["cat"] = name, category

    return change


def rotate(events, replay, number):
    names = [(event["name"], event["cat"]) for event in replay]
    for event, (name, category) in zip(replay, names[1:] + names[:1], strict=True):
        event["name"], event["cat"] = name, category


def swap_of_one_layer(events, replay, number):
    one, other = [event for event in replay if "silu" in event["name"] or "Mul" in event["name"]][:2]
    one["name"], other["name"] = other["name"], one["name"]


def without_one(events, replay, number):
    events.remove(replay[5])


def other_order_in_one_replay(events, replay, number):
    if number == 1:
        swap_of_one_layer(events, replay, number)


def second_stream(events, replay, number):
    replay[3]["args"]["stream"] = 99


@pytest.mark.parametrize(
    "change", [shuffle(1), shuffle(2), rotate, swap_of_one_layer, without_one, other_order_in_one_replay, second_stream]
)
def test_a_replay_that_does_not_fit_its_capture_has_no_rows(toy_table, tmp_path, change):
    rows, problems = changed_replay(tmp_path, "plain-prefill", change)
    assert problems
    if change is other_order_in_one_replay:
        # The two other replays fit, and the third is told.
        rows -= 2 * 24
    assert rows <= 0


def test_an_eager_step_has_the_shapes_of_a_graph_with_the_same_kernels(toy_table, tmp_path):
    path = tmp_path / "a.trace.json.gz"
    path.write_bytes(fixture("plain-decode", "replay").read_bytes())
    for name, fits in (("plain-decode", True), ("plain-prefill", False)):
        outcomes = read_outcomes(path, shapes_from=fixture(name, "eager"))
        rows = [outcome for outcome in outcomes if isinstance(outcome.row, CapturedRow)]
        assert (len(rows) > 60, outcomes.problems == []) == (fits, fits)


@pytest.mark.parametrize(
    ("step", "tokens"),
    [
        (None, None),
        ("execute_30_context_0(sq0)_generation_30(sq30)", 32),
        ("execute_context_1(30)_generation_3(3)", 64),
        ("step[DECODE bs=32]", 32),
        ("execute_65_context_1(sq65)_generation_0(sq0)", None),
    ],
)
def test_the_capture_of_the_next_size_fits(toy_table, tmp_path, step, tokens):
    """The captures differ only in the number of sequences."""
    (tmp_path / "capture_traces").mkdir()
    for size in (32, 64):
        text = gzip.decompress(fixture("plain-decode", "capture").read_bytes())
        text = text.replace(b"[32,", f"[{size},".encode())
        text = text.replace(b"ProfilerStep#0", f"capture_{size}_FULL".encode() if step else b"x")
        (tmp_path / "capture_traces" / f"rank_0.{size}.pt.trace.json").write_bytes(text)
    replay = gzip.decompress(fixture("plain-decode", "replay").read_bytes())
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(re.sub(rb"ProfilerStep#\d", (step or "x").encode(), replay))
    outcomes = read_outcomes(path)
    products = {
        trace_operator.dims[0][0]
        for pair in pair_graphs(outcomes.trace, outcomes.captures).values()
        if (capture := pair[1].capture) is not None
        for call in capture.calls
        if (trace_operator := capture.operator(call)).name == "aten::mm"
    }
    assert products == (set() if tokens is None else {tokens})


def test_nodes_with_ids_are_ordered_by_them(toy_table, tmp_path):
    def change(events, replay, number):
        for node, event in enumerate(replay, start=7):
            event["args"] |= {"graph node id": node, "stream": node % 3}
        replay[4]["ts"], replay[5]["ts"] = replay[5]["ts"], replay[4]["ts"]

    rows, problems = changed_replay(tmp_path, "plain-prefill", change)
    assert (rows > 30, problems) == (True, [])


def op(name, start, end, tid=1):
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start}
    return {**event, "args": {"Input Dims": [[2]], "Input type": ["float"]}}


def call(correlation, ts, name="cudaLaunchKernel", tid=1):
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": 1, "args": args}


def kernel(correlation, ts, name="k", cat="kernel", **args):
    args = {"correlation": correlation, "device": 0, "stream": 7, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2.5, "args": args}


def write(path, *events):
    path.write_text(json.dumps({"traceEvents": [op("x::first", -9, -8), *events]}))
    return path


def test_the_operator_of_a_kernel(toy_table, tmp_path):
    """By thread and time of the launch: the innermost one that the table knows, unless one around it wins."""
    path = write(
        tmp_path / "a.trace.json",
        *(op("x::outer", 0, 100), op("x::a", 10, 20), op("x::unknown", 12, 18), call(1, 15), call(2, 19)),
        # Ends where the next begins.
        *(op("x::a", 20, 30), call(3, 25), call(4, 40), op("x::b", 50, 60), op("x::a", 51, 59), call(5, 55)),
        *(op("x::a", 0, 100, tid=2), call(6, 200), call(7, 70, "cudaMemcpyAsync"), op("c10d::allreduce_", 80, 90)),
        *(call(8, 85), *(kernel(n, 300 + n) for n in (1, 2, 3, 4, 5, 6, 9))),
        *(kernel(7, 400, "Memcpy HtoD", "gpu_memcpy"), kernel(8, 401, "my_sum", **{"Collective name": "allreduce"})),
        kernel(8, 402, "ncclKernel", **{"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Half"}),
    )
    found = {}
    for outcome in (outcomes := read_outcomes(path)):
        row = outcome.row.kernel_type if isinstance(outcome.row, CapturedRow) else outcome.row.reason
        for event in outcome.events:
            found[outcomes.trace.correlation[event]] = (row, outcome.name, len(outcome.events))
    assert found == {
        1: ("a", "x::a", 2),
        2: ("a", "x::a", 2),
        3: ("a", "x::a", 1),
        4: (SkipReason.NO_OPERATOR, "x::outer", 1),
        5: ("b", "x::b", 1),
        6: (SkipReason.OUTSIDE_OPERATORS, "k", 1),
        7: (SkipReason.MEMORY_COPY, "Memcpy HtoD", 1),
        8: (SkipReason.COLLECTIVE, "allreduce 16 bytes, 0 ranks", 1),
        9: (SkipReason.BEFORE_WINDOW, "k", 1),
    }


def test_busy_and_idle_time(tmp_path):
    events = [kernel(1, 10), kernel(1, 11), kernel(1, 20, device=1), kernel(1, 15.5)]
    found = read_torch_trace(write(tmp_path / "a.trace.json", *events), tmp_path, lambda size: None).counts.devices
    assert [(each.device, each.events, each.span_us, each.busy_us, each.idle_us) for each in found] == [
        (0, 3, 8.0, 6.0, 2.0),
        (1, 1, 2.5, 2.5, 0.0),
    ]


def test_times_have_all_digits(tmp_path):
    path = tmp_path / "a.trace.json"
    event = json.dumps(kernel(1, 1)).replace('"ts": 1,', '"ts": 1764246877073569.641,')
    path.write_text(f'{{"traceEvents": [{event}]}}')
    assert list(read_trace(path).start_ns) == [1764246877073569641]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"{}", "not a Chrome trace"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph"', "cannot be read"),
        (b'{"traceEvents": [{"cat": "kernel", "args": {"correlation": "x"}}]}', "correlation"),
        (json.dumps({"traceEvents": [kernel(1, 1)]}).encode(), "record_shapes"),
        (b'{"deviceProperties": 3, "traceEvents": [{"ph": "X"}]}', "deviceProperties"),
    ],
)
def test_what_is_no_trace_with_shapes(tmp_path, text, named):
    path = tmp_path / "a.trace.json"
    path.write_bytes(text)
    with pytest.raises(OpAtlasError, match=named) as error:
        read_torch_trace(path, tmp_path, lambda size: None)
    assert str(path) in str(error.value)


def test_launches_of_a_graph_without_its_capture_have_the_names_of_kernels(tmp_path):
    alone = tmp_path / "alone.trace.json.gz"
    alone.write_bytes(fixture("plain-decode", "replay").read_bytes())
    found, known = (torch_launches.torch_launches(path).launches for path in (alone, fixture("plain-decode", "replay")))
    assert [each.duration_us for each in found] == [each.duration_us for each in known]
    assert not any(each.cells for each in found)
    assert {each.kernel_type for each in found}.isdisjoint({each.kernel_type for each in known if each.cells})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('ab"\\},{[]\n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a},{"', max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON, min_size=1, max_size=8), st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_events_are_the_same_in_blocks_of_any_size(tmp_path_factory, events, size, indent, is_object):
    path = tmp_path_factory.getbasetemp() / "trace"
    whole = {"a": [{"traceEvents": 1}], "traceEvents": events, "z": [{}, {"b": []}, {"c": 1}]} if is_object else events
    path.write_text(json.dumps(whole, indent=indent))
    before, traces._BLOCK_BYTES = traces._BLOCK_BYTES, size
    try:
        with open(path, "rb") as file:
            assert list(traces.read_events(path, file)) == events
    finally:
        traces._BLOCK_BYTES = before


def test_which_files_of_a_folder_are_traces(tmp_path):
    names = ["dp0_rank0.17.pt.trace.json.gz", "1-TP-0-DECODE.trace.json.gz", "merged-1.trace.json.gz", "config.json"]
    for name in names:
        (tmp_path / name).touch()
    assert [file.name for file in find_captures(tmp_path).files] == sorted(names[:2])
    assert kind_of_capture(tmp_path / "bs_32_rank0.json.gz") is TRACE


def test_an_ingest_into_the_database_of_the_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr("opatlas.row.location.ROOT", tmp_path)
    name = fixture("plain-decode", "replay")
    result = ingest(profiling_path=name, versions=Versions(torch="2.11.0"))
    folder = tmp_path / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    assert (result.exit_status, result.json["database"]) == (0, folder)
    (manifest,) = (each.manifest for each in read_ingests(Database(folder)))
    assert (manifest.device, manifest.versions) == ("NVIDIA_H200", Versions(torch="2.11.0", cuda="13.0"))
    (row,) = [row for row in table(folder / "MatMulV2.csv") if row["Input Shapes"] == "32,1024;5632,1024"]
    assert (row["Profiling Samples"], row["Profiling Source"]) == ("6", "CUDA graph")
    assert row["Profiling Kernel Names"].startswith("nvjet_")
    before = (folder / "MatMulV2.csv").read_bytes()
    rebuild_profiling(Database(folder))
    assert (folder / "MatMulV2.csv").read_bytes() == before
    result = ingest(profiling_path=fixture("plain-decode", "eager"), versions=Versions(torch="2.11.0"))
    (row,) = [row for row in table(folder / "MatMulV2.csv") if row["Input Shapes"] == "32,1024;5632,1024"]
    assert (row["Profiling Samples"], row["Profiling Source"]) == ("10", "CUDA graph | eager")


def test_which_device_a_trace_is_of(tmp_path):
    replay, database = fixture("plain-decode", "replay"), tmp_path / "database"
    with pytest.raises(UsageError, match=rf"{re.escape(str(replay))}: .*NVIDIA_H200.*NVIDIA_A100"):
        ingest(profiling_path=replay, device="NVIDIA_A100", database_path=database)
    assert ingest(profiling_path=replay, device="NVIDIA_H200", database_path=database).exit_status == 0
    # One that names none has any, and must name one only where the database's folder follows from it.
    unnamed = write(tmp_path / "a.trace.json", kernel(1, 10))
    with pytest.raises(UsageError, match=rf"{re.escape(str(unnamed))}: .*no GPU"):
        ingest(profiling_path=unnamed)
    assert captured_gpu([unnamed], may_be_unknown=True) == (None, None)
    result = ingest(profiling_path=write(tmp_path / "b.trace.json"), database_path=tmp_path / "other")
    assert (result.exit_status, "no kernels" in result.problems[0]) == (1, True)


def test_attention_without_lengths_says_so_and_is_not_replayed():
    ends = tensor(4, dtype=I32)
    packed = made("flash_attn::_flash_attn_varlen_forward", tensor(6, 4, 16), *[tensor(6, 2, 16)] * 2, ends, ends)
    assert paged().cells[INPUT_SHAPES].startswith("6,4,16;24,32,32;24,32,32;;2048,2048;3;3;")
    assert packed.cells[INPUT_SHAPES].startswith("6,4,16;6,2,16;6,2,16;;2048,2048;3;3;")
    for row in (ragged(), of_tokens()):
        assert row.cells[INPUT_SHAPES].startswith("6,4,16;96,1,32;96,1,32;;2048,2048;3;3;;;;;;;;3,32;")
    for row in (paged(), packed, ragged(), of_tokens()):
        assert WITHOUT_LENGTHS in row.cells.items()
        with pytest.raises(Unsupported):
            expect_replay(row)


def test_given_lengths_fill_the_rows_of_such_a_batch():
    row = paged()
    key = row_key(row.cells)
    cells = batch_cells(key, read_sequences("2x1@40+4@64"))
    assert [cells[name] for name in RUNTIME_IN_SIGNATURE] == ["1,2,6", "40,40,64", "4", "2", "3", "TND", "32", ""]
    for each in (row, ragged(), of_tokens()):
        batch = read_sequences("2x1@40+4@64" if each is row else "2x1@30+4@32")
        expect_replay(replace(each, cells={**each.cells, **batch_cells(row_key(each.cells), batch)}))
    # Another number of sequences, another number of queries.
    assert batch_cells(key, read_sequences("6x1@40")) is None
    assert batch_cells(key, read_sequences("3x1@40")) is None


@pytest.mark.parametrize(
    ("step", "keys", "known"),
    [
        ("execute_6_context_1(sq4sk64sqsq16sqsk256)_generation_2(sq2sk80sqsq2sqsk80) #1", "40,40,64", "mean-lengths"),
        ("execute_6_context_3(sq6sk6sqsq12sqsk12)_generation_0(sq0sk0sqsq0sqsk0) #1", "2,2,2", "complete"),
        ("execute_6_context_1(sq5sk64sqsq25sqsk320)_generation_0(sq0sk0sqsq0sqsk0) #1", "64,1", ""),
        ("execute_context_1(5_25)_generation_1(1) #1", "", ""),
    ],
)
def test_a_steps_name_has_the_lengths_of_its_attention(step, keys, known):
    row = with_lengths_of_step(paged(), ["step[DECODE bs=3]", step])
    assert row.cells.get(KV_VALUES, "") == (keys if known else "")
    assert row.cells[COMPLETENESS] == (known or "no-lengths")
    if known:
        expect_replay(row)


@pytest.mark.parametrize(
    ("step", "shapes"),
    [
        (
            "execute_6_context_1(sq4sk64sqsq16sqsk256)_generation_2(sq2sk80sqsq2sqsk80)",
            "6,4,16;6,32,32;6,32,32;;2048,2048;3;3;;;;;;;;3,2;",
        ),
        (
            "execute_6_context_1(sq6sk6sqsq36sqsk36)_generation_0(sq0sk0sqsq0sqsk0)",
            "6,4,16;6,2,16;6,2,16;;2048,2048;1;1;",
        ),
        ("execute_6_context_1(sq7sk7sqsq49sqsk49)_generation_0(sq0sk0sqsq0sqsk0)", None),
        ("execute_context_1(6)_generation_0(0)", None),
    ],
)
def test_attention_as_one_operator_has_the_lengths_of_its_step_and_the_cache_of_another(tmp_path, step, shapes):
    queries, keys, pages = [6, 4, 16], [6, 2, 16], [4096, 32, 2, 16]
    calls = {"vllm::unified_attention_with_output": [queries, keys, keys, queries]}
    calls["_C_cache_ops::reshape_and_cache_flash"] = [keys, keys, pages, pages]
    events = []
    for at, (name, dims) in enumerate(calls.items()):
        event = op(name, 10 * at, 10 * at + 9)
        event["args"] = {"Input Dims": dims, "Input type": [BF16] * 4}
        events += [event, call(at, 10 * at + 5), kernel(at, 100 + at)]
    annotation = {"ph": "X", "cat": "user_annotation", "name": step, "pid": 1, "tid": 1, "ts": 0, "dur": 50}
    outcomes = read_outcomes(write(tmp_path / "a.trace.json", annotation, *events))
    row = next(outcome.row for outcome in outcomes if outcome.name.startswith("vllm"))
    if shapes is None:
        assert row.reason is SkipReason.NO_LENGTHS
    else:
        assert row.cells[INPUT_SHAPES].startswith(shapes)
        expect_replay(row)


def test_products_of_experts_are_outcomes_of_their_own(tmp_path):
    experts, names = op("vllm::inplace_fused_experts", 0, 9), ("align", "fused_moe_kernel", "fused_moe_kernel")
    dims = [[4, 8], [6, 10, 8], [6, 8, 5], [4, 2], [4, 2]]
    experts["args"] = {"Input Dims": dims, "Input type": [BF16] * 3 + ["float", "int"]}
    events = [each for at, name in enumerate(names) for each in (call(at, 1 + at), kernel(at, 100 + at, name))]
    found = [each.row for each in read_outcomes(write(tmp_path / "a.trace.json", experts, *events))]
    assert [row.cells[INPUT_SHAPES] for row in found[:2]] == ["8,8;6,8,10;;;;;;6;", "8,5;6,5,8;;;;;;6;"]
    assert [row.reason for row in found[2:]] == [SkipReason.FUSED]
