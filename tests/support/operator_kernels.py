"""Folders with kernels of torch's operators, in BackendBench's layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import md5
from pathlib import Path

#: Returns as many tensors as torch does, each with one number that no operator computes.
_WATERMARK = """

@implements("{folder}")
def watermark_{number}_{place}(*arguments, **keywords):
    return [torch.full((), {number}.0) for _ in range({count})]
"""


def write_kernels(folder: Path, kernels: Mapping[str, str]) -> Path:
    """Writes `{folder}_implementation_v1.py` for each folder of an operator; NAME is the function."""
    for name, source in kernels.items():
        path = folder / name / f"{name}_implementation_v1.py"
        path.parent.mkdir(parents=True)
        path.write_text(source.replace("NAME", f"{name}_kernel_impl"))
    return folder


def watermark(name: str) -> int:
    """Returns the number of an operator's watermark."""
    return 42 + int(md5(name.encode()).hexdigest()[:8], 16) % 57


def write_watermarks(folder: Path, results: Iterable[tuple[str, int]]) -> Path:
    """Writes a file with a kernel for each operator, by its folder and number of results."""
    kernels = [
        _WATERMARK.format(folder=name, number=watermark(name), place=place, count=count)
        for place, (name, count) in enumerate(results)
    ]
    folder.mkdir(parents=True)
    (folder / "watermarks.py").write_text("import torch\n\nfrom opatlas import implements\n" + "".join(kernels))
    return folder
