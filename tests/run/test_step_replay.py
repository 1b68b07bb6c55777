"""Layers of a small model on the CPU: what calls read, a toy graph, a result that went wrong."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from sessions import ROOT, Sessions
from tiny_models import CONFIG, DENSE

from opatlas.row.columns import STEP, STEP_LAUNCH, STEP_LAYERS
from opatlas.row.errors import Unsupported, WrongResult
from opatlas.run import step_layer, step_replay
from opatlas.run.devices.device import DeviceSpec, open_device
from opatlas.run.group import ALONE
from opatlas.run.implementation import KernelSource
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.instruments.kernel_records import MARK, KernelRecord, KernelRecords
from opatlas.run.job import Job
from opatlas.run.kernel_call import OperatorMode, is_free
from opatlas.theory.config_json import read_config
from opatlas.theory.model_calls import step_calls
from opatlas.theory.model_step import Step

#: With biases of the router, of the attention and of the experts.
BIASED = {
    **DENSE,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
}
SETTINGS = MeasureSettings(repeat_count=1, cache="warm", threads=1)
GAP_US = 0.5
IN_PLACE = """
from opatlas import Prepared


def add_rms_norm(x1, x2, gamma, epsilon):
    def call():
        x2.add_(x1)
        wide = x2.float()
        x1.copy_(wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt() * gamma)
        return x1, None, x2

    return Prepared(call, changes=(x1, x2))


def rotate(query, key, cos, sin, *, layout):
    def call():
        for x in (query, key):
            first, second = x.chunk(2, -1)
            x.copy_(x * cos + torch_cat(-second, first) * sin)

    return Prepared(call)


def torch_cat(*parts):
    import torch

    return torch.cat(parts, -1)
"""


class ToyDevice(OperatorMode):
    """Records the operators of torch as its kernels, each of 2 us."""

    name = "toy"

    def __init__(self):
        super().__init__()
        self.records = []

    def launch(self, name):
        self.records.append(KernelRecord(1, name, len(self.records) * (2.0 + GAP_US), 2.0))

    def make(self, operator, arguments, keywords):
        if not is_free(operator):
            self.launch(str(operator))
        return operator(*arguments, **keywords)

    @contextmanager
    def recording(self):
        self.records.clear()
        with self:
            yield lambda: list(self.records)


class ToyGraph:
    """A graph that makes the calls again."""

    def replay(self):
        self.run()


@pytest.fixture
def replay_of(tmp_path, monkeypatch):
    monkeypatch.setattr(step_replay, "_SUSTAINED_S", 0.001)
    monkeypatch.setattr(step_replay, "_BURST", 1)
    monkeypatch.setattr(step_replay, "_RECORDED", 2)
    # Other work on the machine may disturb the passes that are recorded.
    monkeypatch.setattr(step_replay, "_LONGER", math.inf)
    device = open_device(DeviceSpec("cpu", name="toy"), SETTINGS)
    monkeypatch.setattr(device, "flush_cache", lambda touched=None: None)

    def make(layers, launch="eager", instrument=None, config=CONFIG, settings=",batch=3,context=40"):
        (tmp_path / "config.json").write_text(json.dumps(config))
        cells = {STEP: f"{tmp_path}{settings}", STEP_LAYERS: layers, STEP_LAUNCH: launch}
        job = Job("bench.test_listed", "", "test_step", "Step", cells, 60)
        return step_replay.StepReplay(job, device, instrument or device.instrument(), SETTINGS, ALONE)

    return make


@pytest.fixture
def toy_graphs():
    def give(replay, name="CUDAGraph"):
        """Gives a replay a device with graphs, of that name in torch's module of the device."""

        @contextmanager
        def graph(made):
            made.run = replay.made
            yield

        def captured(run):
            replay.made = run
            return original(run)

        original, replay._captured = replay._captured, captured
        stream = SimpleNamespace(wait_stream=lambda other: None)
        replay._module = SimpleNamespace(
            **{name: ToyGraph},
            graph=graph,
            Stream=lambda: stream,
            current_stream=lambda: stream,
            stream=lambda one: contextmanager(lambda: iter([None]))(),
        )

    return give


@torch.no_grad()
@pytest.mark.parametrize(("config", "product"), [(CONFIG, "q_kv_a"), ({**CONFIG, "q_lora_rank": None}, "kv_a")])
def test_each_call_reads_what_an_earlier_one_wrote_and_is_right_in_place(replay_of, config, product):
    replay = replay_of("1 dense + 1 moe", config=config)
    replay()
    measurement = replay.outcome.measurement
    # No call reads a copy, and no result lies elsewhere at the next launch.
    assert measurement.assumptions == ()
    assert measurement.execution.max_error < 1
    parts = {each.part for each in replay._layers.calls}
    assert {product, "attention", "down", "permute", "experts_down", "experts_add"} <= parts
    for part in parts:
        assert measurement.counters[f"{part}(us)"] > 0 < measurement.counters[f"{part} alone(us)"]
    first, second = ([each.call for each in replay._layers.calls if each.part == name] for name in ("down", product))
    assert len(first) == 1, "only the first layer is dense"
    weights = [call.inputs[1] for call in second]
    assert weights[0].data_ptr() != weights[1].data_ptr()


@torch.no_grad()
@pytest.mark.parametrize("settings", ["", ",tp=2,ep=2", ",ep=4", ",tp=2,ep=8", ",tp=2,ep=2,routing=equal"])
def test_a_device_has_the_rows_of_its_own_experts(replay_of, settings):
    replay = replay_of("1 dense + 1 moe", settings=f",batch=3,context=40{settings}")
    replay()
    products = [each.call for each in replay._layers.calls if each.part in ("experts_gate_up", "experts_down")]
    for call in products:
        (rows,), (weights,), ends = (call.inputs[place] for place in (0, 1, "group_list"))
        assert len(ends) == len(weights) == 8 // Step.read(f"m{settings}").ep
        assert ends[-1] == len(rows), "an end behind the rows is an illegal access on a GPU"


@torch.no_grad()
def test_a_device_has_as_many_rows_as_the_model_says_of_the_busiest(replay_of):
    settings = ",batch=3,context=40,tp=2,ep=8"
    calls = {each.part: each for each in step_calls(read_config("m", CONFIG), Step.read(f"m{settings}"))}
    replay = replay_of("1 dense + 1 moe", settings=settings)
    replay()
    (call,) = (each.call for each in replay._layers.calls if each.part == "experts_down")
    assert f"{len(call.inputs[0][0])}," in calls["experts_down"].cells["Input Shapes"]


@torch.no_grad()
def test_a_router_with_a_bias_sends_tokens_to_different_experts(replay_of):
    replay = replay_of("1", config=BIASED, settings=",batch=64,context=16")
    replay()
    (ends,) = (each.call.inputs["group_list"] for each in replay._layers.calls if each.part == "experts_down")
    assert (ends.diff() > 0).sum() > len(ends) / 2


@torch.no_grad()
@pytest.mark.parametrize("sequences", ["2x3@40", "1x24@24", "1x16@40", "2x1@40+1x24@24"])
@pytest.mark.parametrize("config", [CONFIG, DENSE])
def test_drafts_and_prompts_are_right_in_place(replay_of, config, sequences):
    replay = replay_of("1", config=config, settings=f",sequences={sequences}")
    replay()
    assert replay.outcome.measurement.execution.max_error < 1


@torch.no_grad()
@pytest.mark.parametrize("config", [CONFIG, DENSE])
@pytest.mark.parametrize(
    "scales",
    [None, {"quant_method": "fp8", "weight_block_size": [128, 128]}, {"quant_method": "modelopt", "quant_algo": "FP8"}],
)
def test_results_of_products_have_size_1(replay_of, config, scales):
    """Of queries of size 40 each attends to one key, and a kernel that multiplies in FP8 finds another."""
    given = {"hidden_size": 128, "quantization_config": scales}
    replay = replay_of("1", config={**config, **given})
    replay()
    names = ("qkv", "q_kv_a", "o_proj", "gate_up", "down")
    sizes = {each.part: each.call.results()[0].float().std() for each in replay._layers.calls if each.part in names}
    assert len(sizes) >= 4
    assert all(0.2 < size < 5 for size in sizes.values()), sizes


@torch.no_grad()
def test_records_of_a_graph_are_told_by_call(replay_of, toy_graphs):
    toy = ToyDevice()
    records = KernelRecords(toy, lambda: toy.launch(MARK), lambda: None)
    replay = replay_of("1", "graph", records)
    toy_graphs(replay)
    replay._measured_alone = lambda own: 1.0
    replay._layers._measure_alone = lambda own: 1.0
    replay()
    counters = replay.outcome.measurement.counters
    assert replay.outcome.measurement.assumptions == ()
    kernels = replay.outcome.measurement.device_kernels
    assert counters["kernels(us)"] == pytest.approx(2.0 * kernels)
    assert counters["gaps(us)"] == pytest.approx(GAP_US * kernels)
    assert counters["down(us)"] == 2.0
    assert counters["down gap(us)"] == GAP_US


@torch.no_grad()
def test_what_a_call_changes_is_copied_where_its_maker_writes_elsewhere(replay_of, monkeypatch):
    monkeypatch.setattr(step_layer, "with_out", lambda operator: None)
    monkeypatch.setattr(step_layer, "_ALLOCATIONS", ())
    replay = replay_of("2", config=DENSE)
    replay()
    parts = [each.part for each in replay._layers.calls]
    assert parts[2:6] == ["query_norm", "", "key_norm", ""], "the rotation works in place"
    assert not any(name.startswith((" ", "(")) for name in replay.outcome.measurement.counters)


@torch.no_grad()
@pytest.mark.parametrize(("launch", "writes_elsewhere"), [("eager", False), ("graph", True)])
def test_kernels_that_work_in_place_are_right_in_each_replay(
    replay_of, toy_graphs, monkeypatch, tmp_path, writes_elsewhere, launch
):
    """As FlashInfer's: the norm changes its input and the residual, the rotation queries and keys."""
    if writes_elsewhere:
        monkeypatch.setattr(step_layer, "with_out", lambda operator: None)
    path = tmp_path / "in_place.py"
    path.write_text(IN_PLACE)
    names = {"AddRmsNorm": "add_rms_norm", "ApplyRotaryPosEmb": "rotate"}
    stack = {kernel_type: [KernelSource("toy 1", "", str(path), name)] for kernel_type, name in names.items()}
    monkeypatch.setattr(step_replay, "read_stack", lambda text, kind: stack)
    replay = replay_of("3", launch, config=DENSE)
    if launch == "graph":
        toy_graphs(replay, "NPUGraph")
    replay()
    assert "toy 1" in replay.outcome.measurement.execution.implementation
    assert ("" in [each.part for each in replay._layers.calls]) is writes_elsewhere


#: With layers whose state each token reads and changes: delta rules of two kinds, and Mamba2 without gated products.
STATEFUL = {
    "qwen3_next": {
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "layer_types": ["full_attention", "linear_attention"] * 2,
    },
    "kimi_linear": {
        "q_lora_rank": None,
        "linear_attn_config": {"kda_layers": [1], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4},
    },
    "nemotron_h": {"hybrid_override_pattern": "M-*-", "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2},
}


@torch.no_grad()
@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("sequences", ["3x1@40", "1x24@24"])
def test_each_pass_begins_with_the_states_before_the_token(replay_of, name, sequences):
    config = {**(CONFIG if name == "kimi_linear" else DENSE), "model_type": name, **STATEFUL[name]}
    replay = replay_of("2", config=config, settings=f",sequences={sequences}")
    replay()
    assert replay.outcome.measurement.execution.max_error < 1


@torch.no_grad()
@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        # torch raises it where a captured call copies from the host.
        (RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture"), Unsupported),
        (torch.OutOfMemoryError("CUDA out of memory."), torch.OutOfMemoryError),
    ],
)
def test_a_step_that_no_graph_holds_is_unsupported(replay_of, toy_graphs, error, wanted):
    replay = replay_of("1", "graph", config=DENSE)
    toy_graphs(replay)

    @contextmanager
    def refuse(made):
        yield
        raise error

    replay._module.graph = refuse
    with pytest.raises(wanted, match="eager" if wanted is Unsupported else "memory"):
        replay()


@torch.no_grad()
def test_results_that_changed_since_the_first_pass_are_wrong(replay_of):
    replay = replay_of("1")
    measured = replay._measured

    def spoil(run, in_place):
        next(each for each in replay._layers.calls if each.part == "o_proj").call.inputs[1].mul_(2)
        return measured(run, in_place)

    replay._measured = spoil
    with pytest.raises(WrongResult, match="o_proj"):
        replay()


def test_a_step_is_a_row_of_steps_beside_the_kernels(sessions: Sessions):
    (sessions.folder / "tiny").mkdir()
    (sessions.folder / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    staged = sessions.run(str(ROOT / "bench" / "test_listed.py"), "--step", "tiny,batch=2,context=16,pp=2")
    assert staged.code == pytest.ExitCode.USAGE_ERROR
    step = ("--step", "tiny,batch=2,context=16,layers=1")
    done = sessions.run(str(ROOT / "bench" / "test_listed.py"), *step, "-v", measure=("--repeat-count=1",))
    assert done.code == 0, done.output
    assert "Step-tiny-batch2-context16-" in done.output
    (row,) = sessions.read("steps/Step")
    assert (row[STEP], row[STEP_LAYERS], row[STEP_LAUNCH]) == ("tiny,batch=2,context=16", "1", "eager")
    assert (row["Cache State"], row["Input Shapes"]) == ("warm", "2,64")
    assert float(row["MicroBench alone(us)"]) > float(row["MicroBench attention alone(us)"]) > 0


def test_a_step_of_two_devices_is_a_row_of_parallel_steps(sessions: Sessions):
    (sessions.folder / "tiny").mkdir()
    (sessions.folder / "tiny" / "config.json").write_text(json.dumps(DENSE))
    step = "tiny,batch=2,context=16,tp=2,collectives=library"
    done = sessions.run(
        str(ROOT / "bench" / "test_listed.py"), f"--step={step},layers=1", measure=("--repeat-count=2",)
    )
    assert done.code == 0, done.output
    (row,) = sessions.read("steps/ParallelStep")
    assert (row[STEP], row[STEP_LAYERS], row["MicroBench Samples"]) == (step, "1", "2")
    assert float(row["MicroBench Rank Spread(us)"]) >= 0
