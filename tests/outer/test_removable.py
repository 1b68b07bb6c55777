"""What hangs on the outside can be deleted: without each package of `opatlas/outer/` the rest still works."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import warm_python
from sessions import HEADER, write_table

ROOT = Path(__file__).parents[2]
OUTER = ROOT / "opatlas" / "outer"
PACKAGES = sorted(path.parent.name for path in OUTER.glob("*/__init__.py"))
#: One of a composition of torch's operators, and one that a query can answer from.
ROWS = {"RmsNorm": ("4,64;64", "4,64;4,1"), "Add": ("4096;4096", "4096")}
SESSION = """
import sys
from opatlas.cli.main import main

assert main(["--help"]) == 0
options = ["--in-process", "--device=cpu", "--repeat-count=2", "--cache=warm", "-p", "no:cacheprovider"]
assert main(["bench", "--database-path", "db", *options]) == 0
assert main(["query", "db", "Add", "4096;4096"]) == 0
assert main(["check", "db"]) == 0
print([name for name in sys.modules if name.startswith("opatlas.outer.")])
"""


def without(removed: set[str], folder: Path) -> None:
    """Makes a checkout without some packages."""
    for name in ("conftest.py", "pytest.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("bench", "plugins", "shapes"):
        (folder / name).symlink_to(ROOT / name)
    kept = [path for path in (ROOT / "opatlas").iterdir() if path != OUTER]
    for path in (*kept, *(path for path in OUTER.iterdir() if path.name not in removed)):
        own = folder / path.relative_to(ROOT)
        own.parent.mkdir(parents=True, exist_ok=True)
        # A module finds the checkout by its file.
        own.symlink_to(path) if path.is_dir() else shutil.copy(path, own)


_IMPORTED = re.compile(r"^from (?:opatlas\.outer|\.)\.(\w+)", re.MULTILINE)


def with_dependants(package: str) -> set[str]:
    """The package, and those of `outer/` that import it, but in functions."""
    texts = {name: "".join(path.read_text() for path in (OUTER / name).glob("*.py")) for name in PACKAGES}
    needs = {name: set(_IMPORTED.findall(text)) for name, text in texts.items()}
    found = {package}
    while more := {name for name in PACKAGES if found & needs[name]} - found:
        found |= more
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rest_works_without(package: str, tmp_path: Path) -> None:
    removed = with_dependants(package)
    without(removed, tmp_path)
    (tmp_path / "db").mkdir()
    for name, (inputs, outputs) in ROWS.items():
        slots = [
            cell
            for shapes in (inputs, outputs)
            for cell in (shapes, *(";".join([each] * len(shapes.split(";"))) for each in ("FLOAT", "ND")))
        ]
        cells = dict(zip(HEADER, ("dynamic", "AI_VECTOR_CORE", *slots), strict=True))
        write_table(tmp_path / "db" / f"{name}.csv", [cells])
    done = warm_python.run(
        [sys.executable, "-c", SESSION], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path), "CI": "1"}
    )
    assert done.returncode == 0, done.stdout
    assert "2 measured" in done.stdout
    assert not [name for name in removed if f"opatlas.outer.{name}" in done.stdout]
