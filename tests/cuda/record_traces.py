"""Records the traces in tests/data/torch_traces on a GPU: `python -m tests.cuda.record_traces FOLDER`.

Two layers of plain torch, and small random models of transformers, each eager (two steps), while its CUDA graph is
captured, and three replays of the graph.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.profiler import ProfilerActivity, profile, record_function

_SIZES = {"vocab_size": 8192, "num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 3072}
_HEADS = {"num_attention_heads": 16, "head_dim": 128}
_RANKS = {"q_lora_rank": 384, "kv_lora_rank": 256, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64}
_GROUPS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
_MODELS = {
    "qwen3": ("Qwen3Config", {**_HEADS, "num_key_value_heads": 8}),
    "qwen3moe": (
        "Qwen3MoeConfig",
        {**_HEADS, "num_key_value_heads": 4, "moe_intermediate_size": 384, "num_experts": 16, "num_experts_per_tok": 4},
    ),
    "deepseekv3": (
        "DeepseekV3Config",
        {**_RANKS, **_GROUPS, "num_attention_heads": 16, "num_key_value_heads": 16, "moe_intermediate_size": 512},
    ),
}


class Layer(nn.Module):
    """A transformer layer of plain torch, with 16 heads of queries and 4 of keys."""

    def __init__(self, width: int = 1024, head: int = 64, inner: int = 2816) -> None:
        super().__init__()
        self.head = head
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, width + 8 * head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).split([width, 4 * self.head, 4 * self.head], -1)
        q, k, v = (part.view(batch, tokens, -1, self.head).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


def write_trace(path: Path, steps: int, call: Callable[[], object]) -> None:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as recorded:
        for step in range(steps):
            with record_function(f"ProfilerStep#{step}"):
                call()
        torch.cuda.synchronize()
    recorded.export_chrome_trace(str(path))
    # The last member is the path of the machine that recorded the trace.
    text = re.sub(rb',\s*"traceName": "[^"]*"', b"", gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(text, 9, mtime=0))


@torch.no_grad()
def record(folder: Path, name: str, model: Callable[[Tensor], object], x: Tensor) -> None:
    for _ in range(3):
        model(x)
    write_trace(folder / f"{name}-eager.pt.trace.json.gz", 2, lambda: model(x))
    with torch.cuda.stream(torch.cuda.Stream()):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            model(x)

    write_trace(folder / f"{name}-capture.pt.trace.json.gz", 1, capture)
    graph.replay()
    write_trace(folder / f"{name}-replay.pt.trace.json.gz", 3, graph.replay)


def main(folder: Path) -> None:
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    layers = nn.Sequential(Layer(), Layer()).to("cuda", torch.bfloat16)
    for name, shape in (("plain-prefill", (1, 512, 1024)), ("plain-decode", (32, 1, 1024))):
        record(folder, name, layers, torch.randn(shape, device="cuda", dtype=torch.bfloat16))
    for name, (config, sizes) in _MODELS.items():
        given = getattr(transformers, config)(**_SIZES, **sizes)
        made = transformers.AutoModelForCausalLM.from_config(given, dtype=torch.bfloat16, attn_implementation="sdpa")
        model = made.to("cuda").eval()
        tokens = torch.randint(0, 8192, (1, 256), device="cuda")
        record(folder, f"{name}-prefill", lambda x, model=model: model(x, use_cache=False).logits, tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
