"""Shared code of the tests of theory rows."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy
from opatlas.shapes.models import BUILT_IN, DEEPSEEK_V3, GLM_5_1, LLAMA_3_70B, QWEN3_30B_A3B, QWEN3_32B
from opatlas.shapes.strategies import sample_rows, space_rows

from opatlas.row.table import RowTable
from opatlas.theory.catalog import Catalog, built_in_catalog, read_catalog
from opatlas.theory.known_rows import Matcher, read_tensors
from opatlas.theory.models import ModelFacts
from opatlas.theory.patterns import Pattern
from opatlas.theory.plan import Request
from opatlas.theory.sources import Shape, Targets, model_shapes, resolve_model
from opatlas.theory.space import GB, Space, TheoryRow

#: Sizes that every config.json states.
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "intermediate_size": 512,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts": 16, "num_experts_per_tok": 4}
FP8: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
#: Models, and the numbers of their config.json that differ from the defaults of transformers, but for the layers.
CONFIGS: dict[str, tuple[ModelFacts, dict[str, Any]]] = {
    "deepseek_v3": (
        DEEPSEEK_V3,
        {
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "vocab_size": 129280,
            "num_attention_heads": 128,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_key_value_heads": 128,
        },
    ),
    "qwen3": (
        QWEN3_32B,
        {
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        },
    ),
    "llama": (
        LLAMA_3_70B,
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
    ),
    "qwen3_moe": (
        QWEN3_30B_A3B,
        {
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "vocab_size": 151936,
        },
    ),
    "glm_moe_dsa": (
        GLM_5_1,
        {
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "moe_intermediate_size": 2048,
            "vocab_size": 154880,
            "num_attention_heads": 64,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "q_lora_rank": 2048,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "num_key_value_heads": 64,
        },
    ),
}


def request(*models: ModelFacts, rows: int = 0, seed: int = 0, gb: float = 32) -> Request:
    """A run for some models, undivided."""
    return Request(Targets(models, tp_sizes=(1,), ep_sizes=(1,)), rows, seed, int(gb * GB), sample_rows)


def catalog_of(folder: Path, text: str) -> Catalog:
    """A catalog written as in shapes/catalog.yaml, without its indentation."""
    path = folder / "catalog.yaml"
    path.write_text(textwrap.dedent(text))
    return read_catalog(path)


def sizes_of_shapes(pattern: Pattern, table: RowTable, targets: Targets) -> Iterator[tuple[Shape, int]]:
    """Each shape of the models that a pattern has, and the number of sizes of its rows on the axis with the fewest."""
    shapes = model_shapes(pattern, targets)
    axes = [axis.name for axis in pattern.axes if axis.between]
    found = [{name: set[int]() for name in axes} for _ in shapes]
    matcher = Matcher(pattern, shapes)
    for match in filter(None, map(matcher.match, read_tensors(table))):
        for number in match.shapes:
            for name in axes:
                # An axis that is no dimension by itself counts by its rows.
                found[number][name].add(match.sizes.get(name, len(found[number][name])))
    for shape, sizes in zip(shapes, found, strict=True):
        yield shape, min((len(own) for own in sizes.values()), default=1)


def theory_rows(
    kernel_type: str, *, targets: Targets | None = None, budget_bytes: int = 32 * GB, catalog: Catalog | None = None
) -> SearchStrategy[TheoryRow]:
    """A kernel type's rows with the catalog's dtypes and formats; shrinks to the smallest row."""
    targets = targets or Targets(BUILT_IN, generic=True)
    kernel = (catalog or built_in_catalog()).kernel(kernel_type)
    return space_rows([Space(kernel_type, each, each.forms, targets, budget_bytes) for each in kernel.patterns])


def config_file(folder: Path, architecture: str, **numbers: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": architecture, **numbers}))
    return path


def read(folder: Path, architecture: str, **numbers: Any) -> ModelFacts:
    return resolve_model(str(config_file(folder, architecture, **numbers)))
