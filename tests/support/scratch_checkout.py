"""A copy of the checkout in a folder of its own, in which a shell runs the commands of the pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CODE = ("opatlas", "bench", "plugins", "shapes")
_FILES = ("conftest.py", "pytest.ini", "pyproject.toml", "constraints.txt")
#: The programs of the copy, whatever is installed.
_PROGRAMS = {"pytest": "-m pytest", "opatlas": "-m opatlas", "python": "", "python3": ""}


class ScratchCheckout:
    """The code without its databases; `tests` too where they are asked for."""

    def __init__(self, folder: Path, *, tests: bool = False) -> None:
        self.folder = folder
        for name in _CODE:
            shutil.copytree(ROOT / name, folder / name)
        for name in _FILES:
            shutil.copy(ROOT / name, folder)
        if tests:
            for name in ("bench", "support"):
                shutil.copytree(ROOT / "tests" / name, folder / "tests" / name)
            shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
        self._programs = folder / "bin"
        self._programs.mkdir()
        for name, words in _PROGRAMS.items():
            (self._programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (self._programs / name).chmod(0o755)
        # Of its own: rows of other sessions, which lock a file there, would be waited for.
        self._temporary = folder / "tmp"
        self._temporary.mkdir()

    def run(self, text: str, *, options: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a line of shell there, with this Python; its output is in `stdout`.

        Args:
            options: of pytest, read before those of the line, which win.
        """
        # A session of the copy is not a worker of the session that runs this test.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
        environment |= {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "PYTEST_ADDOPTS": f"-p no:cacheprovider {options}",
            "TMPDIR": str(self._temporary),
        }
        return subprocess.run(
            ["bash", "-c", text],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
