"""A hypothesis strategy per pattern of calls. Every draw is a legal row within its bounds.

Bounds are met by construction: a strategy asks how many tokens a bound allows and draws up to that,
and rejects nothing. Tests use the same strategies as the sampling does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from shapes import patterns
from shapes.choices import choice, whole_number
from shapes.models import Linear
from shapes.rows import TheoryRow

MOST_TOKENS = 4096

#: Batches of a decoding step: each small size has a duration of its own.
DECODE_TOKENS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
#: Tiles of matrix units; a duration steps up just behind a multiple of one.
_TILES = (16, 32, 64, 128)


@st.composite
def token_counts(draw: DrawFn, most: int = MOST_TOKENS) -> int:
    """A number of tokens in 1 ... most: half of them decoding batches, the others tile edges and any number."""
    kind = draw(choice(("decode", "decode", "edge", "any")))
    tile: int = draw(choice(_TILES))
    count: int
    if kind == "decode":
        count = draw(choice([batch for batch in DECODE_TOKENS if batch <= most]))
    elif kind == "any" or most < tile:
        count = draw(whole_number(1, most))
    else:
        # The multiple of a tile, or one beside it.
        edge: int = tile * draw(whole_number(1, most // tile))
        count = min(most, edge + draw(choice((0, -1, 1))))
    return count


def most_matmul_tokens(linear: Linear, most_flop: int) -> int:
    """Tokens whose product with a weight takes at most so many operations (2 M N K); at least 1."""
    return max(1, min(MOST_TOKENS, most_flop // (2 * linear.n * linear.k)))


@st.composite
def matmuls(
    draw: DrawFn, kernel_type: str, linears: Sequence[Linear], dtypes: Sequence[str], most_flop: int
) -> TheoryRow:
    """Products with the weights of a model, each of at most `most_flop` operations."""
    linear = draw(choice(linears))
    tokens = draw(token_counts(most_matmul_tokens(linear, most_flop)))
    return patterns.matmul(kernel_type, tokens, linear, draw(choice(dtypes)))


@st.composite
def elementwise(draw: DrawFn, kernel_type: str, widths: Sequence[int], dtypes: Sequence[str]) -> TheoryRow:
    """Two tensors of the same shape, (tokens, width)."""
    shape = (draw(token_counts()), draw(choice(widths)))
    return patterns.elementwise(kernel_type, shape, shape, draw(choice(dtypes)))


@st.composite
def per_head(draw: DrawFn, kernel_type: str, heads: Sequence[int], head_dim: int, dtypes: Sequence[str]) -> TheoryRow:
    """(tokens, heads, head_dim) with (tokens, 1, head_dim): what all heads of a token share, as in RoPE."""
    tokens, count = draw(token_counts()), draw(choice(heads))
    return patterns.elementwise(kernel_type, (tokens, count, head_dim), (tokens, 1, head_dim), draw(choice(dtypes)))


def most_norm_tokens(trailing: tuple[int, ...], most_elements: int) -> int:
    """Tokens whose tensor (tokens, *trailing) has at most so many elements; at least 1."""
    return max(1, min(MOST_TOKENS, most_elements // prod(trailing)))


@st.composite
def rms_norms(
    draw: DrawFn, trailing: Sequence[tuple[int, ...]], dtypes: Sequence[str], most_elements: int
) -> TheoryRow:
    """(tokens, *trailing), normalized over the last dimension."""
    chosen = draw(choice(trailing))
    tokens = draw(token_counts(most_norm_tokens(chosen, most_elements)))
    return patterns.rms_norm((tokens, *chosen), draw(choice(dtypes)))


@st.composite
def swiglus(draw: DrawFn, widths: Sequence[int], dtypes: Sequence[str]) -> TheoryRow:
    """Gate and up of `width` each."""
    return patterns.swiglu(draw(token_counts()), draw(choice(widths)), draw(choice(dtypes)))


@st.composite
def attention_softmaxes(draw: DrawFn, heads: int, dtypes: Sequence[str], most_elements: int) -> TheoryRow:
    """Scores (1, heads, queries, keys): one query of a decoding step, or a prefill where both are equal."""
    dtype = draw(choice(dtypes))
    if draw(st.booleans()):
        queries = draw(token_counts(max(1, int((most_elements // heads) ** 0.5))))
        return patterns.softmax((1, heads, queries, queries), dtype)
    return patterns.softmax((1, heads, 1, draw(token_counts(min(MOST_TOKENS, most_elements // heads)))), dtype)


@st.composite
def logit_softmaxes(draw: DrawFn, vocab: int, dtypes: Sequence[str], most_elements: int) -> TheoryRow:
    """Logits (sequences, vocab) before sampling."""
    sequences = draw(token_counts(max(1, most_elements // vocab)))
    return patterns.softmax((sequences, vocab), draw(choice(dtypes)))


@st.composite
def embeddings(draw: DrawFn, vocab: int, width: int, dtypes: Sequence[str]) -> TheoryRow:
    """Rows of an embedding table, one for each token."""
    return patterns.gather(vocab, width, draw(token_counts()), draw(choice(dtypes)))
