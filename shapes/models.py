"""The models that OpAtlas knows by their names, which models.yaml lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from opatlas.theory.config_json import read_config
from opatlas.theory.models import ModelFacts
from opatlas.yaml_file import parse_yaml


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    """A model of models.yaml, whose head says what the keys are."""

    names: list[str]
    config: dict[str, Any]
    rows: bool = False
    dtype: str = ""
    like: str = ""


def _read() -> tuple[tuple[ModelFacts, ...], dict[str, ModelFacts]]:
    """Returns the models of theory rows, and all models by their names in lower case."""
    found = msgspec.convert(parse_yaml(Path(__file__).with_name("models.yaml").read_bytes()), list[_Named])
    configs: dict[str, dict[str, Any]] = {}
    of_rows, by_name = list[ModelFacts](), dict[str, ModelFacts]()
    for each in found:
        names = [name.lower() for name in each.names]
        config = {**configs.get(each.like, {}), **each.config}
        configs |= dict.fromkeys(names, config)
        model = read_config(each.names[0], config)
        model = replace(model, dtype=each.dtype or model.dtype)
        by_name |= dict.fromkeys(names, model)
        of_rows += [model] if each.rows else []
    return tuple(of_rows), by_name


#: The models of theory rows by default.
BUILT_IN: tuple[ModelFacts, ...]
#: All models by their full and their short names, in lower case.
BY_NAME: Mapping[str, ModelFacts]
BUILT_IN, BY_NAME = _read()
DEEPSEEK_V3, QWEN3_32B, LLAMA_3_70B, GLM_5_1, GLM_5_2 = BUILT_IN
QWEN3_30B_A3B, QWEN3_235B_A22B, QWEN3_0_6B, MINIMAX_M2_5 = (
    BY_NAME[name] for name in ("qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-0.6b", "minimax-m2.5")
)
