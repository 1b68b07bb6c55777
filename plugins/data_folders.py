"""Keeps pytest from running code of the folders that OpAtlas' options name.

OpAtlas' options are declared in a conftest.py. Before pytest loads that file, pytest takes `DB` of `--database-path DB`
for a folder of tests: pytest runs the `conftest.py` of `DB` and of the folders above `DB`, and reads the `pytest.ini`
there. This module is an entry point, which pytest imports before any conftest.py. The module imports nothing of
OpAtlas, because the installed checkout may differ from the checkout that runs.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import pytest

#: The options whose value may be a file or a folder.
PATH_OPTIONS = (
    "--calls",
    "--database-path",
    "--implementation",
    "--models",
    "--prof-path",
    "--step",
    "--suite",
    "--target-models",
    "--tasks",
)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Removes the values of OpAtlas' options from the folders whose conftest.py pytest is about to load."""
    values = [value for option, value in pairwise(args) if option in PATH_OPTIONS]
    tests = early_config.known_args_namespace.file_or_dir
    for value in values:
        if value in tests:
            tests.remove(value)
    here = early_config.invocation_params.dir
    if values and early_config.inipath is not None:
        folder = early_config.inipath.parent
        of_tests = [(here / test.partition("::")[0]).resolve() for test in tests] or [here]
        of_values = [(here / value).resolve() for value in values]
        if _below(folder, of_values) and not any(folder in (path, *path.parents) for path in of_tests):
            raise pytest.UsageError(
                f"{early_config.inipath} lies in a folder that holds data: name the tests before the options, "
                f"or join the option and its folder with ="
            )
    yield


def _below(path: Path, folders: list[Path]) -> bool:
    return any(folder in (path, *path.parents) for folder in folders)
