"""What --models asks for, and the implementations that stand for models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from opatlas.files import expect_folder
from opatlas.outer.generation.answers import model_folder
from opatlas.outer.generation.endpoint import Endpoint, EndpointError
from opatlas.outer.generation.models_file import read_models
from opatlas.outer.generation.settings import LANGUAGE_OF_KIND, KernelLanguage
from opatlas.outer.tasks.task import MODEL_NEW
from opatlas.row.location import implementation_label
from opatlas.run.implementations.catalog import ALL, shipped
from opatlas.run.implementations.contract import KernelSource
from opatlas.run.implementations.implementation import Implementation, default_devices

from .model_options import ModelSettings


def model_settings(path: Path, kind: str) -> ModelSettings:
    """Returns what the file of --models says.

    Args:
        path: the file.
        kind: the kind of the device.

    Raises:
        OpAtlasError: a file or folder cannot be used, or an address or its key.
        pytest.UsageError: the names of models contradict each other.
    """
    file = read_models(path)
    models: dict[str, str] = {}
    for model, entry in file.models.items():
        other = models.setdefault(model_folder(model), model)
        if other != model:
            raise pytest.UsageError(f"{path}: {other} and {model} have the same folder, {model_folder(model)}")
        if entry.endpoint:
            # Refuses a wrong address, and a variable without a key.
            try:
                Endpoint(entry.endpoint, entry.api_key_variable)
            except EndpointError as error:
                raise pytest.UsageError(f"{path}: {model}: {error}") from None
        elif file.answers is None:
            raise pytest.UsageError(
                f"{path}: {model}: name its server with `endpoint: URL`, or recorded answers with `answers: DIR`"
            )
        else:
            expect_folder(file.answers, "name a folder with recorded answers", option=f"{path}: answers")
    if taken := models.keys() & {ALL, *default_devices(), *shipped()}:
        raise pytest.UsageError(f"{path}: {min(taken)} is the name of an implementation of OpAtlas")
    language = file.language or LANGUAGE_OF_KIND.get(kind, KernelLanguage.TORCH)
    return ModelSettings(models, language, file)


def model_implementations(settings: ModelSettings, kernel_types: Iterable[str]) -> list[Implementation]:
    """Returns the implementation of each model. Its sources have no file: a candidate is made when its row runs.

    Args:
        kernel_types: the kernel types of the tasks.
    """
    found = []
    for name, model in settings.models.items():
        label = implementation_label(name, settings.language.value)
        sources = {kernel_type: KernelSource(label, "", "", MODEL_NEW) for kernel_type in kernel_types}
        about = f"kernels in {settings.language} that {model} writes"
        found.append(Implementation(name, settings.language.value, about, sources))
    return found
