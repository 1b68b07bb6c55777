"""Where OpAtlas is installed, in a checkout of the repository or from a wheel, and what registers itself there.

Commands, schedulers, sources of rows and pages of the site register themselves by entry points (pyproject.toml). The
parts of OpAtlas that can be deleted do so, and other packages may. What is deleted leaves no name behind.

`import opatlas` imports this module in every process, so other packages are imported where a function needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PACKAGE = Path(__file__).resolve().parent
#: The root of the checkout; None for a wheel, which has bench/, plugins/ and shapes/ inside the package.
CHECKOUT = None if (PACKAGE / "bench").is_dir() else PACKAGE.parent
#: The databases in a wheel. Those of a checkout are in the folder that sessions write.
SHIPPED_DATABASES = PACKAGE / "database"


def databases_root() -> Path:
    """Returns the folder of the default databases: that of the checkout, else one in the user's data folder."""
    if CHECKOUT is not None:
        return CHECKOUT / "database" / "data"
    from platformdirs import user_data_path

    return user_data_path("opatlas", appauthor=False) / "database"


def pytest_cache() -> Path:
    """Returns the folder where pytest keeps the cases that failed last."""
    if CHECKOUT is not None:
        return CHECKOUT / ".pytest_cache"
    from platformdirs import user_cache_path

    return user_cache_path("opatlas", appauthor=False) / "pytest"


def code_folder(name: str) -> Path:
    """Returns the folder of `bench`, `plugins` or `shapes`, wherever it is installed."""
    return (CHECKOUT or PACKAGE) / name


def measuring_code() -> tuple[Path, ...]:
    """Returns the folders with the code that affects what is measured; in a wheel the package holds all of it."""
    return (PACKAGE, *map(code_folder, ("bench", "plugins") if CHECKOUT is not None else ()))


def require_extra(extra: str, purpose: str, *modules: str) -> None:
    """Checks that modules of an extra are installed, and imports none of them.

    Args:
        purpose: what needs the modules, such as "`opatlas bench`".

    Raises:
        UsageError: a module is missing; the message names the extra.
    """
    from opatlas.errors import UsageError

    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UsageError(f"{purpose} needs {', '.join(missing)}: pip install 'opatlas[{extra}]'")


#: Values are `Command`s.
COMMANDS = "opatlas.commands"
#: Values make what runs the rows of a session elsewhere (opatlas/run).
SCHEDULERS = "opatlas.schedulers"
#: Values make rows that options name (plugins/).
ROW_SOURCES = "opatlas.row_sources"
#: Values write pages of the site of `opatlas report` (opatlas/show/site).
REPORT_PAGES = "opatlas.report_pages"
#: Values write files of `opatlas export` with the ending that is their name, or a folder (opatlas/cli/query.py).
EXPORTS = "opatlas.exports"
#: Values make files to begin kernels with (opatlas/cli/implementations.py).
KERNEL_TEMPLATES = "opatlas.kernel_templates"


class Command(NamedTuple):
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
