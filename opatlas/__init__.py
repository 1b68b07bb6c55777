"""OpAtlas: a versioned, traceable database of measured operator durations.

The library. `pytest bench/` and `pytest shapes/` are built on it, and so is the command `opatlas`.
"""

from pathlib import Path as _Path

# A checkout has bench/, plugins/ and shapes/ beside this package; a wheel has them inside it.
# Either way they are opatlas.bench, opatlas.plugins and opatlas.shapes.
_CHECKOUT = _Path(__file__).resolve().parents[1]
if (_CHECKOUT / "pytest.ini").is_file():
    __path__.append(str(_CHECKOUT))
