"""Imports of a process: bytecode that a kernel could have changed is not loaded, and heavy modules only at need."""

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


ROOT = Path(__file__).parents[2]
#: torch's compiler, and the readers and writers of tables: half a second and more.
HEAVY = ("torch._dynamo", "pandas", "pyarrow")
CODE = f"""
import sys
from opatlas.run.process import device_main
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run import kernel_call, runner
import torch
impl.add, formulas.add
with kernel_call.OperatorCount():
    torch.ones(2)
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_a_device_process_imports_neither_torchs_compiler_nor_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


QUERIES = ("MatMulV2 64,7168 4608,7168", "MatMulV2 777,7168 4608,7168", "all_reduce 1048576 2")
ANSWERS = "main(['query', 'NVIDIA_H200', *words.split()])"


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("openai", "import opatlas.outer.generation.session_models, opatlas.outer.diagnosis.command"),
        ("torch", "from opatlas.cli.main import main; main(['implementations'])"),
        ("pandas", f"from opatlas.cli.main import main\nfor words in {QUERIES!r}: assert {ANSWERS} == 0"),
    ],
)
def test_a_command_imports_a_heavy_module_at_its_first_use(module: str, code: str) -> None:
    code = f"{code}\nimport sys; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
