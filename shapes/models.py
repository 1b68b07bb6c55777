"""The models that OpAtlas knows by their names. The numbers are those of each model's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opatlas.theory.config_json import read_config
from opatlas.theory.models import ModelFacts

# Published in FP8, which --dtype FLOAT8_E4M3FN gives; rows of BF16 are far more.
DEEPSEEK_V3 = replace(
    read_config(
        "deepseek-ai/DeepSeek-V3",
        {
            "model_type": "deepseek_v3",
            "num_hidden_layers": 61,
            "first_k_dense_replace": 3,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 128,
            "vocab_size": 129280,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 256,
            "moe_intermediate_size": 2048,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "num_nextn_predict_layers": 1,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
    ),
    dtype="BF16",
)
QWEN3_32B = read_config(
    "Qwen/Qwen3-32B",
    {
        "model_type": "qwen3",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
)
LLAMA_3_70B = read_config(
    "meta-llama/Meta-Llama-3-70B",
    {
        "model_type": "llama",
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
)
#: Every layer has routed experts, and no shared one.
QWEN3_30B_A3B = read_config(
    "Qwen/Qwen3-30B-A3B",
    {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    },
)
_GLM_5 = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "first_k_dense_replace": 3,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "vocab_size": 154880,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "num_nextn_predict_layers": 1,
}
GLM_5_1 = read_config("zai-org/GLM-5.1", _GLM_5)
#: 21 layers select keys, and the others take theirs.
GLM_5_2 = read_config("zai-org/GLM-5.2", {**_GLM_5, "index_topk_freq": 4, "index_skip_topk_offset": 3})
#: The model of the starter database, which is small.
QWEN3_0_6B = read_config(
    "Qwen/Qwen3-0.6B",
    {
        "model_type": "qwen3",
        "num_hidden_layers": 28,
        "tie_word_embeddings": True,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
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
