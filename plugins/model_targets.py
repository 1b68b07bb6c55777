"""What --models and its options ask for, and the implementations that stand for models."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

import pytest

from opatlas.files import absolute_path, expect_folder
from opatlas.generation.answers import model_folder
from opatlas.generation.endpoint import Endpoint
from opatlas.generation.prices import read_prices
from opatlas.generation.settings import LANGUAGE_OF_KIND, KernelLanguage, LoopLimits
from opatlas.implementations.catalog import ALL, shipped
from opatlas.implementations.contract import KernelSource
from opatlas.implementations.implementation import DEFAULT_DEVICES, Implementation
from opatlas.model.location import implementation_label
from opatlas.tasks.task import MODEL_NEW

from .model_options import ModelSettings


def model_settings(option: Namespace, kind: str) -> ModelSettings:
    """Returns what the options say about models.

    Args:
        option: the options of a session with --models.
        kind: the kind of the device.

    Raises:
        OpAtlasError: a file or folder cannot be used, or the address or its key.
        pytest.UsageError: options contradict each other.
    """
    if not option.endpoint and option.answers is None:
        raise pytest.UsageError(
            "--models: name a server with --endpoint URL, or a folder of recorded answers with --answers DIR"
        )
    models: dict[str, str] = {}
    for model in option.models:
        other = models.setdefault(model_folder(model), model)
        if other != model:
            raise pytest.UsageError(f"--models: {other} and {model} have the same folder, {model_folder(model)}")
    if taken := models.keys() & {ALL, *DEFAULT_DEVICES, *shipped()}:
        raise pytest.UsageError(f"--models: {min(taken)} is the name of an implementation of OpAtlas")
    answers = absolute_path(option.answers) if option.answers is not None else None
    if option.endpoint:
        # Refuses a wrong address, and a variable without a key.
        Endpoint(option.endpoint, option.api_key_variable)
    elif answers is not None:
        expect_folder(answers, "name one with recorded answers, or a server with --endpoint", option="--answers")
    prices = read_prices(option.prices)
    unpriced = [model for model in models.values() if model not in prices]
    if option.cost_limit is not None and unpriced:
        raise pytest.UsageError(
            f"--cost-limit: no price of {', '.join(unpriced)} is known: name a file that has it with --prices"
        )
    return ModelSettings(
        models,
        KernelLanguage(option.language or LANGUAGE_OF_KIND.get(kind, KernelLanguage.TORCH)),
        option.endpoint,
        option.api_key_variable,
        answers,
        LoopLimits(option.attempts, cost_usd=option.cost_limit, max_tokens=option.max_tokens),
        absolute_path(option.prices) if option.prices is not None else None,
    )


def model_implementations(settings: ModelSettings, kernel_types: Iterable[str]) -> list[Implementation]:
    """Returns the implementation of each model. Its sources have no file: a candidate is made when its row runs.

    Args:
        kernel_types: those of the tasks.
    """
    found = []
    for name, model in settings.models.items():
        label = implementation_label(name, settings.language.value)
        sources = {kernel_type: KernelSource(label, "", "", MODEL_NEW) for kernel_type in kernel_types}
        about = f"kernels in {settings.language} that {model} writes"
        found.append(Implementation(name, settings.language.value, about, sources))
    return found
