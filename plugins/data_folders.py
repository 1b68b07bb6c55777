"""Keeps pytest from running code of the folders that our options name. An entry point: pytest imports it first of all.

The options are declared in conftest.py. Until that is loaded, pytest takes `DB` of `--database-path DB` for a folder
of tests: it runs the `conftest.py` of that folder and of those above it, and heeds the `pytest.ini` there. The module
imports nothing of ours, because the checkout that it was installed from may be another one than the one that runs.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import pytest

_PATH_OPTIONS = ("--database-path", "--prof-path", "--target-models")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> Generator[None, None, None]:
    """Takes the values of our options out of the folders whose conftest.py is loaded before the options are known."""
    values = [value for option, value in pairwise(args) if option in _PATH_OPTIONS]
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
    return (yield)


def _below(path: Path, folders: list[Path]) -> bool:
    return any(folder in (path, *path.parents) for folder in folders)
