"""A route chooses the model that is asked about a task, by the complexity of the task: strategy C, as it is run.

The file of --models has a table, or names a folder with attempts of its models, from which the table is made. The
attempts at a task never choose its own model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opatlas.errors import UsageError
from opatlas.files import expect_folder
from opatlas.outer.tasks.task import CLASSES

from .figures import ROUTED, Selector
from .models_file import ModelsFile
from .outcomes import TaskName, read_experiment

#: Returns the model for a complexity and a task.
Route = Callable[[str, TaskName], str]
#: The key of a table for the complexities that it does not name.
OTHER_CLASSES = "other"


def route_of(path: Path, file: ModelsFile) -> Route | None:
    """Returns the route of a file of models; None if it has none.

    Raises:
        UsageError: a table leaves out a complexity, or names another model than those of the file; a folder has no
            attempts of these.
        OpAtlasError: a file of attempts cannot be read.
    """
    if isinstance(file.route, str):
        if not file.route:
            return None
        expect_folder(Path(file.route), "name the folder of a run with models", option=f"{path}: route")
        experiment = read_experiment([Path(file.route)]).of_models(file.models)
        if not experiment.outcomes:
            raise UsageError(f"{path}: route: {file.route} has no attempts of {', '.join(file.models)}")
        return Selector(experiment).best
    if ROUTED in file.models:
        raise UsageError(f"{path}: {ROUTED} is the name of the route: rename the model")
    table = file.route
    wrong = [name for name in table if name not in (*CLASSES, OTHER_CLASSES)]
    wrong += [model for model in table.values() if model not in file.models]
    wrong += [] if OTHER_CLASSES in table else [name for name in CLASSES if name not in table]
    if wrong:
        raise UsageError(
            f"{path}: route: {wrong[0]}: give one of the models for each of {', '.join(CLASSES)}, or for some of them "
            f"and for `{OTHER_CLASSES}`"
        )
    return lambda complexity, task: table.get(complexity) or table[OTHER_CLASSES]
