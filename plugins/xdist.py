"""Sets the number of workers of xdist: a worker for each device, unless -n says otherwise."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from opatlas.errors import OpAtlasError
from opatlas.installation import code_folder
from opatlas.options import Scope

from .settings import scope_of
from .target import devices_of

_FIXTURES = code_folder("bench") / "conftest.py"
_THEORY = code_folder("shapes") / "conftest.py"


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Sets the number of workers, before xdist's own hook, which may come first, makes workers of it."""
    _set_workers(config)
    return (yield)


def _set_workers(config: pytest.Config) -> None:
    option = config.option
    if getattr(option, "numprocesses", 0) is not None or option.tx or hasattr(config, "workerinput"):
        # xdist is not there, or an option sets the workers, or this process is a worker.
        return
    if (
        option.in_process
        or option.ray is not None
        or option.usepdb
        or option.collectonly
        or not has_replays(config)
        or scope_of(config) is not Scope.KERNELS
    ):
        return
    try:
        devices = devices_of(config)
    except OpAtlasError as error:
        raise pytest.UsageError(str(error)) from None
    if len(devices) > 1:
        option.numprocesses = len(devices)


def has_replays(config: pytest.Config) -> bool:
    """Returns whether replays may be collected, before the collection: whether their fixtures are there."""
    # `opatlas shapes` and `pytest -p opatlas.plugins` load the fixtures of replays, whatever is to be collected.
    loaded = config.pluginmanager.has_plugin("opatlas.plugins.fixtures")
    return _FIXTURES in _plugin_files(config) or (loaded and not has_theory_rows(config))


def has_theory_rows(config: pytest.Config) -> bool:
    """Returns whether theory rows may be collected, before the collection."""
    return _THEORY in _plugin_files(config)


def _plugin_files(config: pytest.Config) -> set[Path]:
    files = (getattr(plugin, "__file__", None) for plugin in config.pluginmanager.get_plugins())
    return {Path(file) for file in files if file}
