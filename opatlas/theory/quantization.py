"""How a config.json says that weights are quantized."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Modules by these names are in no quantized product of a step.
_NEVER_QUANTIZED = re.compile(
    r"(lm_head|embed|norm|router|e_score|vision|visual|image|mm_|mtp|shared_expert_gate|in_proj_[ab]|conv1d|indexer"
    r"|(^|[.*])gate(\.weight)?\$?$)"
)


def read_quantization(found: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the dtype of a step with quantized weights, "" if no row has it, and how the weights are stored."""
    method = str(found.get("quant_method") or "").lower()
    algorithm = str(found.get("quant_algo") or "").upper()
    dtype, stored = "", f"weights by quant_method {method[:60]!r}"
    if method == "fp8":
        blocks = found.get("weight_block_size")
        in_blocks = f" in blocks of {'x'.join(map(str, blocks))}" if isinstance(blocks, list) else ""
        is_other = str(found.get("fmt") or "e4m3").lower() not in ("e4m3", "e4m3fn", "float8_e4m3fn")
        dtype, stored = "" if is_other else "FLOAT8_E4M3FN", f"FP8 weights{in_blocks}"
    elif method == "mxfp4":
        return "", "MXFP4 experts"
    elif method.startswith("modelopt"):
        dtype, stored = "FLOAT8_E4M3FN" if algorithm == "FP8" else "", f"{algorithm[:60] or method} weights"
    elif method in ("awq", "gptq"):
        stored = f"INT{found.get('bits', 4)} weights ({method})"
    elif method == "compressed-tensors":
        dtype, stored = _compressed(found)
    kept = [found.get(key) or () for key in ("ignore", "modules_to_not_convert", "exclude_modules")]
    if any(not _NEVER_QUANTIZED.search(str(name)) for names in kept if isinstance(names, list) for name in names):
        stored += " (not in all layers)"
    return dtype, stored


def _compressed(found: Mapping[str, Any]) -> tuple[str, str]:
    """Reads the groups of layers of compressed-tensors."""
    groups = found.get("config_groups")
    kinds: list[tuple[str, bool]] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights, inputs = (
            group.get(key) if isinstance(group, dict) else None for key in ("weights", "input_activations")
        )
        if isinstance(weights, dict):
            bits, kind = weights.get("num_bits"), weights.get("type", "int")
            size = weights.get("group_size")
            in_groups = f" in groups of {size}" if isinstance(size, int) and size > 0 else ""
            same = isinstance(inputs, dict) and (inputs.get("num_bits"), inputs.get("type", "int")) == (bits, kind)
            kinds.append((f"{'FP' if kind == 'float' else 'INT'}{bits} weights{in_groups}", same))
    dtypes = {"FP8 weights": "FLOAT8_E4M3FN", "INT8 weights": "INT8"}
    dtype = dtypes.get(kinds[0][0], "") if len({*kinds}) == 1 and kinds[0][1] else ""
    return dtype, " and ".join(dict.fromkeys(name for name, _ in kinds)) or "weights of compressed-tensors"
