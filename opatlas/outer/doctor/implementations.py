"""Probes of implementations: whether a library imports, and whether it can compile its kernels at their first use.

Each runs in a process of its own, since a library may end its process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from opatlas.outer.doctor.probe import Target, Verdict, failed, passed, skipped
from opatlas.outer.doctor.surroundings import existing_folder
from opatlas.run.implementations.catalog import shipped


@dataclass(frozen=True)
class _Compiler:
    """The programs with which a library compiles, one of each group, and the folder of its compiled kernels.

    Attributes:
        programs: groups of programs that replace each other.
        variable: the environment variable that names the folder.
        folder: the folder without the variable.
    """

    programs: tuple[tuple[str, ...], ...]
    variable: str
    folder: Path


_C = ("cc", "gcc", "clang")
_TEMPORARY = Path(tempfile.gettempdir())
_TRITON = _Compiler((_C,), "TRITON_CACHE_DIR", Path("~/.triton"))
#: By implementation; vLLM and sgl_kernel are installed compiled.
_COMPILERS = {
    "flag_gems": _Compiler((_C,), "FLAGGEMS_CACHE_DIR", _TEMPORARY),
    "flashinfer": _Compiler((("nvcc",), ("ninja",)), "FLASHINFER_WORKSPACE_BASE", Path("~/.cache")),
    "liger": _TRITON,
    "torch_compile": _Compiler((("c++", "g++", "clang++"),), "TORCHINDUCTOR_CACHE_DIR", _TEMPORARY),
}


def library(target: Target, name: str) -> Verdict:
    """Imports an implementation, and looks for what it compiles with."""
    implementation = shipped()[name]
    if implementation.missing:
        return skipped(implementation.missing)
    if target.kind and implementation.devices and target.kind not in implementation.devices:
        return skipped(f"{implementation.version}, only for {', '.join(implementation.devices)}")
    sources = [*implementation.sources.values(), *([implementation.wrap] if implementation.wrap else [])]
    for module in dict.fromkeys(source.module for source in sources):
        import_module(module)
    # After the import, which may set the variable.
    if (compiler := _COMPILERS.get(name)) is None:
        return passed(implementation.version)
    lacking = [" or ".join(group) for group in compiler.programs if not any(map(_find, group))]
    if lacking:
        wanted = " and ".join(lacking)
        return failed(f"{implementation.version}, no {wanted} to compile kernels", f"put {wanted} on PATH")
    folder = Path(os.environ.get(compiler.variable) or compiler.folder).expanduser()
    if not os.access(existing_folder(folder), os.W_OK):
        found = f"{implementation.version}, {folder} of its compiled kernels cannot be written"
        return failed(found, f"set {compiler.variable} to another folder")
    found = ", ".join(next(name for name in group if _find(name)) for group in compiler.programs)
    return passed(f"{implementation.version}, {found}, kernels in {folder}", folder=str(folder))


def _find(program: str) -> str | None:
    """Returns the path of a program on PATH, or of nvcc in the toolkit that CUDA_HOME names."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    return shutil.which(program) or shutil.which(program, path=str(toolkit))
