"""Traces that ui.perfetto.dev opens."""

import gzip
import json
from pathlib import Path

from opatlas.ask.query.model_cost import ModelCost, PartCost
from opatlas.show.chrome_trace import TraceSlice, model_slices, write_trace
from opatlas.theory.model_step import Step, StepMemory


def test_what_overlaps_on_a_track_gets_another_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    times = [(0.0, 2.0005), (2.0005, 1.0), (2.5, 3.0), (3.1, 0.1)]
    write_trace(
        path, [TraceSlice(f"k{at}", at, us, "stream 1", "rank 0", {"how": "captured", "note": ""}) for at, us in times]
    )
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    assert [each["tid"] for each in slices] == [0, 0, 1, 0]
    assert slices[0]["args"] == {"how": "captured"}
    assert slices[0]["ts"] + slices[0]["dur"] <= slices[1]["ts"]
    named = {(each["name"], each["args"]["name"]) for each in events if each["ph"] == "M"}
    assert named == {("process_name", "rank 0"), ("thread_name", "stream 1")}


def test_the_calls_of_a_step_follow_each_other_layer_by_layer() -> None:
    def part(name: str, layers: int, us: float | None, calls: int = 1) -> PartCost:
        return PartCost(name, "K", calls * (layers or 1), layers, "", us, how="measured" if us else "missing")

    parts = [part("embed", 0, 1), part("attention", 3, 2, calls=2), part("dense", 1, 5), part("experts", 2, 7)]
    parts += [part("norm", 0, None), part("head", 0, 9)]
    cost = ModelCost("m", Path(), parts, (), Step("m", 1, 1), "BF16", 3, StepMemory(0, 0, 0, 0))
    slices = list(model_slices(cost))
    calls = [each for each in slices if each.track == "calls"]
    layer = ["attention", "attention"]
    assert [each.name for each in calls] == [
        *("embed", *layer, "dense", *layer, "experts", *layer, "experts", "norm", "head"),
    ]
    ends = [each.start_us + each.duration_us for each in calls]
    assert [each.start_us for each in calls] == [0, *ends[:-1]]
    assert ends[-1] == cost.us
    layers = [(each.name, each.start_us, each.duration_us) for each in slices if each.track == "layers"]
    assert layers == [("layer 0", 1, 9), ("layer 1", 10, 11), ("layer 2", 21, 11)]
