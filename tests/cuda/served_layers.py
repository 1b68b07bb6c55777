"""Layers of Qwen3-32B as an engine serves them: each kernel of a library under an operator with the engine's schema.

`python -m tests.cuda.served_layers FOLDER` records their traces on a GPU (`served-*` in tests/data/torch_traces). The
kernels are plain ones of Triton; the products and prefill's attention are torch's. Decode's attention gathers its pages
first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

from tests.cuda.record_traces import record

WIDTH, HEADS, KEY_HEADS, HEAD, INNER, WORDS = 5120, 64, 8, 128, 25600, 151936
LAYERS, PAGE, SEQUENCES, KEYS, PROMPT = 4, 128, 64, 4096, 2048
#: Lines of the table of cos and sin: max_position_embeddings.
POSITIONS = 40960
#: Pages of the cache, in decode as many as an engine has for all its sequences.
PAGES = {"decode": 12288, "prefill": PROMPT // PAGE * 4}


@triton.jit
def norm_kernel(y, x, residual, weight, width, eps, adds: tl.constexpr, block: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, block)
    inside, place = at < width, tl.program_id(0) * width + at
    value = tl.load(x + place, inside, 0.0).to(tl.float32)
    if adds:
        value += tl.load(residual + place, inside, 0.0).to(tl.float32)
        tl.store(residual + place, value, inside)
    value *= tl.rsqrt(tl.sum(value * value) / width + eps)
    tl.store(y + row * width + at, value * tl.load(weight + at, inside, 0.0).to(tl.float32), inside)


@triton.jit
def gated_kernel(y, x, width, block: tl.constexpr):
    row, at = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    gate = tl.load(x + row * 2 * width + at, at < width, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + at, at < width, 0.0).to(tl.float32)
    tl.store(y + row * width + at, gate * tl.sigmoid(gate) * up, at < width)


@triton.jit
def rope_kernel(x, positions, table, step, size: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, size // 2)
    line = table + tl.load(positions + row) * size
    cos, sin = tl.load(line + at).to(tl.float32), tl.load(line + size // 2 + at).to(tl.float32)
    head = x + row * step + tl.program_id(1) * size
    low, high = tl.load(head + at).to(tl.float32), tl.load(head + size // 2 + at).to(tl.float32)
    tl.store(head + at, low * cos - high * sin)
    tl.store(head + size // 2 + at, high * cos + low * sin)


@triton.jit
def cache_kernel(keys, values, key_cache, value_cache, slots, width: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, width)
    to = tl.load(slots + row) * width + at
    tl.store(key_cache + to, tl.load(keys + row * width + at))
    tl.store(value_cache + to, tl.load(values + row * width + at))


def _norm(y: Tensor, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> None:
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    norm_kernel[(x.numel() // width,)](y, x, residual, weight, width, eps, residual is not None, block, num_warps=8)


def rms_norm(result: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    _norm(result, x, None, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    _norm(x, x, residual, weight, eps)


def silu_and_mul(result: Tensor, x: Tensor) -> None:
    rows, width = result.shape
    gated_kernel[(rows, triton.cdiv(width, 1024))](result, x, width, 1024)


def rotary_embedding(positions: Tensor, q: Tensor, k: Tensor, size: int, table: Tensor, is_neox: bool) -> None:
    for each in (q, k):
        rope_kernel[(len(each), each.shape[1] // size)](each, positions, table, each.stride(0), size)


def reshape_and_cache_flash(k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    cache_kernel[(len(k),)](k, v, key_cache, value_cache, slots, k.shape[1] * k.shape[2])


def fwd(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, lengths: Tensor, longest: int, pages: Tensor) -> Tensor:
    batch = len(pages)
    listed = pages.flatten()
    keys, values = (
        cache.index_select(0, listed).view(batch, -1, KEY_HEADS, HEAD)[:, :longest].transpose(1, 2) for cache in (k, v)
    )
    return scaled_dot_product_attention(q.view(batch, HEADS, 1, HEAD), keys, values, enable_gqa=True).view(q.shape)


_SCHEMAS = {
    "_C": {
        "rms_norm(Tensor! result, Tensor input, Tensor weight, float epsilon) -> ()": rms_norm,
        "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()": fused_add_rms_norm,
        "silu_and_mul(Tensor! result, Tensor input) -> ()": silu_and_mul,
        "rotary_embedding(Tensor positions, Tensor! query, Tensor! key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox) -> ()": rotary_embedding,
    },
    "_C_cache_ops": {
        "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
        "Tensor slot_mapping) -> ()": reshape_and_cache_flash
    },
    "_vllm_fa3_C": {
        "fwd(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor seqused_k, int max_seqlen_k, "
        "Tensor page_table) -> Tensor": fwd
    },
}


def define_operators() -> list[torch.library.Library]:
    """Registers the operators; they are there as long as what this returns."""
    libraries = []
    for namespace, schemas in _SCHEMAS.items():
        library = torch.library.Library(namespace, "FRAGMENT")
        for schema, function in schemas.items():
            library.define(schema)
            library.impl(schema.partition("(")[0], function, "CUDA")
        libraries.append(library)
    return libraries


class Layers:
    """Some layers with weights of their own, between the embedding and the choice of the next token."""

    def __init__(self, phase: str) -> None:
        self.is_decode = phase == "decode"
        self.tokens = SEQUENCES if self.is_decode else PROMPT
        self.table = _weight(POSITIONS, HEAD)
        self.words, self.last_norm = _weight(WORDS, WIDTH), _weight(WIDTH)
        names = {"qkv": (HEADS + 2 * KEY_HEADS) * HEAD, "gate_up": 2 * INNER}
        self.layers = [
            {name: _weight(size, WIDTH) for name, size in names.items()}
            | {"out": _weight(WIDTH, HEADS * HEAD), "down": _weight(WIDTH, INNER)}
            | {name: _weight(WIDTH) for name in ("norm", "norm2")}
            | {name: _weight(HEAD) for name in ("q_norm", "k_norm")}
            | {name: _weight(PAGES[phase], PAGE, KEY_HEADS, HEAD) for name in ("keys", "values")}
            for _ in range(LAYERS)
        ]
        count = SEQUENCES if self.is_decode else 1
        each = KEYS if self.is_decode else PROMPT
        listed = torch.randperm(PAGES[phase])[: count * each // PAGE]
        self.pages = listed.view(count, each // PAGE).int().cuda()
        positions = torch.full((count,), each - 1) if self.is_decode else torch.arange(each)
        sequence = torch.arange(count) if self.is_decode else torch.zeros(each, dtype=torch.long)
        slots = listed.view(count, -1)[sequence, positions // PAGE] * PAGE + positions % PAGE
        self.positions, self.slots = positions.cuda(), slots.cuda()
        self.ends = torch.arange(count + 1, dtype=torch.int32, device="cuda")
        self.lengths = torch.full((count,), each, dtype=torch.int32, device="cuda")
        self.last = torch.arange(count, device="cuda") if self.is_decode else torch.tensor([each - 1], device="cuda")

    def __call__(self, words: Tensor) -> Tensor:
        x = embedding(words, self.words)
        residual = torch.empty_like(x)
        for number, layer in enumerate(self.layers):
            if number:
                torch.ops._C.fused_add_rms_norm(x, residual, layer["norm"], 1e-6)
            else:
                residual, x = x, torch.empty_like(x)
                torch.ops._C.rms_norm(x, residual, layer["norm"], 1e-6)
            x = self._attention(x, layer) @ layer["out"].T
            torch.ops._C.fused_add_rms_norm(x, residual, layer["norm2"], 1e-6)
            gated = x.new_empty(self.tokens, INNER)
            torch.ops._C.silu_and_mul(gated, x @ layer["gate_up"].T)
            x = gated @ layer["down"].T
        torch.ops._C.fused_add_rms_norm(x, residual, self.last_norm, 1e-6)
        return (x.index_select(0, self.last) @ self.words.T).float().argmax(-1)

    def _attention(self, x: Tensor, layer: dict[str, Tensor]) -> Tensor:
        parts = (x @ layer["qkv"].T).split([HEADS * HEAD, KEY_HEADS * HEAD, KEY_HEADS * HEAD], -1)
        q, k, v = (part.reshape(self.tokens, -1, HEAD) for part in parts)
        for each, name in ((q, "q_norm"), (k, "k_norm")):
            torch.ops._C.rms_norm(each, each, layer[name], 1e-6)
        torch.ops._C.rotary_embedding(self.positions, q.flatten(1), k.flatten(1), HEAD, self.table, True)
        torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, layer["keys"], layer["values"], self.slots)
        if self.is_decode:
            found = torch.ops._vllm_fa3_C.fwd(
                q, layer["keys"], layer["values"], self.ends, self.lengths, KEYS, self.pages
            )
            return found.flatten(1)
        heads = (each.transpose(0, 1)[None] for each in (q, k, v))
        return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


def _weight(*sizes: int) -> Tensor:
    return torch.rand(sizes, device="cuda", dtype=torch.bfloat16).mul_(0.02).sub_(0.01)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    libraries = define_operators()
    for phase in PAGES:
        layers = Layers(phase)
        record(folder, phase, layers, torch.randint(0, WORDS, (layers.tokens,), device="cuda"))
        del layers
        torch.cuda.empty_cache()
    libraries.clear()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
