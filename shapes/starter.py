"""The database that a device without one starts with: calls of a small model.

Sized for a CPU without bfloat16 instructions: no row takes more than about 50 ms a call there, and
all of them are measured in about two minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis.strategies import SearchStrategy

from database.store import Database
from shapes import patterns, strategies
from shapes.append import append_rows
from shapes.draw import draw_rows
from shapes.models import QWEN3_0_6B, Linear, ModelFacts
from shapes.rows import TheoryRow
from shapes.strategies import MOST_TOKENS, most_matmul_tokens, most_norm_tokens

_BF16, _FLOAT = "BF16", "FLOAT"
_MATMUL = "MatMulV2"
#: Two cores of a server manage some 80 GFLOP/s in float32, and 20 in bfloat16 without instructions for it.
_MOST_FLOP = {_FLOAT: 4 * 10**9, _BF16: 10**9}
#: Normalization and softmax read and write each element several times on a CPU.
_MOST_ELEMENTS = 1 << 21
#: Of rows that hold the embedding table or the LM head there are few: making their random inputs
#: takes longer than measuring them.
_LARGE_TABLE_ROWS = 6


@dataclass(frozen=True)
class Sample:
    """Rows to draw of one strategy; those that are required count."""

    strategy: SearchStrategy[TheoryRow]
    count: int
    required: tuple[TheoryRow, ...]


def write_starter(database: Database, *, seed: int = 0) -> int:
    """Appends the starter rows that are not there yet; gives their number.

    Args:
        seed: the same gives the same rows, for a given version of hypothesis.

    Raises:
        OpAtlasError: the database cannot be read or written.
    """
    return append_rows(database, starter_rows(seed=seed))


def starter_rows(*, seed: int = 0, model: ModelFacts = QWEN3_0_6B) -> list[TheoryRow]:
    """Theory rows of a model, about two hundred."""
    return [
        row
        for sample in _samples(model)
        for row in draw_rows(sample.strategy, sample.count, seed=seed, required=sample.required)
    ]


def _samples(model: ModelFacts) -> Iterator[Sample]:
    yield _matmuls(model.layer_linears(), _BF16, 60)
    yield _matmuls((model.lm_head(),), _BF16, _LARGE_TABLE_ROWS)
    yield _matmuls(model.layer_linears()[-1:], _FLOAT, 10)
    for dtype, count in ((_BF16, 16), (_FLOAT, 6)):
        yield Sample(
            strategies.elementwise("Add", [model.hidden], [dtype]),
            count,
            tuple(patterns.elementwise("Add", (m, model.hidden), (m, model.hidden), dtype) for m in (1, MOST_TOKENS)),
        )
    yield Sample(
        strategies.elementwise("Mul", [model.intermediate], [_BF16]),
        14,
        tuple(
            patterns.elementwise("Mul", (m, model.intermediate), (m, model.intermediate), _BF16)
            for m in (1, MOST_TOKENS)
        ),
    )
    yield Sample(
        strategies.per_head("Mul", [model.heads, model.kv_heads], model.head_dim, [_BF16]),
        10,
        tuple(
            patterns.elementwise("Mul", (m, model.heads, model.head_dim), (m, 1, model.head_dim), _BF16)
            for m in (1, MOST_TOKENS)
        ),
    )
    normalized = ((model.hidden,), (model.heads, model.head_dim), (model.kv_heads, model.head_dim))
    yield Sample(
        strategies.rms_norms(normalized, [_BF16], _MOST_ELEMENTS),
        34,
        tuple(
            patterns.rms_norm((m, *trailing), _BF16)
            for trailing in normalized
            for m in (1, most_norm_tokens(trailing, _MOST_ELEMENTS))
        ),
    )
    yield Sample(
        strategies.swiglus([model.intermediate], [_BF16]),
        18,
        tuple(patterns.swiglu(m, model.intermediate, _BF16) for m in (1, MOST_TOKENS)),
    )
    yield Sample(
        strategies.attention_softmaxes(model.heads, [_BF16], _MOST_ELEMENTS),
        12,
        tuple(patterns.softmax((1, model.heads, 1, keys), _BF16) for keys in (16, MOST_TOKENS)),
    )
    yield Sample(
        strategies.logit_softmaxes(model.vocab, [_FLOAT], _MOST_ELEMENTS),
        6,
        (patterns.softmax((1, model.vocab), _FLOAT),),
    )
    yield Sample(
        strategies.embeddings(model.vocab, model.hidden, [_BF16]),
        _LARGE_TABLE_ROWS,
        tuple(patterns.gather(model.vocab, model.hidden, m, _BF16) for m in (1, MOST_TOKENS)),
    )


def _matmuls(linears: tuple[Linear, ...], dtype: str, count: int) -> Sample:
    most_flop = _MOST_FLOP[dtype]
    return Sample(
        strategies.matmuls(_MATMUL, linears, [dtype], most_flop),
        count,
        tuple(
            patterns.matmul(_MATMUL, tokens, linear, dtype)
            for linear in linears
            for tokens in (1, most_matmul_tokens(linear, most_flop))
        ),
    )
