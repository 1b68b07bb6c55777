"""Traces that ui.perfetto.dev opens."""

import gzip
import json
from pathlib import Path

from opatlas.ask.query.model_cost import ModelCost, PartCost
from opatlas.show.chrome_trace import write_trace
from opatlas.theory.model_step import Step, StepMemory


def test_the_calls_of_a_step_follow_each_other_layer_by_layer(tmp_path: Path) -> None:
    def part(name: str, layers: int, us: float | None, calls: int = 1) -> PartCost:
        return PartCost(name, "K", calls * (layers or 1), layers, "", us, how="measured" if us else "missing")

    parts = [part("embed", 0, 1), part("attention", 3, 2.0005, calls=2), part("dense", 1, 5), part("experts", 2, 7)]
    parts += [part("norm", 0, None), part("head", 0, 9)]
    cost = ModelCost("m", Path(), parts, (), Step("m", 1, 1), "BF16", 3, StepMemory(0, 0, 0, 0))
    path = tmp_path / "trace.json.gz"
    write_trace(path, [cost, cost])
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = [(each["pid"], each["args"]["name"]) for each in events if each["ph"] == "M"]
    assert named == [(number, name) for number in (0, 1) for name in (str(cost.step), "calls", "layers")]
    tracks = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    slices = [each for each in events if each["ph"] == "X" and each["pid"] == 1]
    calls, layers = ([each for each in slices if tracks[each["tid"]] == name] for name in ("calls", "layers"))
    layer = ["attention", "attention"]
    assert [each["name"] for each in calls] == [
        *("embed", *layer, "dense", *layer, "experts", *layer, "experts", "norm", "head")
    ]
    ends = [round(each["ts"] + each["dur"], 3) for each in calls]
    assert [each["ts"] for each in calls] == [0, *ends[:-1]]
    assert ends[-1] == round(cost.us, 3)
    assert calls[0]["args"] == {"kernel type": "K", "how": "measured"}
    assert [(each["name"], each["ts"], each["dur"]) for each in layers] == [
        *(("layer 0", 1, 9.001), ("layer 1", 10.001, 11.001), ("layer 2", 21.002, 11.001))
    ]
