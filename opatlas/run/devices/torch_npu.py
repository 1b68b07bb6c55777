"""Imports torch_npu, with an error that names the missing dependency and the remedy.

torch_npu needs torch, CANN's libraries and the driver's libraries. If one is missing or has another version, torch_npu
only passes on the loader's message ("libhccl.so: cannot open ...").
"""

from __future__ import annotations

import os
import re
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

from opatlas.errors import OpAtlasError
from opatlas.row.location import public_version
from opatlas.row.versions import same_release
from opatlas.text import first_line

_ASCEND = Path("/usr/local/Ascend")
_MISSING_LIBRARY = re.compile(r"(lib\w+\.so[.\d]*): cannot open shared object file")
#: Libraries of the driver (/usr/local/Ascend/driver/lib64) and of ATB (nnal/atb). All others belong to CANN.
_DRIVER_LIBRARIES = re.compile(r"lib(ascend_hal|drv\w*|dcmi)\.so")
_ATB_LIBRARIES = re.compile(r"libatb\w*\.so")
_OTHER_SYMBOLS = re.compile(r"undefined symbol|version `[^']*' not found|has no attribute '_npu")


class TorchNpuMissing(OpAtlasError):
    """torch_npu cannot be imported; the message contains the reason and the remedy."""


def import_torch_npu() -> ModuleType:
    """Imports and returns torch_npu, which adds `torch.npu`.

    Raises:
        TorchNpuMissing: torch_npu, CANN or the driver is missing, or torch is another version or a GPU build.
    """
    try:
        return import_module("torch_npu")
    except ModuleNotFoundError as error:
        if error.name == "torch_npu":
            raise TorchNpuMissing(
                f"torch_npu is not installed in this Python: pip install torch_npu=={_torch() or 'VERSION'}, "
                f"the version of torch"
            ) from None
        if error.name is None:
            raise TorchNpuMissing(_import_message(f"{error}")) from error
        raise TorchNpuMissing(
            f"torch_npu needs the package {error.name}, which is not installed: pip install {_distribution(error.name)}"
        ) from None
    except Exception as error:
        raise TorchNpuMissing(_import_message(f"{error}")) from error


def _import_message(text: str) -> str:
    """Returns the message of a failed import in plain words."""
    first = first_line(text)
    torch, torch_npu = _torch(), _version("torch_npu")
    if torch and torch_npu and not same_release(torch, torch_npu):
        return (
            f"torch_npu {torch_npu} does not fit torch {torch} ({first}): pip install torch_npu=={torch}, "
            f"or the version of torch that fits this torch_npu"
        )
    if library := _MISSING_LIBRARY.search(text):
        return _missing_library_message(library[1])
    if _OTHER_SYMBOLS.search(text):
        return (
            f"torch_npu {torch_npu} does not fit the installed CANN ({first}): install a pair of versions that "
            f"torch_npu's release notes list"
        )
    if "Two accelerators" in text:
        return f"torch was built for a GPU, and torch_npu refuses that ({first}): install torch's CPU build"
    return f"torch_npu cannot be imported: {first}"


def _missing_library_message(library: str) -> str:
    if _DRIVER_LIBRARIES.match(library):
        return (
            f"the NPU driver's {library} is not found: install driver and firmware, or, in a container, mount "
            f"{_ASCEND}/driver and add its lib64/driver and lib64/common to LD_LIBRARY_PATH"
        )
    if _ATB_LIBRARIES.match(library):
        return f"{library} is not found: install CANN's NNAL package and run: source {_ASCEND}/nnal/atb/set_env.sh"
    scripts = [path for path in set_env_scripts() if path.is_file()]
    if scripts:
        return f"CANN's {library} is not found, though CANN is installed: run: source {scripts[0]}"
    return (
        f"CANN is missing ({library} is not found): install the CANN toolkit and kernels, and run: "
        f"source {_ASCEND}/ascend-toolkit/set_env.sh"
    )


def set_env_scripts() -> list[Path]:
    """Returns the possible paths of CANN's environment script, the most likely first."""
    homes = [Path(home) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if (home := os.environ.get(name))]
    return [home / "set_env.sh" for home in (*homes, _ASCEND / "ascend-toolkit", _ASCEND / "cann")]


def _torch() -> str:
    return public_version(_version("torch"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _distribution(module: str) -> str:
    """Returns the name of a module's package for pip."""
    return {"yaml": "pyyaml"}.get(module, module)
