"""Where OpAtlas is installed: in a checkout of the repository, or from a wheel.

`import opatlas` imports this module in every process, so other packages are imported where a function needs them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
#: The root of the checkout; None for a wheel, which has bench/, plugins/ and shapes/ inside the package.
CHECKOUT = None if (PACKAGE / "bench").is_dir() else PACKAGE.parent


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
