"""What a session knows about the models that write candidates (--models)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opatlas.outer.generation.models_file import ModelsFile
    from opatlas.outer.generation.settings import KernelLanguage

#: The folder of attempts and candidates in the database of tasks; a folder for each language lies in it.
GENERATED = "generated"
#: The folder of recorded answers beside the attempts, without another in the file of models.
ANSWERS = "answers"


@dataclass(frozen=True)
class ModelSettings:
    """What a session knows about models.

    Attributes:
        models: the names of the models, by the name of their implementation.
        language: what kernels are written in.
        file: the file that names them.
    """

    models: Mapping[str, str]
    language: KernelLanguage
    file: ModelsFile

    def folder(self, database: Path) -> Path:
        """Returns the folder of attempts and candidates in a database of tasks."""
        return database / GENERATED / self.language.value

    def told(self) -> Mapping[str, object]:
        """Returns what a manifest records."""
        file = self.file
        return {
            "file": file.path.name,
            "models": {
                name: {"endpoint": model.endpoint, "max_tokens": model.max_tokens}
                for name, model in file.models.items()
            },
            "language": self.language.value,
            "answers": file.answers.name if file.answers is not None else None,
            "attempts": file.attempts,
            "cost_limit": file.cost_limit,
        }
