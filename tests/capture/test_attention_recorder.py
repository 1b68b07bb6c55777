"""The recorder of attention calls, around a stand-in for torch_npu. (tests/npu has the real one.)"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import types
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import torch
from captures import DECODE_RECORD

from opatlas.capture import attention_recorder
from opatlas.capture.attention_recorder import ENVIRONMENT, record_attention

REPOSITORY = Path(__file__).parents[2]
_ARGUMENTS = (
    "(Tensor query, Tensor key, Tensor value, *, Tensor? atten_mask=None, SymInt[]? {q}=None, SymInt[]? {kv}=None, "
    "Tensor? block_table=None, int {heads}=1, str input_layout='BSH', int num_key_value_heads=0, int sparse_mode=0, "
    "int block_size=0, int pre_tokens=2147483647{out}) -> {result}"
)
V1 = {"q": "actual_seq_lengths", "kv": "actual_seq_lengths_kv", "heads": "num_heads"}
V2 = {"q": "actual_seq_qlen", "kv": "actual_seq_kvlen", "heads": "num_query_heads"}
NAMES = {"npu_fused_infer_attention_score": V1, "npu_fused_infer_attention_score_v2": V2}


@pytest.fixture(scope="module")
def operators():
    """Operators with the arguments of torch_npu's that count here; they give back the query."""
    library = torch.library.Library("opatlas_recorder", "DEF")

    def out_form(query, key, value, *, out, **keywords):
        if len(query) == 13:
            raise RuntimeError("thirteen queries")
        return out.copy_(query)

    for name, names in NAMES.items():
        library.define(name + _ARGUMENTS.format(**names, out="", result="Tensor"))
        library.define(f"{name}.out" + _ARGUMENTS.format(**names, out=", Tensor(a!) out", result="Tensor(a!)"))
        library.impl(name, lambda query, *_, **__: query.clone(), "CompositeExplicitAutograd")
        library.impl(f"{name}.out", out_form, "CompositeExplicitAutograd")
    yield torch.ops.opatlas_recorder
    library._destroy()


@pytest.fixture
def torch_npu(operators, monkeypatch):
    module = types.SimpleNamespace(**{name: getattr(operators, name) for name in NAMES})
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return module


@pytest.fixture
def recorder(tmp_path, torch_npu):
    recorder = record_attention(tmp_path / "calls.jsonl")
    yield recorder
    recorder.stop()


class PythonOperator:
    """An operator without a schema, which takes lengths of any type."""

    def __init__(self):
        self._op = lambda query, *_, **__: query.clone()

    def overloads(self):
        return []

    def __call__(self, *arguments, **keywords):
        return self._op(*arguments, **keywords)


@pytest.fixture
def python_operator(monkeypatch):
    operator = PythonOperator()
    module = types.SimpleNamespace(npu_fused_infer_attention_score=operator)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return operator


def lines(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def arguments(kv=(300, 128, 7), tokens=3):
    tensors = [torch.zeros(tokens, 4, 16), torch.zeros(9, 128, 16), torch.zeros(9, 128, 16)]
    keywords = {
        "atten_mask": torch.zeros(2048, 2048, dtype=torch.int8),
        "actual_seq_lengths": [1, 2, 3],
        "actual_seq_lengths_kv": kv,
        "block_table": torch.zeros(3, 16, dtype=torch.int32),
        "num_heads": 4,
        "num_key_value_heads": 1,
        "input_layout": "TND",
        "sparse_mode": 3,
        "block_size": 128,
    }
    return tensors, keywords


RECORD = {**DECODE_RECORD, "query_shape": [3, 4, 16], "key_shape": [9, 128, 16], "value_shape": [9, 128, 16]}


def call(operator, *values, **changes):
    tensors, keywords = arguments(*values)
    return operator(*tensors, **{**keywords, **changes})


def test_a_call(recorder, torch_npu, tmp_path):
    with recorder:
        result = call(torch_npu.npu_fused_infer_attention_score)
        call(torch_npu.npu_fused_infer_attention_score, sparse_mode=4, pre_tokens=127)
    assert result.shape == (3, 4, 16)
    assert lines(tmp_path) == [RECORD, {**RECORD, "sparse_mode": 4, "pre_tokens": 127}]
    assert [path.name for path in tmp_path.iterdir()] == [f"calls.{os.getpid()}.jsonl"]


def test_the_second_version_calls_its_arguments_otherwise(recorder, torch_npu, tmp_path):
    tensors, keywords = arguments()
    renamed = {V1[word]: V2[word] for word in V1}
    with recorder:
        torch_npu.npu_fused_infer_attention_score_v2(
            *tensors, **{renamed.get(name, name): value for name, value in keywords.items()}
        )
    assert lines(tmp_path) == [RECORD]


def test_the_out_form_by_names_and_one_that_was_fetched_before(recorder, torch_npu, tmp_path):
    fetched, default = torch_npu.npu_fused_infer_attention_score.out, torch_npu.npu_fused_infer_attention_score.default
    (query, key, value), keywords = arguments()
    with recorder:
        fetched(query=query, key=key, value=value, **keywords, out=torch.empty_like(query))
        call(default, [1, 1, 1])
    assert lines(tmp_path)[0] == RECORD
    assert lines(tmp_path)[1]["actual_seq_lengths_kv"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("lengths", "recorded"),
    [
        (torch.tensor([5, 6]), [5, 6]),
        (np.array([5, 6]), [5, 6]),
        ([np.int64(5), 6], [5, 6]),
        ((), []),
        # Its values would have to be fetched from a device.
        (torch.zeros(2, dtype=torch.int64, device="meta"), None),
        ([torch.tensor(5), torch.tensor(6)], None),
    ],
)
def test_lengths_of_any_kind(lengths, recorded, python_operator, tmp_path):
    with record_attention(tmp_path / "calls.jsonl"):
        call(python_operator, lengths)
    (record,) = lines(tmp_path)
    assert record["actual_seq_lengths_kv"] == recorded


def test_equal_calls_are_one_record(torch_npu, tmp_path, monkeypatch):
    monkeypatch.setattr("opatlas.capture.attention_recorder._REMEMBERED", 3)
    with record_attention(tmp_path / "calls.jsonl"):
        for kv in (1, 2, 1, 2, 3, 4, 5, 1):
            call(torch_npu.npu_fused_infer_attention_score, [kv, 1, 1])
    # After so many others the first one is forgotten.
    assert [record["actual_seq_lengths_kv"][0] for record in lines(tmp_path)] == [1, 2, 3, 4, 5, 1]


def test_off_installs_nothing(torch_npu, recorder):
    packet = torch_npu.npu_fused_infer_attention_score
    forms = [packet, packet.default, packet.out]
    originals, hashes, table = [form._op for form in forms], [*map(hash, forms)], dict.fromkeys(forms, 1)
    with recorder:
        assert not any(form._op is original for form, original in zip(forms, originals, strict=True))
        # Tables of torch, torch_npu and compilers have operators as keys.
        assert [*map(hash, forms)] == hashes
        assert all(form in table for form in forms)
    assert all(form._op is original for form, original in zip(forms, originals, strict=True))


def test_a_call_that_fails_is_the_callers(recorder, torch_npu, tmp_path, caplog):
    (query, *rest), keywords = arguments(tokens=13)
    with recorder, pytest.raises(RuntimeError, match="thirteen queries"):
        torch_npu.npu_fused_infer_attention_score.out(query, *rest, **keywords, out=torch.empty_like(query))
    assert (lines(tmp_path), caplog.records) == ([], [])


class BrokenLengths:
    """Lengths that cannot be read."""

    def tolist(self):
        raise ValueError("a mistake")


def test_an_error_of_the_recorder_is_logged_once(python_operator, tmp_path, caplog):
    original = python_operator._op
    with record_attention(tmp_path / "calls.jsonl"):
        for _ in range(3):
            assert call(python_operator, BrokenLengths()).shape == (3, 4, 16)
        assert python_operator._op is original
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("opatlas", "WARNING")
    assert "a mistake" in record.getMessage()


@pytest.mark.parametrize(
    "module", [types.SimpleNamespace(), types.SimpleNamespace(npu_fused_infer_attention_score=len)]
)
def test_another_torch_npu_does_no_harm(monkeypatch, tmp_path, caplog, module):
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    with record_attention(tmp_path / "calls.jsonl") as recorder:
        assert not recorder.recording
    (record,) = caplog.records
    assert "AttributeError" in record.getMessage()


def test_a_file_grows_so_far(torch_npu, tmp_path, caplog, monkeypatch):
    most_bytes = 1000
    monkeypatch.setattr("opatlas.capture.attention_recorder._MOST_BYTES", most_bytes)
    with record_attention(tmp_path / "calls.jsonl") as recorder:
        for kv in range(1, 40):
            call(torch_npu.npu_fused_infer_attention_score, [kv, 1, 1])
        assert not recorder.recording
    assert len(lines(tmp_path)) == most_bytes // len(json.dumps(RECORD, separators=(",", ":")))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


def test_threads(recorder, torch_npu, tmp_path):
    def work(thread):
        for kv in range(1, 60):
            call(torch_npu.npu_fused_infer_attention_score, [thread * 1000 + kv, 1, 1])

    with recorder:
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({record["actual_seq_lengths_kv"][0] for record in lines(tmp_path)}) == len(lines(tmp_path)) == 236


#: A package that is imported after the recorder was started, and its use in a serving process.
_TORCH_NPU = """
import torch
_library = torch.library.Library("late", "DEF")
_library.define("npu_fused_infer_attention_score{schema}")
_library.impl("npu_fused_infer_attention_score", lambda query, *_, **__: query.clone(), "CompositeExplicitAutograd")
npu_fused_infer_attention_score = torch.ops.late.npu_fused_infer_attention_score
"""
_SERVE = """
import os, sys
from opatlas.capture.attention_recorder import start_from_environment
for _ in range(2):
    start_from_environment()
assert not {"torch", "torch_npu", "pytest"} & set(sys.modules), "the recorder imports nothing"
import torch, torch_npu

def serve(kv):
    torch_npu.npu_fused_infer_attention_score(*[torch.zeros(2, 3)] * 3, actual_seq_lengths_kv=[kv])

serve(1)
child = os.fork()
serve(2 if child else 3)
if child:
    os.waitpid(child, 0)
    print(os.getpid(), child)
os._exit(0)
"""


#: torch.compile in a process of its own: its state is that of a whole process, and other tests compile too.
_COMPILE = """
import sys, torch, torch_npu
from opatlas.capture.attention_recorder import record_attention

def attend(query, key, value, lengths):
    return torch_npu.npu_fused_infer_attention_score(query, key, value, actual_seq_lengths_kv=lengths) + 1

with record_attention(sys.argv[1]):
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    for kv in 3, 5:
        assert compiled(*[torch.zeros(2, 3)] * 3, [kv]).eq(1).all()
"""


def in_a_process(script: str, folder: Path, *arguments: str, **environment: str) -> str:
    """Runs a script beside a stand-in for torch_npu that can be imported, and returns what it prints."""
    package = folder / "packages" / "torch_npu"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(
        _TORCH_NPU.format(schema=_ARGUMENTS.format(**V1, out="", result="Tensor"))
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}:{package.parent}",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        **environment,
    }
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_variable_before_the_import_and_a_file_for_each_process(tmp_path):
    printed = in_a_process(_SERVE, tmp_path, **{ENVIRONMENT: str(tmp_path / "calls.jsonl")})
    lengths = {}
    for name, pid in zip(("parent", "child"), printed.split(), strict=True):
        text = (tmp_path / f"calls.{pid}.jsonl").read_text()
        lengths[name] = [json.loads(line)["actual_seq_lengths_kv"] for line in text.splitlines()]
    assert lengths == {"parent": [[1], [2]], "child": [[3]]}


@pytest.mark.usefixtures("forks")
def test_a_compiled_call_is_recorded_when_it_runs(tmp_path):
    in_a_process(_COMPILE, tmp_path, str(tmp_path / "calls.jsonl"))
    (file,) = tmp_path.glob("calls.*.jsonl")
    assert [json.loads(line)["actual_seq_lengths_kv"] for line in file.read_text().splitlines()] == [[3], [5]]


def test_vllm_finds_it():
    (plugin,) = entry_points(group="vllm.general_plugins", name="opatlas_record_attention")
    assert plugin.load() is attention_recorder.start_from_environment


@pytest.fixture
def flash(monkeypatch):
    """Stand-ins for the functions of vLLM and of SGLang, with the arguments that count here."""

    def flash_attn_varlen_func(
        q,
        k,
        v,
        max_seqlen_q,
        cu_seqlens_q,
        max_seqlen_k,
        cu_seqlens_k=None,
        seqused_k=None,
        causal=False,
        block_table=None,
        window_size=None,
    ):
        return q

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=None, page_table=None, cu_seqlens_q=None, causal=False
    ):
        return q

    vllm, sglang = types.ModuleType("vllm"), types.ModuleType("sglang")
    vllm.flash_attn_varlen_func, sglang.flash_attn_with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn.flash_attn_interface", vllm)
    monkeypatch.setitem(sys.modules, "sgl_kernel.flash_attn", sglang)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    return types.SimpleNamespace(vllm=vllm, sglang=sglang)


def lengths_tensor(*lengths):
    return torch.tensor(lengths, dtype=torch.int32)


@pytest.mark.parametrize("inference", [False, True])
def test_calls_of_flash_attention_on_gpus(flash, tmp_path, inference):
    """Engines run in inference mode, in which tensors have no versions."""
    original = flash.vllm.flash_attn_varlen_func
    with torch.inference_mode(inference), record_attention(tmp_path / "calls.jsonl"):
        query, cache = torch.zeros(6, 4, 16), torch.zeros(99, 32, 2, 16)
        table, ends, keys = torch.zeros(3, 8, dtype=torch.int32), lengths_tensor(0, 1, 2, 6), lengths_tensor(40, 7, 64)
        of_step = {"seqused_k": keys, "causal": True, "block_table": table}
        for _ in range(3):
            assert flash.vllm.flash_attn_varlen_func(query, cache, cache, 4, ends, 64, **of_step) is query
        # The next step, in the same tensor.
        keys += 1
        flash.vllm.flash_attn_varlen_func(query, cache, cache, 4, ends, 65, **of_step)
        packed = torch.zeros(6, 2, 16)
        flash.vllm.flash_attn_varlen_func(query, packed, packed, 4, ends, 4, cu_seqlens_k=ends, causal=True)
        flash.vllm.flash_attn_varlen_func(query, cache, cache, 4, ends, 65, **of_step, window_size=[2, 0])
        decode = torch.zeros(3, 1, 4, 16)
        flash.sglang.flash_attn_with_kvcache(decode, cache, cache, cache_seqlens=keys, page_table=table, causal=True)
    assert flash.vllm.flash_attn_varlen_func is original
    first, second, prompts, cut, tokens = lines(tmp_path)
    assert (cut["sparse_mode"], cut["pre_tokens"]) == (4, 2)
    assert first == {
        "query_shape": [6, 4, 16],
        # Of the blocks of a cache a row has as many as the table can name.
        "key_shape": [24, 32, 32],
        "value_shape": [24, 32, 32],
        "atten_mask_shape": [2048, 2048],
        "block_table_shape": [3, 8],
        "actual_seq_lengths": [1, 2, 6],
        "actual_seq_lengths_kv": [40, 7, 64],
        "block_table_valid_blocks": [2, 1, 2],
        "num_heads": 4,
        "num_key_value_heads": 2,
        "sparse_mode": 3,
        "input_layout": "TND",
        "block_size": 32,
    }
    assert second["actual_seq_lengths_kv"] == [41, 8, 65]
    assert (prompts["key_shape"], prompts["actual_seq_lengths_kv"]) == ([6, 2, 16], [1, 2, 6])
    assert (tokens["query_shape"], tokens["actual_seq_lengths"]) == ([3, 4, 16], [1, 2, 3])
