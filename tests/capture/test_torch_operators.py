"""Rows of operators of torch: those of the theory of a model for the same calls, and such that their replays take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from torch_calls import F32, I32, I64, NONE, expect_replay, listed, made, number, operator, scalar, tensor, weight

from opatlas.capture.launches import SkipReason
from opatlas.capture.operator_rows import CapturedRow, LeftOut, Operator, products_of_experts
from opatlas.capture.torch_launches import read_outcomes, read_torch_trace
from opatlas.capture.torch_operators import OPERATORS, is_known, row_of, wins_over_inner
from opatlas.row import columns as col
from opatlas.row.attention import batch_cells, read_sequences, row_key
from opatlas.row.signature import signature
from opatlas.theory.model_calls import model_calls
from opatlas.theory.sources import resolve_model

TRACES = Path(__file__).parents[1] / "data" / "torch_traces"


def text(row: CapturedRow) -> str:
    """A row as `type shapes | dtypes -> shapes | dtypes`, without the prefix of dtypes."""
    shapes, dtypes, results, result_dtypes = (
        row.cells[name].replace("DT_UNDEFINED", "").replace("DT_", "")
        for name in (col.INPUT_SHAPES, col.INPUT_DTYPES, col.OUTPUT_SHAPES, col.OUTPUT_DTYPES)
    )
    return f"{row.kernel_type} {shapes} | {dtypes} -> {results} | {result_dtypes}"


CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<{}u>, 4>"
)
SLICED = tensor(1, 512, 2816, strides=(2883584, 5632, 1))
TOKENS = "99,1,1,64;99,1,1,64"
MASK, MASKED = tensor(8, 8), "FlashAttentionScore 1,4,8,6;1,4,8,6;1,4,8,6"
#: Operators as in traces of an H200, and their rows.
ROWS = {
    "a batch of one has no axis": (("aten::silu", tensor(1, 256, 3072)), "Swish 256,3072 | BF16 -> 256,3072 | BF16"),
    "one token of each sequence": (
        ("aten::_fused_rms_norm", tensor(32, 1, 1024), scalar([1024]), tensor(1024), NONE),
        "RmsNorm 32,1024;1024 | BF16;BF16 -> 32,1024;32,1 | BF16;FLOAT",
    ),
    "a statistic keeps its last axis": (
        ("aten::rsqrt", tensor(1, 256, 16, 1, dtype=F32)),
        "Rsqrt 256,16,1 | FLOAT -> 256,16,1 | FLOAT",
    ),
    "in place": (
        ("aten::div_", tensor(8, 2, dtype=F32), tensor(8, 1, dtype=F32)),
        "RealDiv 8,2;8,1 | FLOAT;FLOAT -> 8,2 | FLOAT",
    ),
    "times a number": (("aten::mul", tensor(256, 64, dtype=F32), number()), "Muls 256,64 | FLOAT -> 256,64 | FLOAT"),
    "plus a number": (
        ("aten::add", tensor(1, 256, 1, dtype=F32), number(), scalar(1)),
        "Add 256,1; | FLOAT;FLOAT -> 256,1 | FLOAT",
    ),
    "a repeated operand is as it is stored": (
        ("aten::mul", tensor(8, 64), tensor(8, 64, strides=(1, 0))),
        "Mul 8,64;8,1 | BF16;BF16 -> 8,64 | BF16",
    ),
    "two dtypes": (("aten::add", tensor(8, 64, dtype=F32), tensor(64)), "Add 8,64;64 | FLOAT;BF16 -> 8,64 | FLOAT"),
    "a square": (("aten::pow", tensor(4, 8, dtype=F32), scalar(2)), "Square 4,8 | FLOAT -> 4,8 | FLOAT"),
    "another power": (("aten::pow", tensor(4, 8, dtype=F32), scalar(3)), "Pows 4,8; | FLOAT;FLOAT -> 4,8 | FLOAT"),
    "gelu": (("aten::gelu", tensor(8, 64), NONE), "GeluV2 8,64 | BF16 -> 8,64 | BF16"),
    "a comparison": (("aten::ge", tensor(512, dtype=I64), scalar(8)), "GreaterEqual 512; | INT64;INT64 -> 512 | BOOL"),
    "a bound": (
        ("aten::clamp_", tensor(512, dtype=I64), NONE, scalar(7)),
        "ClipByValueV2 512;; | INT64;INT64;INT64 -> 512 | INT64",
    ),
    "a cast": (
        ("aten::copy_", tensor(1, 8, 4, dtype=F32), tensor(1, 8, 4), scalar(False)),
        "Cast 8,4 | BF16 -> 8,4 | FLOAT",
    ),
    "a copy": (("aten::copy_", tensor(8, 4), tensor(8, 4), scalar(False)), "TensorMove 8,4 | BF16 -> 8,4 | BF16"),
    "a copy that permutes": (
        ("aten::copy_", tensor(1, 256, 16, 64), tensor(1, 256, 16, 64, strides=(262144, 64, 16384, 1)), scalar(False)),
        "Transpose 16,256,64;3 | BF16;INT64 -> 256,16,64 | BF16",
    ),
    "a copy that repeats": (
        ("aten::copy_", tensor(6, 2, 4), tensor(6, 2, 4, strides=(2, 1, 0)), scalar(False)),
        "BroadcastTo 6,2,1;3 | BF16;INT64 -> 6,2,4 | BF16",
    ),
    "a copy of a part": (
        ("aten::copy_", tensor(1, 512, 2816), SLICED, scalar(False)),
        "Slice 512,5632;2;2 | BF16;INT64;INT64 -> 512,2816 | BF16",
    ),
    "a concatenation": (
        ("aten::cat", listed((1, 16, 256, 64), (1, 16, 256, 32)), scalar(-1)),
        "ConcatD 16,256,64;16,256,32 | BF16;BF16 -> 16,256,96 | BF16",
    ),
    "a mean": (
        ("aten::mean", tensor(1, 256, 1024, dtype=F32), scalar([-1]), scalar(True), NONE),
        "ReduceMean 256,1024;1 | FLOAT;INT64 -> 256,1 | FLOAT",
    ),
    "a sum over a middle axis": (
        ("aten::sum", tensor(256, 4, 1024), scalar([1]), scalar(False), NONE),
        "ReduceSum 256,4,1024;1 | BF16;INT64 -> 256,1024 | BF16",
    ),
    "a sum of counts": (
        ("aten::cumsum", tensor(1, 9, dtype="bool"), scalar(-1), NONE),
        "Cumsum 1,9; | BOOL;INT64 -> 1,9 | INT64",
    ),
    "a dtype by torch's number": (
        ("aten::cumsum", tensor(9, dtype=I32), scalar(0), scalar(3)),
        "Cumsum 9; | INT32;INT64 -> 9 | INT32",
    ),
    "largest": (
        ("aten::topk", tensor(256, 16, dtype=F32), scalar(4), scalar(-1), scalar(True), scalar(True)),
        "TopKV2 256,16; | FLOAT;INT32 -> 256,4;256,4 | FLOAT;INT32",
    ),
    "sorted": (
        ("aten::sort", tensor(9, dtype=F32), scalar(False), scalar(-1), scalar(False)),
        "Sort 9 | FLOAT -> 9;9 | FLOAT;INT32",
    ),
    "a bias": (
        ("aten::addmm", tensor(96), tensor(8, 64), weight(96, 64), scalar(1), scalar(1)),
        "MatMulV2 8,64;96,64;96 | BF16;BF16;BF16 -> 8,96 | BF16",
    ),
    "a weight by rows": (("aten::mm", tensor(8, 64), tensor(64, 96)), "MatMulV2 8,64;64,96 | BF16;BF16 -> 8,96 | BF16"),
    "a batch": (
        ("aten::bmm", tensor(1, 64, 1, dtype=F32), tensor(1, 1, 256, dtype=F32)),
        "BatchMatMulV2 1,64,1;1,1,256 | FLOAT;FLOAT -> 1,64,256 | FLOAT",
    ),
    "FP8 in blocks": (
        (
            *("aten::_scaled_mm", tensor(8, 256, dtype="c10::Float8_e4m3fn")),
            tensor(256, 384, dtype="c10::Float8_e4m3fn", strides=(1, 256)),
            *(tensor(8, 2, dtype=F32), tensor(2, 3, dtype=F32), NONE, NONE, scalar(15), scalar(True)),
        ),
        "QuantBatchMatmulV3 8,256;384,256;3,2;8,2 | FLOAT8_E4M3FN;FLOAT8_E4M3FN;FLOAT;FLOAT -> 8,384 | BF16",
    ),
    "a convolution": (
        (
            *("aten::cudnn_convolution", tensor(2, 3, 14, 14), tensor(6, 3, 7, 7), scalar([0, 0]), scalar([7, 7])),
            *(scalar([1, 1]), scalar(1), scalar(False), scalar(False), scalar(True)),
        ),
        "Conv2D 2,3,14,14;6,3,7,7 | BF16;BF16 -> 2,6,2,2 | BF16",
    ),
    "experts": (
        (
            "aten::_grouped_mm",
            tensor(64, 32),
            tensor(4, 32, 48, strides=(1536, 1, 32)),
            tensor(4, dtype=I32),
            NONE,
            NONE,
        ),
        "GroupedMatmul 64,32;4,32,48;;;;;;4; | BF16;BF16;;;;;;INT64; -> 64,48 | BF16",
    ),
    "a mask": (
        (
            *("aten::_scaled_dot_product_cudnn_attention", *[tensor(1, 4, 8, 6)] * 3, MASK),
            *(scalar(False), scalar(0.0), scalar(False), scalar(False), NONE),
        ),
        f"{MASKED};;;;8,8 | BF16;BF16;BF16;;;;BOOL -> 1,4,8,8;1,4,8,8;;1,4,8,6 | FLOAT;FLOAT;;BF16",
    ),
    "a norm of aiter": (
        ("aiter::rmsnorm", tensor(8, 64), tensor(8, 64), tensor(64), scalar(1e-6)),
        "RmsNorm 8,64;64 | BF16;BF16 -> 8,64;8,1 | BF16;FLOAT",
    ),
    "a norm of aiter with a sum": (
        ("aiter::add_rmsnorm", *[tensor(8, 64)] * 4, tensor(64), scalar(1e-6)),
        "AddRmsNorm 8,64;8,64;64 | BF16;BF16;BF16 -> 8,64;8,1;8,64 | BF16;FLOAT;BF16",
    ),
    "a cache by tokens": (
        (
            *("sglang::store_cache", tensor(8, 64), tensor(8, 64, strides=(96, 1)), *[tensor(99, 64)] * 2),
            *(tensor(8, dtype=I64), scalar(128), scalar(0)),
        ),
        f"ReshapeAndCacheNdKernel 8,1,64;8,1,64;{TOKENS};8 | BF16;BF16;BF16;BF16;INT32 -> {TOKENS} | BF16;BF16",
    ),
    "padding after the data": (
        ("aten::constant_pad_nd", tensor(8, 6, 60), scalar([0, 4, 0, 2]), scalar(0.0)),
        "PadV3 8,6,60;6; | BF16;INT64;BF16 -> 8,8,64 | BF16",
    ),
    "a compiled kernel": (
        ("triton_poi_fused_add_0", tensor(8, 4), tensor(8, 4), scalar(32)),
        "triton_poi_fused_add_0 8,4;8,4 | BF16;BF16 ->  | ",
    ),
}


@pytest.mark.parametrize(("call", "row"), ROWS.values(), ids=ROWS)
def test_an_operator_is_the_row_of_its_kernel_type(call: tuple[Any, ...], row: str) -> None:
    found = made(*call, kernels=(CAT.format(2),))
    assert text(found) == row
    if not found.kernel_type.startswith("triton"):
        expect_replay(found)


LEFT_OUT = {
    "a mask of other keys": (
        *("aten::_scaled_dot_product_efficient_attention", *[tensor(1, 4, 8, 64)] * 3, tensor(1, 4, 8, 16)),
        *(scalar(False), scalar(0.0), scalar(False), NONE),
    ),
    "no dtype": ("aten::cat", listed((4, 8), (4, 8)), scalar(0)),
    "steps": ("aten::copy_", tensor(8, 4), tensor(8, 4, strides=(8, 2)), scalar(False)),
    "into a part": ("aten::copy_", tensor(8, 4, strides=(8, 1)), tensor(8, 4), scalar(False)),
    "a factor": ("aten::add", tensor(8, 4), tensor(8, 4), scalar(2)),
    "another axis": ("aten::_softmax", tensor(8, 4), scalar(0), scalar(False)),
    "a tensor that no slot has": ("aten::clamp", tensor(8, 4), tensor(8, 4), NONE),
    "padding before the data": ("aten::constant_pad_nd", tensor(8, 4), scalar([1, 0]), scalar(0.0)),
    "index tensors": ("aten::index", tensor(8, 4), NONE),
    "not of whole numbers": ("aten::bitwise_and", tensor(8, dtype=I64), tensor(8, dtype=I64)),
    "fewer arguments": ("aten::mm", tensor(8, 4)),
    "a type that is no text": ("aten::mm", ((8, 4), 3, (4, 1), ""), tensor(4, 8)),
}


@pytest.mark.parametrize("call", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_no_row_says_is_left_out_with_a_reason(call: tuple[Any, ...]) -> None:
    found = row_of(operator(*call), ["a kernel"])
    assert isinstance(found, LeftOut)
    assert found.reason is SkipReason.UNKNOWN_LAYOUT
    assert found.detail


@pytest.mark.parametrize(
    ("name", "reason"),
    {
        "aten::histc": "NO_OPERATOR",
        "vllm::moe_forward": "FUSED",
        "vllm::unified_attention_with_output": "NO_LENGTHS",
    }.items(),
)
def test_operators_without_a_type_are_named(name: str, reason: str) -> None:
    found = row_of(Operator(name), ())
    assert isinstance(found, LeftOut)
    assert found.reason is SkipReason[reason]
    assert is_known(name) is (reason != "NO_OPERATOR")
    assert not wins_over_inner(name)


def test_the_kernel_tells_an_approximation() -> None:
    """The name of the lambda of a pointwise kernel has the number of the function in torch's file."""
    name = "GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}::operator()()"
    assert made("aten::gelu", tensor(8, 64), NONE, kernels=(name,)).kernel_type == "Gelu"


def test_a_row_says_what_it_lacks() -> None:
    assert "contiguous" in made("aten::silu", SLICED).differs
    assert not made("aten::silu", tensor(8, 4, strides=(1, 8))).differs
    told = made("aten::_grouped_mm", *ROWS["experts"][0][1:]).differs
    assert "sizes of groups" in told
    assert "other order" in told


def layer(model: Any, tokens: int, *, logits: int) -> Mapping[str, CapturedRow]:
    """The rows of the operators of a layer of Qwen3 as vLLM calls them, by the parts of the model's theory."""
    hidden, width, heads, kv = model.hidden, model.head_dim, model.heads, model.kv_heads
    x, gamma = tensor(tokens, hidden), tensor(hidden)
    epsilon = scalar(1e-6)

    def norm(heads: int) -> CapturedRow:
        return made("_C::rms_norm", *[tensor(tokens, heads, width)] * 2, tensor(width), epsilon)

    def product(rows: int, n: int, k: int) -> CapturedRow:
        return made("aten::mm", tensor(rows, k), weight(n, k))

    cache = tensor(64, 128, kv, width)
    new = tensor(tokens, kv, width)
    return {
        "embedding": made("aten::embedding", tensor(model.vocab, hidden), tensor(tokens, dtype=I64), *[scalar(-1)] * 3),
        "attention_norm": made("_C::rms_norm", x, x, gamma, epsilon),
        "ffn_norm": made("_C::fused_add_rms_norm", x, x, gamma, epsilon),
        "qkv": product(tokens, (heads + 2 * kv) * width, hidden),
        "query_norm": norm(heads),
        "key_norm": norm(kv),
        "cache": made(
            *("_C_cache_ops::reshape_and_cache_flash", new, new, cache, cache, tensor(tokens, dtype=I64)),
            *(NONE, tensor(1, dtype=F32), tensor(1, dtype=F32)),
        ),
        "o_proj": product(tokens, hidden, heads * width),
        "gate_up": product(tokens, 2 * model.intermediate, hidden),
        "act": made("_C::silu_and_mul", tensor(tokens, model.intermediate), tensor(tokens, 2 * model.intermediate)),
        "down": product(tokens, hidden, model.intermediate),
        "rope": made(
            *("_C::rotary_embedding", tensor(tokens, dtype=I64), tensor(tokens, heads * width)),
            *(tensor(tokens, kv * width), scalar(width), tensor(40960, width), scalar(True)),
        ),
        "last_tokens": made("aten::index_select", tensor(tokens, hidden), scalar(0), tensor(logits, dtype=I64)),
        "lm_head": product(logits, model.vocab, hidden),
        "logits_cast": made("aten::copy_", tensor(logits, model.vocab, dtype=F32), tensor(logits, model.vocab), NONE),
        "sample": made("aten::argmax", tensor(logits, model.vocab, dtype=F32), scalar(-1), scalar(False)),
    }


def test_rows_of_operators_are_those_of_the_models_theory() -> None:
    model = resolve_model("qwen3-0.6b")
    batch, context = 4, 256
    for phase, tokens in (("prefill", batch * context), ("decode", batch)):
        theory = model_calls(model, batch=batch, context=context, phase=phase)  # type: ignore[arg-type]
        rows = dict(layer(model, tokens, logits=batch))
        if phase == "prefill":
            # The sequences of a batch in the layout of torch, one after the other in the row.
            q, k = tensor(batch, model.heads, context, 128), tensor(batch, model.kv_heads, context, 128)
            options = (NONE, scalar(False), scalar(0.0), scalar(True), scalar(False), NONE)
            rows["attention"] = made("aten::_scaled_dot_product_cudnn_attention", q, k, k, *options)
        else:
            pages = tensor(8, 128, model.kv_heads, 128)
            ends, lengths = tensor(batch + 1, dtype=I32), tensor(batch, dtype=I32)
            rows["attention"] = made(
                "_vllm_fa3_C::fwd",
                q := tensor(batch, 16, 128),
                pages,
                pages,
                q,
                ends,
                lengths,
                tensor(batch, 2, dtype=I32),
            )
        assert {part.part for part in theory} - rows.keys() <= {"final_norm"}
        for call in (each.instead or each for each in theory):
            row = rows.get(call.part)
            if row is None or (call.part, call.kernel_type) == ("attention_norm", "AddRmsNorm"):
                continue
            cells = {**row.cells}
            if call.part == "attention" and phase == "decode":
                # Lengths are on the device: the shapes are the same.
                cells |= {name: call.cells.get(name, "") for name in col.RUNTIME_IN_SIGNATURE}
            assert (row.kernel_type, signature(row.kernel_type, cells)) == (call.kernel_type, call.signature()), (
                call.part
            )


def test_products_of_experts_are_rows_of_a_model() -> None:
    """In whichever order their weights are stored; a capture does not tell the load of experts."""
    model = resolve_model("Qwen/Qwen3-30B-A3B")
    calls = model_calls(model, batch=4, context=256, phase="prefill", routing="equal")
    (m, k), (e, _, n) = (1024 * 8, 2048), (128, 2048, 2 * 768)
    wanted = next(call for call in calls if call.part == "experts_gate_up")
    for strides in (None, (k * n, 1, k)):
        row = made("aten::_grouped_mm", tensor(m, k), tensor(e, k, n, strides=strides), tensor(e, dtype=I32))
        assert signature(row.kernel_type, row.cells) == wanted.signature()
        assert ("other order" in row.differs) == (strides is not None)


def test_products_of_experts_in_one_operator_are_rows_of_a_model() -> None:
    model = resolve_model("Qwen/Qwen3-30B-A3B")
    calls = {call.part: call for call in model_calls(model, batch=64, context=4096, routing="equal")}
    x, chosen = tensor(64, 2048), (tensor(64, 8, dtype=F32), tensor(64, 8, dtype=I32))
    weights = [tensor(128, 2 * 768, 2048), tensor(128, 2048, 768)]
    kernels = ["moe_align", "fused_moe_kernel", "act_and_mul", "fused_moe_kernel", "moe_sum"]
    call = operator("vllm::inplace_fused_experts", x, *weights, *chosen, NONE)
    found = products_of_experts(call, kernels)
    parts = {1: "experts_gate_up", 3: "experts_down"}
    assert {at: signature(row.kernel_type, row.cells) for at, row in found.items()} == {
        at: calls[part].signature() for at, part in parts.items()
    }
    assert isinstance(row_of(call, kernels), LeftOut)
    for row in found.values():
        expect_replay(row)
    # Two chunks of tokens, weights in FP8, experts of other devices.
    fp8 = [tensor(*dims, dtype="c10::Float8_e4m3fn") for dims, *_ in weights]
    others = operator("vllm::inplace_fused_experts", x, *weights, *chosen, tensor(256, dtype=I32))
    assert products_of_experts(call, kernels * 2) == products_of_experts(others, kernels) == {}
    assert products_of_experts(operator("sglang::outplace_fused_experts", x, *fp8, *chosen), kernels) == {}


@pytest.mark.parametrize(
    ("trace", "share"), {"deepseekv3-prefill-eager": 0.96, "qwen3moe-prefill-replay": 0.96}.items()
)
def test_rows_of_a_trace_have_replays(trace: str, share: float) -> None:
    outcomes = read_outcomes(TRACES / f"{trace}.pt.trace.json.gz")
    times_ns, rows = Counter[bool](), dict[tuple[str, str], CapturedRow]()
    for outcome in outcomes:
        row = outcome.row
        times_ns[isinstance(row, CapturedRow)] += sum(outcomes.trace.duration_ns[event] for event in outcome.events)
        if isinstance(row, CapturedRow):
            rows[row.kernel_type, signature(row.kernel_type, row.cells)] = row
    assert times_ns[True] / times_ns.total() > 0.96
    assert len(rows) > 50
    for row in rows.values():
        expect_replay(row)


def test_a_capture_of_served_layers_has_the_rows_of_the_model() -> None:
    """Decode of 64 sequences and a prompt of 2048 tokens on an H200 (tests/cuda/served_layers.py), eager and graph."""
    model = resolve_model("Qwen/Qwen3-32B")
    steps = {"decode": {"batch": 64, "context": 4096}, "prefill": {"batch": 1, "context": 2048, "phase": "prefill"}}
    for (phase, step), what in product(steps.items(), ("eager", "replay")):
        path = TRACES / f"served-{phase}-{what}.pt.trace.json.gz"
        launches = read_torch_trace(path, path, lambda size: None)
        assert launches.counts.left_out.total() == 0
        rows = set()
        for kernel_type, _, part in launches.accepted():
            key, lengths = row_key(part.cells), dict[str, str]()
            if col.WITHOUT_LENGTHS in part.cells.items() and key is not None:
                lengths = batch_cells(key, read_sequences("64x1@4096")) or {}
            rows.add(signature(kernel_type, {**part.cells, **lengths}))
        calls = model_calls(model, **step)  # type: ignore[arg-type]
        assert {call.part for call in calls if (call.instead or call).signature() not in rows} == set()


def test_fills_have_the_names_of_replays() -> None:
    path = TRACES / "plain-prefill-replay.pt.trace.json.gz"
    parts = [part for _, _, part in read_torch_trace(path, path, lambda size: None).accepted()]
    assert any(part.cells[col.PROFILING_KERNEL_NAMES].startswith("memset + cudnn_") for part in parts)


def test_the_page_lists_the_operators_of_the_table() -> None:
    page = Path(__file__).parents[2].joinpath("docs/captures.md").read_text("utf-8")
    section = page.partition("### Operators and their kernel types")[2].partition("\n### ")[0]
    assert sorted(re.findall(r"`(\w+::\w+)`", section)) == sorted(OPERATORS)
