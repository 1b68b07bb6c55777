"""Prices of exchanges with models, in US dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.text import suggest
from opatlas.yaml_file import YamlError, key_lines, parse_yaml

from .endpoint import ChatAnswer, ChatRequest

#: The prices that ship: those of the experiment, for each request.
SHIPPED = Path(__file__).with_name("prices.yaml")
#: Characters of a token, where the endpoint counts no tokens.
CHARACTERS_OF_TOKEN = 4
_MOST_BYTES = 1 << 20
_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens_in": "in", "tokens_out": "out"}):
    """The price of a model: for each request, and for its tokens.

    Attributes:
        request: dollars for each request.
        tokens_in: dollars for a million tokens of requests.
        tokens_out: dollars for a million tokens of answers.
    """

    request: _Dollars = 0.0
    tokens_in: _Dollars = 0.0
    tokens_out: _Dollars = 0.0


@dataclass(frozen=True)
class Cost:
    """Tokens and price of one exchange.

    Attributes:
        tokens_in, tokens_out: tokens of the request and of the answer.
        estimated: whether the endpoint gave no tokens, and they are characters / 4.
        usd: the price in US dollars; 0 for a model without a price.
    """

    tokens_in: int
    tokens_out: int
    estimated: bool
    usd: float


class Prices:
    """The prices of models, by name."""

    def __init__(self, by_model: Mapping[str, Price]) -> None:
        self._by_model = by_model

    def __contains__(self, model: str) -> bool:
        return model in self._by_model

    def cost(self, request: ChatRequest, answer: ChatAnswer) -> Cost:
        """Returns the cost of an exchange."""
        counted = answer.tokens_in is not None and answer.tokens_out is not None
        asked = sum(len(message.content) for message in request.messages)
        tokens_in = answer.tokens_in if answer.tokens_in is not None else -(-asked // CHARACTERS_OF_TOKEN)
        tokens_out = answer.tokens_out if answer.tokens_out is not None else -(-len(answer.text) // CHARACTERS_OF_TOKEN)
        price = self._by_model.get(request.model, Price())
        usd = price.request + (tokens_in * price.tokens_in + tokens_out * price.tokens_out) / 1e6
        return Cost(tokens_in, tokens_out, not counted, usd)


def read_prices(path: Path | None = None) -> Prices:
    """Returns the prices that ship, with those of a user's file in their place.

    Args:
        path: a YAML file such as `{my-model: {in: 0.27, out: 1.1}, other: {request: 0.001}}`; None: only those that
            ship.

    Raises:
        OpAtlasError: the file cannot be read, or holds something else. The error names the line.
    """
    files = [SHIPPED] if path is None else [SHIPPED, path]
    return Prices({model: price for file in files for model, price in _entries(file).items()})


def _entries(path: Path) -> dict[str, Price]:
    try:
        text = read_safely(path, _MOST_BYTES)
        values = parse_yaml(text, strict=True)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path") from None
    except YamlError as error:
        raise OpAtlasError(f"{path}: {error}: correct it") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise OpAtlasError(f"{path}: it is no mapping: write `model: {{in: 0.27, out: 1.1}}`, $ per million tokens")
    lines = key_lines(text)
    prices: dict[str, Price] = {}
    for model, value in values.items():
        try:
            prices[model] = msgspec.convert(value, Price)
        except msgspec.ValidationError as error:
            guess = suggest(next(iter(value)), ("in", "out", "request")) if isinstance(value, dict) and value else ""
            raise OpAtlasError(
                f"{path}:{lines[model]}: {model}: {error}{guess}: its keys are `in` and `out` ($ per million tokens) "
                "and `request` ($)"
            ) from None
    return prices
