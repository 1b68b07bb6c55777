"""What registers itself by entry points: commands, schedulers, sources of rows, pages of the site (pyproject.toml).

The parts of OpAtlas that can be deleted do so, and other packages may. What is deleted leaves no name behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from opatlas.installation import CHECKOUT

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Values are `Command`s.
COMMANDS = "opatlas.commands"
#: Values make what runs the rows of a session elsewhere (opatlas/run).
SCHEDULERS = "opatlas.schedulers"
#: Values make rows that options name (plugins/).
ROW_SOURCES = "opatlas.row_sources"
#: Values write pages of the site of `opatlas report` (opatlas/show/site).
REPORT_PAGES = "opatlas.report_pages"
#: Values make files to begin kernels with (opatlas/cli/implementations.py).
KERNEL_TEMPLATES = "opatlas.kernel_templates"


@dataclass(frozen=True)
class Command:
    """`opatlas NAME ...`, a function that returns a Result, or a session of pytest.

    The help of all commands loads it: it lies in a module without heavy imports, such as the package's `__init__`.

    Attributes:
        group: the heading in the help, which says what a person wants.
        about: what the command does, in a line.
        function: `module:name`, imported when the command runs; "" for a session of pytest.
        tests: what a session of pytest collects, such as "bench/test_collectives.py".
    """

    group: str
    about: str
    function: str = ""
    tests: str = ""


_SECTION = re.compile(r'^\[project\.entry-points\."(opatlas\.\w+)"\]\n((?:.*=.*\n)*)', re.MULTILINE)
_ENTRY = re.compile(r'^([\w-]+) = "(.+)"$', re.MULTILINE)


@cache
def extensions(group: str) -> Mapping[str, EntryPoint]:
    """Returns what has registered itself in a group, by name: `extensions(COMMANDS)["diagnose"].load()`.

    An entry whose module is not there is left out. Nothing is imported but the packages that modules lie in.
    """
    # Most commands need no entry points, and the module takes 20 ms to import.
    from importlib.metadata import entry_points

    found = {entry.name: entry for entry in (*entry_points(group=group), *_of_checkout(group))}
    return {name: entry for name, entry in found.items() if _is_there(entry.module)}


def _of_checkout(group: str) -> Iterator[EntryPoint]:
    """Yields the entries of pyproject.toml: those of an editable installation are as old as the installation."""
    if CHECKOUT is None:
        return
    from importlib.metadata import EntryPoint

    for name, entries in _SECTION.findall((CHECKOUT / "pyproject.toml").read_text("utf-8")):
        if name == group:
            yield from (EntryPoint(name, value, group) for name, value in _ENTRY.findall(entries))


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
