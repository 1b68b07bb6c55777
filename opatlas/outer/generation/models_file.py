"""The file of --models: the models that write kernels, their addresses and prices, the language, and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import absolute_path
from opatlas.text import Word
from opatlas.yaml_file import read_yaml

if TYPE_CHECKING:
    from .endpoint import ChatAnswer, ChatRequest

#: Characters of a token, where the endpoint counts no tokens.
CHARACTERS_OF_TOKEN = 4
_EXAMPLE = "models: {my-model: {endpoint: http://localhost:8000}}"
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class KernelLanguage(Word):
    """What kernels are written in."""

    TRITON = "triton"
    TRITON_ASCEND = "triton-ascend"
    TORCH = "torch"
    CUDA = "cuda"

    @property
    def of_rules(self) -> str:
        """The language in which the static rules require a candidate."""
        return {"triton-ascend": "triton"}.get(self.value, self.value)


#: What a model is asked for, by kind of device; TORCH for devices of other kinds.
LANGUAGE_OF_KIND = {"npu": KernelLanguage.TRITON_ASCEND, "cuda": KernelLanguage.TRITON}


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens_in": "in", "tokens_out": "out"}):
    """The price of a model in US dollars.

    Attributes:
        request: for each request.
        tokens_in: for a million tokens of requests.
        tokens_out: for a million tokens of answers.
    """

    request: _Dollars = 0.0
    tokens_in: _Dollars = 0.0
    tokens_out: _Dollars = 0.0


class NamedModel(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens_in": "in", "tokens_out": "out"}
):
    """A model of the file.

    Attributes:
        endpoint: the address of its server, which takes OpenAI's chat completions; "": only recorded answers.
        api_key_variable: the name of the environment variable with the key of the server; "" for none.
        max_tokens: the largest number of tokens of an answer, reasoning included.
        request, tokens_in, tokens_out: the price, as of `Price`.
    """

    endpoint: str = ""
    api_key_variable: str = ""
    max_tokens: _Count = 8_192
    request: _Dollars | None = None
    tokens_in: _Dollars | None = None
    tokens_out: _Dollars | None = None

    @property
    def price(self) -> Price | None:
        """The price; None if the file tells none."""
        told = (self.request, self.tokens_in, self.tokens_out)
        return None if told == (None, None, None) else Price(*(each or 0.0 for each in told))


def cost_of(prices: Mapping[str, Price], request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
    """Returns tokens and price of an exchange, as an attempt has them; a model without a price costs nothing."""
    asked = sum(len(message.content) for message in request.messages)
    tokens_in, tokens_out = answer.tokens_in, answer.tokens_out
    estimated = tokens_in is None or tokens_out is None
    tokens_in = -(-asked // CHARACTERS_OF_TOKEN) if tokens_in is None else tokens_in
    tokens_out = -(-len(answer.text) // CHARACTERS_OF_TOKEN) if tokens_out is None else tokens_out
    price = prices.get(request.model, Price())
    usd = price.request + (tokens_in * price.tokens_in + tokens_out * price.tokens_out) / 1e6
    return {"tokens_in": tokens_in, "tokens_out": tokens_out, "tokens_estimated": estimated, "cost_usd": usd}


@cache
def shipped_prices() -> Mapping[str, Price]:
    """Returns the prices that ship, by the names of models: those of the experiment, for each request."""
    return msgspec.yaml.decode(resources.files(__package__).joinpath("prices.yaml").read_bytes(), type=dict[str, Price])


class ModelsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file of models.

    Attributes:
        models: the models, by the names that their servers know.
        language: what kernels are written in; None: what suits the device.
        attempts: the most attempts of a model at a task, the first answer included.
        cost_limit: no request is sent once the recorded attempts cost as many dollars; None: no limit.
        answers: the folder of recorded answers; "": the one beside the attempts.
        route: the model that is asked about a task, by the complexity of the task; empty: each model is asked about
            each task.
    """

    models: dict[str, NamedModel]
    language: KernelLanguage | None = None
    attempts: _Count = 5
    cost_limit: _Dollars | None = None
    answers: str = ""
    route: dict[str, str] = {}

    def prices(self) -> Mapping[str, Price]:
        """Returns the prices of the file, and those that ship for models without one."""
        told = {name: price for name, model in self.models.items() if (price := model.price) is not None}
        return {**shipped_prices(), **told}


def read_models(path: Path) -> ModelsFile:
    """Returns the content of a file of models. Relative paths begin at the folder of the file.

    Raises:
        OpAtlasError: the file cannot be read, holds something else, or has a cost limit and a model without a price.
    """
    try:
        file = read_yaml(path, ModelsFile)
    except OpAtlasError as error:
        keys = ", ".join(dict.fromkeys((*ModelsFile.__struct_encode_fields__, *NamedModel.__struct_encode_fields__)))
        raise OpAtlasError(f"{error}: the keys are {keys}; write {_EXAMPLE}") from None
    if not file.models:
        raise OpAtlasError(f"{path}: names no model: write {_EXAMPLE}")
    prices = file.prices()
    if file.cost_limit is not None and (unpriced := file.models.keys() - prices):
        raise OpAtlasError(
            f"{path}: cost_limit: no price of {', '.join(sorted(unpriced))} is known: add `in` and `out` ($ for a "
            "million tokens), or `request` ($)"
        )
    answers = str(absolute_path(path.parent / file.answers)) if file.answers else ""
    return msgspec.structs.replace(file, answers=answers)
