"""Prices of exchanges with models, in US dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from .endpoint import ChatAnswer, ChatRequest

#: The prices that ship: those of the experiment, for each request.
SHIPPED = Path(__file__).with_name("prices.yaml")
#: Characters of a token, where the endpoint counts no tokens.
CHARACTERS_OF_TOKEN = 4
#: US dollars.
Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens_in": "in", "tokens_out": "out"}):
    """The price of a model: for each request, and for its tokens.

    Attributes:
        request: dollars for each request.
        tokens_in: dollars for a million tokens of requests.
        tokens_out: dollars for a million tokens of answers.
    """

    request: Dollars = 0.0
    tokens_in: Dollars = 0.0
    tokens_out: Dollars = 0.0


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


def shipped_prices() -> dict[str, Price]:
    """Returns the prices that ship, by the names of models."""
    return msgspec.yaml.decode(SHIPPED.read_bytes(), type=dict[str, Price])
