"""The file of --models: the models that write kernels, their addresses and prices, and when they stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import absolute_path, read_safely
from opatlas.yaml_file import YamlError, parse_yaml

from .prices import Dollars, Price, Prices, shipped_prices
from .settings import KernelLanguage, LoopLimits

_MOST_BYTES = 1 << 20
_EXAMPLE = "models: {my-model: {endpoint: http://localhost:8000}}"
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class NamedModel(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens_in": "in", "tokens_out": "out"}
):
    """A model of the file.

    Attributes:
        endpoint: the address of its server, which takes OpenAI's chat completions; "": only recorded answers.
        api_key_variable: the name of the environment variable with the key of the server; "" for none.
        max_tokens: the largest number of tokens of an answer, reasoning included.
        request: dollars for each request.
        tokens_in: dollars for a million tokens of requests.
        tokens_out: dollars for a million tokens of answers.
    """

    endpoint: str = ""
    api_key_variable: str = ""
    max_tokens: _Count = LoopLimits.max_tokens
    request: Dollars | None = None
    tokens_in: Dollars | None = None
    tokens_out: Dollars | None = None

    @property
    def price(self) -> Price | None:
        """The price; None if the file tells none."""
        told = (self.request, self.tokens_in, self.tokens_out)
        return None if told == (None, None, None) else Price(*(each or 0.0 for each in told))


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, NamedModel | None]
    language: KernelLanguage | None = None
    attempts: _Count = LoopLimits.attempts
    cost_limit: Dollars | None = None
    answers: str = ""


@dataclass(frozen=True)
class ModelsFile:
    """The content of a file of models.

    Attributes:
        path: the file.
        models: the models, by the names that their servers know.
        language: what kernels are written in; None: what suits the device.
        attempts: the most attempts of a model at a task, the first answer included.
        cost_limit: no request is sent once the recorded attempts cost as many dollars; None: no limit.
        answers: the folder of recorded answers; None: the one beside the attempts.
    """

    path: Path
    models: Mapping[str, NamedModel]
    language: KernelLanguage | None = None
    attempts: int = LoopLimits.attempts
    cost_limit: float | None = None
    answers: Path | None = None

    def prices(self) -> Prices:
        """Returns the prices of the file, and those that ship for models without one."""
        told = {name: price for name, model in self.models.items() if (price := model.price) is not None}
        return Prices({**shipped_prices(), **told})

    def limits(self, model: str) -> LoopLimits:
        """Returns when the loop of a model ends."""
        return LoopLimits(self.attempts, cost_usd=self.cost_limit, max_tokens=self.models[model].max_tokens)


def read_models(path: Path) -> ModelsFile:
    """Returns the content of a file of models. A relative path of answers begins at the folder of the file.

    Raises:
        OpAtlasError: the file cannot be read, holds something else, or has a cost limit and a model without a price.
    """
    try:
        values = parse_yaml(read_safely(path, _MOST_BYTES), strict=True)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): write a file as in {_EXAMPLE}") from None
    except YamlError as error:
        raise OpAtlasError(f"{path}: {error}: correct the YAML") from None
    content = _convert(path, values)
    if not content.models:
        raise OpAtlasError(f"{path}: names no model: write {_EXAMPLE}")
    found = ModelsFile(
        absolute_path(path),
        {name: model or NamedModel() for name, model in content.models.items()},
        content.language,
        content.attempts,
        content.cost_limit,
        absolute_path(path.parent / content.answers) if content.answers else None,
    )
    prices = found.prices()
    unpriced = [name for name in found.models if name not in prices]
    if found.cost_limit is not None and unpriced:
        raise OpAtlasError(
            f"{path}: cost_limit: no price of {', '.join(unpriced)} is known: add `in` and `out` ($ for a million "
            "tokens), or `request` ($)"
        )
    return found


def _convert(path: Path, values: object) -> _Content:
    place = str(path)
    try:
        if isinstance(values, dict) and isinstance(values.get("models"), dict):
            # msgspec does not say which key of a mapping has the wrong value.
            for name, model in values["models"].items():
                place = f"{path}: models: {name}"
                msgspec.convert(model, NamedModel | None)
            place = str(path)
        return msgspec.convert(values, _Content)
    except msgspec.ValidationError as error:
        known = (_Content if place == str(path) else NamedModel).__struct_encode_fields__
        raise OpAtlasError(f"{place}: {error}: the keys are {', '.join(known)}; write {_EXAMPLE}") from None
