"""OpAtlas: a versioned, traceable database of measured operator durations.

`opatlas.open("NVIDIA_H200")` returns an `OpenDatabase`, which tells durations: `help(opatlas.OpenDatabase)`. The names
in `opatlas.__all__` are the public API; docs/query.md shows them. Each is imported when it is first used, so that
`import opatlas` takes no time and needs neither torch nor pytest.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from opatlas.installation import CHECKOUT as _CHECKOUT

if TYPE_CHECKING:
    from opatlas.ask.query.database import OpenDatabase, open  # noqa: A004
    from opatlas.ask.query.model_cost import ModelCost, PartCost
    from opatlas.ask.query.next_rows import NextRow, NextRows
    from opatlas.ask.query.question import How, NoAnswer, QueryResult
    from opatlas.data.database import Database
    from opatlas.errors import OpAtlasError
    from opatlas.outer.suites.override import use
    from opatlas.row.errors import Unsupported
    from opatlas.row.location import default_path, list_databases
    from opatlas.row.table import Row, RowTable
    from opatlas.row.versions import Versions
    from opatlas.run.formula import per_element, per_row, pointwise
    from opatlas.run.implementation import Prepared, implements
    from opatlas.run.registry import replays

__all__ = [
    "Database",
    "How",
    "ModelCost",
    "NextRow",
    "NextRows",
    "NoAnswer",
    "OpAtlasError",
    "OpenDatabase",
    "PartCost",
    "Prepared",
    "QueryResult",
    "Row",
    "RowTable",
    "Unsupported",
    "Versions",
    "default_path",
    "implements",
    "list_databases",
    "open",
    "per_element",
    "per_row",
    "pointwise",
    "replays",
    "use",
]

_MODULES = {
    "Database": "data.database",
    "How": "ask.query.question",
    "ModelCost": "ask.query.model_cost",
    "NextRow": "ask.query.next_rows",
    "NextRows": "ask.query.next_rows",
    "NoAnswer": "ask.query.question",
    "OpAtlasError": "errors",
    "OpenDatabase": "ask.query.database",
    "PartCost": "ask.query.model_cost",
    "Prepared": "run.implementation",
    "QueryResult": "ask.query.question",
    "Row": "row.table",
    "RowTable": "row.table",
    "Unsupported": "row.errors",
    "Versions": "row.versions",
    "default_path": "row.location",
    "implements": "run.implementation",
    "list_databases": "row.location",
    "open": "ask.query.database",
    "per_element": "run.formula",
    "per_row": "run.formula",
    "pointwise": "run.formula",
    "replays": "run.registry",
    "use": "outer.suites.override",
}

if _CHECKOUT is not None:
    # A checkout has bench/, plugins/ and shapes/ beside this package, and a wheel has them inside it.
    # Either way they are opatlas.bench, opatlas.plugins and opatlas.shapes.
    __path__.append(str(_CHECKOUT))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_import_module(f"{__name__}.{_MODULES[name]}"), name)
