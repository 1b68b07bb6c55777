"""The models that OpAtlas knows without further packages. The numbers are those of each model's config.json."""

from __future__ import annotations

from collections.abc import Mapping

from opatlas.theory.models import (
    Indexer,
    Latent,
    ModelFacts,
    RoutedExperts,
    Weight,
    lm_head,
)


def feed_forward(hidden: int, width: int, layers: int, prefix: str = "") -> tuple[Weight, ...]:
    """Returns the fused gate and up projection and the down projection."""
    return (
        Weight(f"{prefix}gate_up", (width, width), hidden, "outputs", calls=layers),
        Weight(f"{prefix}down", (hidden,), width, "inputs", calls=layers),
    )


def grouped_query_attention(hidden: int, heads: int, kv_heads: int, head_dim: int, layers: int) -> tuple[Weight, ...]:
    """Returns the fused projection of queries, keys and values, and the output projection."""
    kv = kv_heads * head_dim
    return (
        Weight("qkv", (heads * head_dim, kv, kv), hidden, "outputs", least=head_dim, calls=layers),
        Weight("o_proj", (hidden,), heads * head_dim, "inputs", calls=layers),
    )


def latent_attention(hidden: int, heads: int, latent: Latent, layers: int) -> tuple[Weight, ...]:
    """Returns the projections of multi-head latent attention.

    Every device has the compressions. Engines compute both in one product, or one after the other.
    """
    down = latent.kv_lora + latent.rope
    return (
        Weight("q_a", (latent.q_lora,), hidden, "nothing", calls=layers),
        Weight("kv_a", (down,), hidden, "nothing", calls=layers),
        Weight("q_kv_a", (latent.q_lora, down), hidden, "nothing", calls=layers),
        Weight("q_b", (heads * (latent.nope + latent.rope),), latent.q_lora, "outputs", calls=layers),
        Weight("kv_b", (heads * (latent.nope + latent.value),), latent.kv_lora, "outputs", calls=layers),
        Weight("o_proj", (hidden,), heads * latent.value, "inputs", calls=layers),
    )


def _dense(
    name: str,
    *,
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    head_norms: bool = False,
) -> ModelFacts:
    weights = (
        *grouped_query_attention(hidden, heads, kv_heads, head_dim, layers),
        *feed_forward(hidden, intermediate, layers),
        lm_head(vocab, hidden),
    )
    return ModelFacts(name, hidden, intermediate, heads, kv_heads, head_dim, vocab, weights, head_norms)


def _latent_experts(
    name: str,
    *,
    layers: int,
    dense_layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    vocab: int,
    latent: Latent,
    experts: RoutedExperts,
    indexer: Indexer | None = None,
) -> ModelFacts:
    indexer_weights = (
        ()
        if indexer is None
        else (
            Weight("indexer_q", (indexer.heads * indexer.head_dim,), latent.q_lora, "nothing", calls=layers),
            Weight("indexer_k", (indexer.head_dim,), hidden, "nothing", calls=layers),
            Weight("indexer_weights", (indexer.heads,), hidden, "nothing", calls=layers),
        )
    )
    weights = (
        *latent_attention(hidden, heads, latent, layers),
        *indexer_weights,
        *feed_forward(hidden, intermediate, dense_layers),
        *feed_forward(hidden, experts.shared, layers - dense_layers, "shared_"),
        Weight("router", (experts.count,), hidden, "nothing", calls=layers - dense_layers),
        lm_head(vocab, hidden),
    )
    return ModelFacts(
        name,
        hidden,
        intermediate,
        heads,
        heads,
        latent.nope + latent.rope,
        vocab,
        weights,
        latent=latent,
        indexer=indexer,
        experts=experts,
    )


DEEPSEEK_V3 = _latent_experts(
    "deepseek-ai/DeepSeek-V3",
    layers=61,
    dense_layers=3,
    hidden=7168,
    intermediate=18432,
    heads=128,
    vocab=129280,
    latent=Latent(q_lora=1536, kv_lora=512, nope=128, rope=64, value=128),
    experts=RoutedExperts(256, 2048, 8, shared=2048),
)
QWEN3_32B = _dense(
    "Qwen/Qwen3-32B",
    layers=64,
    hidden=5120,
    intermediate=25600,
    heads=64,
    kv_heads=8,
    head_dim=128,
    vocab=151936,
    head_norms=True,
)
LLAMA_3_70B = _dense(
    "meta-llama/Meta-Llama-3-70B",
    layers=80,
    hidden=8192,
    intermediate=28672,
    heads=64,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
)
#: Every layer has routed experts, and no shared one.
QWEN3_30B_A3B = ModelFacts(
    "Qwen/Qwen3-30B-A3B",
    hidden=2048,
    intermediate=0,
    heads=32,
    kv_heads=4,
    head_dim=128,
    vocab=151936,
    weights=(
        *grouped_query_attention(2048, heads=32, kv_heads=4, head_dim=128, layers=48),
        Weight("router", (128,), 2048, "nothing", calls=48),
        lm_head(151936, 2048),
    ),
    head_norms=True,
    experts=RoutedExperts(128, 768, 8),
)


def _glm_5(name: str) -> ModelFacts:
    return _latent_experts(
        name,
        layers=78,
        dense_layers=3,
        hidden=6144,
        intermediate=12288,
        heads=64,
        vocab=154880,
        latent=Latent(q_lora=2048, kv_lora=512, nope=192, rope=64, value=256),
        experts=RoutedExperts(256, 2048, 8, shared=2048),
        indexer=Indexer(heads=32, head_dim=128, top_k=2048),
    )


GLM_5_1 = _glm_5("zai-org/GLM-5.1")
GLM_5_2 = _glm_5("zai-org/GLM-5.2")
#: The model of the starter database, which is small.
QWEN3_0_6B = _dense(
    "Qwen/Qwen3-0.6B",
    layers=28,
    hidden=1024,
    intermediate=3072,
    heads=16,
    kv_heads=8,
    head_dim=128,
    vocab=151936,
    head_norms=True,
)

#: The models of theory rows by default.
BUILT_IN = (DEEPSEEK_V3, QWEN3_32B, LLAMA_3_70B, GLM_5_1, GLM_5_2)

#: All models by their full and their short names, in lower case.
BY_NAME: Mapping[str, ModelFacts] = {
    **{model.name.lower(): model for model in (*BUILT_IN, QWEN3_30B_A3B, QWEN3_0_6B)},
    "dsv3": DEEPSEEK_V3,
    "deepseek-v3": DEEPSEEK_V3,
    "qwen3-32b": QWEN3_32B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3-0.6b": QWEN3_0_6B,
    "llama-70b": LLAMA_3_70B,
    "llama-3-70b": LLAMA_3_70B,
    "glm-5.1": GLM_5_1,
    "glm-5.2": GLM_5_2,
    "glm-5": GLM_5_1,
}
