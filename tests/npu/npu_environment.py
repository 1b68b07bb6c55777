"""An environment of its own for the real torch_npu, which the tests' environment need not have."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import cann_stubs
import warm_python
from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parents[2]
#: The wheel, and the torch it was built for.
TORCH_NPU = TORCH = "2.13.0"
#: What torch_npu imports, and the code under test.
_IMPORTED = (
    *("numpy", "pandas", "torch._dynamo", "torch._meta_registrations", "torch.distributed.tensor", "torch.export"),
    *("opatlas.outer.doctor.command", "opatlas.run.runner"),
)
#: Slow where the network is; an install of torch itself takes minutes.
_INSTALL_TIMEOUT_S = 900


class Unavailable(Exception):
    """torch_npu cannot be had on this machine, and why."""


def python_with_torch_npu(cache: Path) -> Path:
    """The Python of an environment with torch_npu and stand-ins for CANN, made on first use.

    Where the running Python has the torch that the wheel wants, the environment uses that torch.

    Args:
        cache: the folder that keeps it.

    Raises:
        Unavailable: the machine lacks a requirement.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise Unavailable(f"torch_npu has no wheel for {sys.platform} on {platform.machine()}")
    if absent := [tool for tool in cann_stubs.TOOLS if shutil.which(tool) is None]:
        raise Unavailable(f"the stand-ins for CANN are built with {', '.join(absent)}, not found here")
    home = cache / f"torch_npu-{TORCH_NPU}-{sys.implementation.cache_tag}"
    home.parent.mkdir(parents=True, exist_ok=True)
    # Several workers of pytest-xdist may ask at once.
    with FileLock(f"{home}.lock"):
        _make(home)
    return home / "bin" / "python"


def _make(home: Path) -> None:
    torch_libraries = _torch_libraries_here()
    wanted = "\n".join([sys.base_prefix, str(torch_libraries), Path(cann_stubs.__file__).read_text()])
    stamp = home / "made"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    venv.create(home, clear=True, with_pip=False)
    packages = next(home.glob("lib/python*/site-packages"))
    if torch_libraries is not None:
        (packages / "torch_of_the_tests.pth").write_text(f"{torch_libraries.parents[1]}\n")
    # torch_npu imports PyYAML without requiring it.
    _pip(home, f"torch=={TORCH}", f"torch_npu=={TORCH_NPU}", "pyyaml")
    try:
        cann_stubs.build(packages, torch_libraries or packages / "torch" / "lib")
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{error.cmd[0]} failed: {error.stderr.strip()}") from None
    stamp.write_text(wanted)


def _torch_libraries_here() -> Path | None:
    """The lib folder of the running Python's torch, if that is the one that the wheel wants."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    here = torch.version.partition("+")[0] == TORCH
    return Path(str(torch.locate_file("torch"))) / "lib" if here else None


def _pip(home: Path, *requirements: str) -> None:
    constraints = REPOSITORY / "constraints.txt"
    command = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q", "-c", constraints]
    try:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", *requirements],
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip did not install torch_npu {TORCH_NPU} within {_INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"pip cannot install torch_npu {TORCH_NPU}: {last}")


def run(
    python: Path, *words: str | Path, folder: Path, path: Sequence[Path] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs that Python to its end, as a fork of one that has imported what torch_npu imports.

    Args:
        folder: where it runs; torch_npu's profiler leaves a file there.
        path: go before all packages.
        environment: variables, besides those of this process that do not point to a CANN of this machine.
    """
    warm_python.WARM.setdefault(str(python), _IMPORTED)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND")}
    variables = kept | {"PYTHONPATH": os.pathsep.join(map(str, (*path, REPOSITORY)))} | environment
    return warm_python.run([python, *words], cwd=folder, env=variables)
