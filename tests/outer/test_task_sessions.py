"""Sessions with --tasks, as a user runs them: tasks of complex numbers, files of other editors, tasks that fail."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from opatlas.row.columns import ERROR_CLASS, MICROBENCH_MEDIAN, STATUS, STATUS_REASON
from opatlas.row.status import Status

pytestmark = pytest.mark.usefixtures("forks")
ROOT = Path(__file__).parents[2]

HEAD = "import torch, torch.nn as nn\n"


def candidate(forward: str) -> str:
    return f"{HEAD}class ModelNew(nn.Module):\n    def forward(self, x):\n        return {forward}\n"


AXPY = "import sys\n" + candidate("torch.add(x * 2, 1)")
#: The forward of each task, and its inputs.
TASKS = {
    "spectrum": ("torch.fft.rfft(x)", "torch.randn(16, 128)"),
    "product": ("x @ x.mH", "torch.randn(16, 16, dtype=torch.complex128)"),
    "conjugate": ("torch.conj(x)", "torch.conj(torch.randn(4, 32, dtype=torch.complex64)).clone()"),
    "negative": ("(torch.conj(x).imag, [x.mT.conj()])", "torch.randn(4, 32, dtype=torch.complex64)"),
    "axpy": ("x * 2 + 1", "torch.randn(64, 128)"),
    "gradient": ("torch.autograd.grad((x**2).sum(), x)[0]", "torch.randn(16, 64, requires_grad=True)"),
    "backward": ("[(x**3).sum().backward(), x.grad][1]", "torch.randn(16, 64, requires_grad=True)"),
}
CONV = """\
class Model(nn.Module):
    def __init__(self, i, o, k):
        super().__init__()
        self.conv = nn.Conv1d(i, o, k, bias=False)
    def forward(self, x):
        return self.conv(x)
def get_inputs(): return [torch.rand(2, 3, 16)]
def get_init_inputs(): return [3, 4, 3]
"""
OTHER_NAMES = """\
class ModelNew(nn.Module):
    def __init__(self, i, o, k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, k))
    def forward(self, x):
        return torch.nn.functional.conv1d(x, self.weight){}
"""
#: Its gradients accumulate in a parameter, too.
BACKWARD = (
    HEAD
    + """\
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(16, 64))
    def forward(self, x):
        (x**3 * self.factor).sum().backward()
        return x.grad + 0 * self.factor.grad
"""
)
CANDIDATES = {
    "spectrum/right": candidate("torch.fft.rfft(x)"),
    "spectrum/off": candidate("torch.fft.rfft(x) * 1.001"),
    "conjugate/computed": candidate("torch.conj_physical(x)"),
    "conjugate/missing": candidate("x.clone()"),
    "axpy/dos": "\ufeff" + AXPY.replace("\n", "\r\n"),
    "axpy/tested": AXPY + "def main():\n    return 0\nif __name__ == '__main__':\n    sys.exit(main())\n",
    "axpy/crashes": "import faulthandler\n" + candidate("[faulthandler._sigsegv(), x][1]"),
    "axpy/ends": AXPY + "def main():\n    return 0\nif __name__ != '__main__':\n    sys.exit(main())\n",
    "gradient/autograd": candidate("torch.autograd.grad(x.square().sum(), x)[0]"),
    "gradient/forward": candidate("x**2"),
    "backward/weights": BACKWARD,
    "conv/names": HEAD + OTHER_NAMES.format(""),
    "conv/raises": HEAD + OTHER_NAMES.format(" + missing"),
}
#: The error class of each candidate.
VERDICTS = dict.fromkeys(CANDIDATES, "pass") | {
    "spectrum/off": "mismatch/scaled",
    "conjugate/missing": "mismatch/other",
    "gradient/forward": "mismatch/other",
    "axpy/crashes": "crash/SIGSEGV",
    "axpy/ends": "crash/exit 0",
    "conv/names": "mismatch/other",
    "conv/raises": "runtime/NameError",
}
#: Tasks whose own Model fails.
FAILING = {
    "raises": ("x.no_such_method()", "torch.randn(4)"),
    "unstable": ("x + torch.randn(4, generator=GENERATOR)", "torch.randn(4)"),
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def task(forward: str, inputs: str) -> str:
    model = f"class Model(nn.Module):\n    def forward(self, x):\n        return {forward}\n"
    return f"{HEAD}GENERATOR = torch.Generator()\n{model}def get_inputs(): return [{inputs}]\n"


def read(path: Path) -> Mapping[str, str]:
    with path.open(newline="") as file:
        [row] = csv.DictReader(file)
    return row


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of the tasks' own models and of their candidates."""
    folder = tmp_path_factory.mktemp("judged")
    for name, (forward, inputs) in {**TASKS, **FAILING}.items():
        mark = "\ufeff" if name == "spectrum" else ""
        write(folder / "set" / f"{name}.py", mark + task(forward, inputs).replace("\n", "\r\n" if mark else "\n"))
    write(folder / "set" / "conv.py", HEAD + CONV)
    for name, text in CANDIDATES.items():
        write(folder / "mine" / f"{name}.py", text)
    options = ["--tasks", str(folder / "set"), "--database-path", str(folder / "db"), "--repeat-count=2"]
    options += ["--implementation", f"torch,{folder / 'mine'}", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "bench/", *options], cwd=ROOT, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    return folder / "db"


@pytest.mark.parametrize("name", TASKS)
def test_the_model_of_a_task_passes(judged: Path, name: str) -> None:
    cells = read(judged / f"set.{name}.csv")
    assert cells[STATUS] == Status.MEASURED, cells[STATUS_REASON]
    assert float(cells[MICROBENCH_MEDIAN]) > 0


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_gets_its_verdict(judged: Path, name: str) -> None:
    of_task, _, candidate = name.partition("/")
    [path] = (judged / "implementations").glob(f"mine-{candidate}-*/set.{of_task}.csv")
    cells = read(path)
    assert cells[ERROR_CLASS] == VERDICTS[name], cells[STATUS_REASON]
    # Its weights explain the verdict of a right kernel.
    assert ("weights" in cells[STATUS_REASON]) == (of_task == "conv")


@pytest.mark.parametrize("name", FAILING)
def test_a_task_whose_own_model_fails_fails_the_session(judged: Path, name: str) -> None:
    """Its candidates are not to blame."""
    cells = read(judged / f"set.{name}.csv")
    assert cells[STATUS] == Status.FAILED
    assert any(word in cells[STATUS_REASON] for word in ("own Model", "reference itself"))
