"""Bytecode that a kernel could have changed is not loaded: by later processes, by pytest, by later sessions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from opatlas.run.process import fresh_python
from opatlas.run.process.fresh_python import import_environment, module_command, remove_changed_caches


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """A module that prints "own", and a cache of it, with the size and time of the source, that prints "bad"."""
    path = tmp_path / "victim.py"
    path.write_text("print('bad')\n")
    subprocess.run([sys.executable, "-c", "import victim"], cwd=tmp_path, check=True, capture_output=True)
    before = path.stat()
    path.write_text("print('own')\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert subprocess.check_output([sys.executable, "-c", "import victim"], cwd=tmp_path, text=True) == "bad\n"
    return path


@pytest.mark.parametrize(("seconds", "loaded"), [(-60, "own"), (60, "bad")], ids=["changed since", "unchanged"])
def test_a_process_loads_no_cache_that_was_changed_since_pytest_started_processes(
    poisoned: Path, seconds: float, loaded: str
) -> None:
    since = str(time.time_ns() + int(seconds * 1e9))
    environment = {**import_environment(), "PYTHONPATH": str(poisoned.parent), fresh_python._SINCE: since}
    done = subprocess.run(module_command("victim"), env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == f"{loaded}\n"
    # And writes none in its place, in which later sessions would trust.
    assert len(list(poisoned.parent.glob("__pycache__/*"))) == 1


def test_caches_that_a_kernel_may_have_changed_are_removed_for_later_sessions(
    poisoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Path(cache_from_source(str(poisoned)))
    monkeypatch.setitem(sys.modules, "victim", type(sys)("victim"))
    sys.modules["victim"].__file__ = str(poisoned)
    remove_changed_caches(time.time_ns() + 10**9)
    assert cache.exists()
    remove_changed_caches(time.time_ns() - 60 * 10**9)
    assert not cache.exists()
