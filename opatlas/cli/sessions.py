"""The commands that run pytest: `opatlas bench`, `opatlas collectives` and `opatlas shapes`.

A session reads no settings of the working folder: no pytest.ini, no conftest.py, no module. Only a test file of the
user's own, named on the command line, is run with the settings of the folder that holds the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path

from opatlas.installation import code_folder, pytest_cache, require_extra

_INI = Path(__file__).with_name("sessions.ini")
_PLUGINS = ("-p", "opatlas.plugins")


def run_session(name: str, tests: str, about: str, arguments: Sequence[str]) -> int:
    """Runs pytest and returns its exit status.

    Args:
        name: the name of the command, for its help.
        tests: the folder or file that is collected, such as "bench" or "bench/test_collectives.py".
        about: what the command does, in a line.
        arguments: options of OpAtlas and of pytest, and perhaps test files that replace `tests`.

    Raises:
        OpAtlasError: pytest or torch is not installed.
    """
    require_extra("bench", f"`opatlas {name}`", "pytest")
    if {"-h", "--help"}.intersection(takewhile(lambda argument: argument != "--", arguments)):
        print(import_module("opatlas.plugins.options").help_of(name, about), end="")
        return 0
    require_extra("bench", f"`opatlas {name}`", "xdist", "pytest_benchmark", "torch")
    import pytest

    folder, _, file = tests.partition("/")
    path = code_folder(folder)
    files = test_files(arguments)
    if files and not any(path in file.parents for file in files):
        return int(pytest.main([*_PLUGINS, "-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments]))
    # Relative paths in options stay relative to the working folder.
    settings = ["-c", str(_INI), f"--rootdir={path.parent}", "-o", f"cache_dir={pytest_cache()}", *_PLUGINS]
    if not any("--benchmark" in words for words in (*arguments, os.environ.get("PYTEST_ADDOPTS", ""))):
        # The plugin makes a folder in the working folder.
        settings += ["-p", "no:benchmark"]
    return int(pytest.main([*settings, *([] if files else [str(path / file)]), *arguments]))


def test_files(arguments: Sequence[str]) -> list[Path]:
    """Returns the test files among the arguments. Folders and the values of OpAtlas' options do not count."""
    options = import_module("opatlas.plugins.data_folders").PATH_OPTIONS
    words = [word for before, word in pairwise(("", *arguments)) if before not in options and not word.startswith("-")]
    files = [Path(word.partition("::")[0]) for word in words]
    return [path.resolve() for path in files if path.suffix == ".py" and path.is_file()]
