"""Registers the plugins, once the packages that they need are there."""

from importlib.util import find_spec

_NEEDED = (
    *("cyclopts", "filelock", "msgspec", "numpy", "packaging", "pandas", "platformdirs", "pyarrow"),
    *("rich", "threadpoolctl", "yaml"),
)

if _MISSING := [name for name in _NEEDED if find_spec(name) is None]:
    raise SystemExit(
        f"OpAtlas needs {', '.join(_MISSING)}, which this Python lacks: `make bench` sets up .venv, and "
        "`pip install -e '.[bench]'` this environment"
    )

pytest_plugins = ("opatlas.plugins.options", "opatlas.plugins.theory", "opatlas.plugins.hooks")
