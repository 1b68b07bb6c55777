"""OpAtlas: a versioned, traceable database of measured operator durations.

The library. `pytest bench/` and `pytest shapes/` are built on it, and so is the command `opatlas`.
"""

from pathlib import Path as _Path

_PACKAGE = _Path(__file__).resolve().parent
# A checkout has bench/, plugins/ and shapes/ beside this package; a wheel has them inside it.
# Either way they are opatlas.bench, opatlas.plugins and opatlas.shapes.
_CHECKOUT = None if (_PACKAGE / "bench").is_dir() else _PACKAGE.parent
if _CHECKOUT is not None:
    __path__.append(str(_CHECKOUT))
