"""How a config.json says that the weights of a model are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests_of_shapes import EXPERTS, FP8, SIZES, read

from opatlas.errors import UsageError
from opatlas.theory.model_step import step_dtype


def compressed(**weights: Any) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": {"num_bits": 8, "type": weights["type"]}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


#: How a file says that weights are stored, the dtype of its step, and a word on them.
STORED: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "BF16", ""),
    "float16": ({"torch_dtype": "float16"}, "FLOAT16", ""),
    "float32": ({"dtype": "float32"}, "", "float32"),
    "fp8": ({"quantization_config": FP8}, "FLOAT8_E4M3FN", "128x128"),
    "fp8 of another kind": ({"quantization_config": {**FP8, "fmt": "e5m2"}}, "", "FP8"),
    "mxfp4": ({"quantization_config": {"quant_method": "mxfp4"}}, "", "MXFP4 experts"),
    "awq": ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "", "INT4"),
    "gptq": ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "", "INT8"),
    "modelopt": ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "", "NVFP4"),
    "modelopt fp8": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
        "FLOAT8_E4M3FN",
        "FP8",
    ),
    "compressed int8": ({"quantization_config": compressed(num_bits=8, type="int")}, "INT8", "INT8"),
    "compressed int4": ({"quantization_config": compressed(num_bits=4, type="int", group_size=32)}, "", "groups of 32"),
    "older key": ({"compression_config": compressed(num_bits=8, type="float")}, "FLOAT8_E4M3FN", "FP8"),
    "unknown": ({"quantization_config": {"quant_method": "hqq"}}, "", "hqq"),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("keys", "dtype", "word"), STORED.values(), ids=STORED)
def test_a_step_has_the_dtype_of_the_weights(
    keys: dict[str, Any], dtype: str, word: str, nested: bool, tmp_path: Path
) -> None:
    text = {"model_type": "llama", **SIZES}
    found = (
        read(tmp_path, "llava", text_config=text, **keys)
        if nested
        else read(tmp_path, architecture="llama", **SIZES, **keys)
    )
    assert found.dtype == dtype
    assert word in found.stored
    assert bool(found.differences("BF16")) == bool(found.stored) == bool(word)
    assert step_dtype(found, "bf16") == "BF16"
    if not dtype:
        with pytest.raises(UsageError, match="--dtype"):
            step_dtype(found)


def test_modelopt_describes_weights_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["o_proj"]}})
    )
    found = read(tmp_path, "llama", **SIZES)
    assert (found.dtype, found.cache_dtype, found.scales) == ("FLOAT8_E4M3FN", "FLOAT8_E4M3FN", "per_tensor")


@pytest.mark.parametrize(("scheme", "scales"), [("static", "per_tensor"), ("dynamic", "")])
def test_one_scale_is_that_of_a_file_which_has_it_of_the_inputs(scheme: str, scales: str, tmp_path: Path) -> None:
    how = {"quantization_config": {"quant_method": "fp8", "activation_scheme": scheme}}
    dense, moe = (read(tmp_path, "qwen3_moe" if more else "llama", **SIZES, **more, **how) for more in ({}, EXPERTS))
    assert (dense.scales, moe.scales) == (scales, scales)
    # Grouped products have a scale for each token in both.
    assert bool(dense.differences("FLOAT8_E4M3FN")) == (not scales)
    assert moe.differences("FLOAT8_E4M3FN")
