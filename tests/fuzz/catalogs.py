"""The sources of theory rows: the catalog, the mapping of operators, and models' config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from opatlas.data.database import Database
from opatlas.data.op_mapping import MAPPING
from opatlas.theory.catalog import Catalog, built_in_catalog, database_kernels, read_catalog
from opatlas.theory.config_json import load_config_file
from opatlas.theory.patterns import Expression, Lengths, Pattern

from .target import Target, expect, refusing

_SMALL = b"""
grids:
  tokens: [1, 16, 128]
patterns:
  rows_of_two:
    axes: {m: tokens, k: [64, 128], pair: hidden}
    let: {half: k // 2, padded: "align(m, 16)"}
    where: [m * k <= 262144, half % 2 == 0]
    inputs: [[m, k], [min(half, 64)], null]
    outputs: [[m, half]]
    forms: [BF16;BF16;  -> BF16, FLOAT;FLOAT; | ND;ND; -> FLOAT]
kernels:
  Add: rows_of_two
  Sub: {pattern: [rows_of_two], core: AI_VECTOR_CORE, forms: {rows_of_two: [BF16;BF16; -> BF16]}}
"""
_MAPPING = b"""
operator_mappings:
  aten.add: {kernel_type: Add, query_mode: elementwise, alternate_kernel_types: [AddAiCore, add_kernel_0]}
  aten.view: {kernel_type: View, zero_cost: true}
  allreduce: {kernel_type: hcom_allReduce_, category: communication}
"""


def _seeds() -> Iterator[bytes]:
    yield _SMALL


def _check(data: bytes, folder: Path) -> None:
    path = folder / "catalog.yaml"
    path.write_bytes(data)
    catalog = None
    with refusing(path):
        catalog = read_catalog(path)
    if catalog is not None:
        _evaluate(catalog)


def _evaluate(catalog: Catalog) -> None:
    """Whatever the sizes are, expressions that were accepted have values: of numbers and of arrays."""
    for kernel in catalog.kernels.values():
        for pattern in kernel.patterns:
            for expression in _expressions(pattern):
                for size in (1, 7, 64):
                    value = expression.value(dict.fromkeys(expression.names, size))
                    several = expression.value(dict.fromkeys(expression.names, np.array([size, size])))
                    expect(
                        np.all(several == value), f"{expression.text!r} is {value} of numbers and {several} of arrays"
                    )


def _expressions(pattern: Pattern) -> Iterator[Expression]:
    yield from pattern.let.values()
    yield from pattern.where
    for template in (*pattern.inputs, *pattern.outputs):
        yield from template or ()
    for cell in pattern.cells.values():
        if isinstance(cell, Lengths):
            yield from (cell.count, cell.each)
        elif isinstance(cell, Expression):
            yield cell


def _seeds_of_mapping() -> Iterator[bytes]:
    yield _MAPPING


def _mapping(data: bytes, folder: Path) -> None:
    path = folder / MAPPING
    path.write_bytes(data)
    with refusing(path):
        found = database_kernels(Database(folder), built_in_catalog())
        expect(all(isinstance(name, str) for name in found), "a kernel type that is not text")


def _seeds_of_model() -> Iterator[bytes]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    text = {"model_type": "llama", "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 16, **sizes}
    yield json.dumps({**text, "dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}).encode()
    # One that another one lies in.
    nested = {**sizes, "model_type": "gemma3_text", "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 16}
    yield json.dumps({"model_type": "gemma3", "text_config": nested, "auto_map": {"AutoConfig": "a--b.C"}}).encode()
    # Kinds of layers, experts and stored weights.
    more = {"layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2}
    stored = {
        "quant_method": "compressed-tensors",
        "config_groups": {"a": {"weights": {"num_bits": 4}}},
        "ignore": ["re:.*"],
    }
    of_type = {"model_type": "qwen3_next", "moe_intermediate_size": 8, "mlp_only_layers": [0], "num_hidden_layers": 2}
    yield json.dumps({**text, **of_type, **more, "quantization_config": stored, "rope_parameters": {}}).encode()


def _model(data: bytes, folder: Path) -> None:
    path = folder / "config.json"
    path.write_bytes(data)
    with refusing(path):
        facts = load_config_file(path)
        expect(facts.hidden > 0 and facts.weights, f"a model without sizes: {facts}")


_WORDS = (
    b"- ",
    b"? ",
    b": ",
    b"!!python/object:os.system",
    b"!!binary",
    b"*x",
    b"&x",
    b"<<",
    b"~",
    b"2026-11-22",
    b"0o17",
    b"1:30",
)
CATALOG = Target(
    "catalog",
    "a catalog is read, and every expression has a value, or its mistakes are reported",
    _seeds,
    _check,
    (*_WORDS, b"1%-0", b"m // (k-k)", b"m", b"k", b"hidden", b"generic", b"axes", b"->", b"(" * 150),
)
MAPPING_OF_OPERATORS = Target(
    "op-mapping",
    "a mapping of operators is read, or refused",
    _seeds_of_mapping,
    _mapping,
    (*_WORDS, b"kernel_type", b"Add"),
)
MODEL = Target(
    "model",
    "the config.json of a model is read, or refused",
    _seeds_of_model,
    _model,
    (b'"rope_theta"', b'"experts_implementation"', b'"torch_dtype"', b'"num_experts"', b'"a/b"', b"-8", b"0"),
)
