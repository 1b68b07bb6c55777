"""The software that a database belongs to, detected without importing torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Component:
    """A piece of software.

    Attributes:
        field: its field in `Versions`; version directories have it before the version.
        name: its name for users.
        example: a version as --versions takes it; "" where --versions does not take this software.
    """

    field: str
    name: str
    example: str = ""


VLLM = Component("vllm", "vllm-ascend", "0.18.0")
TORCH = Component("torch", "torch", "2.9.0")
CANN = Component("cann", "CANN", "8.5")
CUDA = Component("cuda", "CUDA (of torch)")
NCCL = Component("nccl", "NCCL")


#: Folders of a toolkit that have a version.info; the toolkit's own comes first, and those of newer releases last.
_COMPONENTS = ("", "compiler", "runtime", "share/info/compiler", "share/info/runtime")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.\-_]?(alpha|beta|dev|rc|a|b)[.\-_]?(\d+(?:\.\d+)*)?)?")


@dataclass(frozen=True)
class Versions:
    """Versions as the software states them; None where it is not installed or does not say.

    Attributes:
        vllm: vllm-ascend's.
        torch: with its local suffix, if it has one (`2.9.0+cpu`).
        cann: the toolkit's.
        cuda: of the CUDA toolkit that torch was built with; None for a CPU build.
        nccl: that torch's wheel stands on; None where it is built in, or comes from elsewhere.
    """

    vllm: str | None = None
    torch: str | None = None
    cann: str | None = None
    cuda: str | None = None
    nccl: str | None = None


def versions_option(versions: Mapping[Component, str] | Iterable[Component]) -> str:
    """Returns --versions as it is written for some software: with its versions, or with V in their place."""
    values = versions if isinstance(versions, Mapping) else dict.fromkeys(versions, "V")
    return f"--versions {','.join(f'{component.field}={version}' for component, version in values.items())}"


def detect(given: Versions | None = None) -> Versions:
    """Returns the versions of the installed software; `given` versions of vllm-ascend, torch and CANN replace these."""
    given = given or Versions()
    return Versions(
        vllm=given.vllm or _package_version("vllm-ascend"),
        torch=given.torch or _torch_version(),
        cann=given.cann or cann_version(),
        cuda=cuda_version(),
        nccl=nccl_version(),
    )


def version_key(version: str) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
    """A version, to be compared as numbers: 10.0 is after 8.5, which is 8.5.0, and after its candidate 8.5.0.RC1.

    Its numbers without zeros at the end; whether it is a release; which candidate it is otherwise.
    """
    found = _VERSION.match(version.strip().lower())
    if found is None:
        return (), False, ()
    numbers, candidate, which = found.groups()
    return _numbers(re.sub(r"(\.0+)+$", "", numbers)), candidate is None, _numbers(which if candidate else "")


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text or "")))


def same_release(one: str, other: str) -> bool:
    """Whether two versions have the same first two numbers: 8.3, 8.3.RC1 and 8.3.0.1.200 are of one release."""
    return _release(one) == _release(other)


def _release(version: str) -> tuple[int, ...]:
    numbers, _, _ = version_key(version)
    return (*numbers, 0, 0)[:2]


def cann_version(environment: Mapping[str, str] = os.environ, root: Path = Path("/usr/local/Ascend")) -> str | None:
    """Returns the CANN toolkit's version, from the files that its installer leaves; None where there are none.

    A toolkit that the environment names is asked before any other. Its `*_install.info` states the version of the
    toolkit. The version.info of a component (compiler, runtime) states that of the component, which has numbers of
    its own (7.6.0.1.220 in CANN 8.0.0), and in newer toolkits that of the toolkit, as `version_dir`.

    Args:
        environment: where ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME may name the toolkit.
        root: where it is installed otherwise.
    """
    named = [Path(environment[name]) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environment.get(name)]
    # Not below `root` itself at any depth: root/driver/version.info is the driver's version, not CANN's.
    usual = [root / "ascend-toolkit" / "latest", root / "cann", root / "latest", root]
    return _toolkit_version(named) or _toolkit_version(usual)


def _toolkit_version(homes: Sequence[Path]) -> str | None:
    directories = [directory for home in homes for directory in (home, *sorted(home.glob("*-linux")))]
    files = (path for directory in directories for path in sorted(directory.glob("*_install.info")))
    installed = sorted(files, key=_is_other)
    components = [directory / part / "version.info" for directory in directories for part in _COMPONENTS]
    stated = (_stated(paths, key) for paths in (installed, components) for key in ("version_dir", "version"))
    return next((version for version in stated if version), None)


def _is_other(path: Path) -> bool:
    """Whether a file is that of another package (kernels, NNAL) than the toolkit, which may have another version."""
    return "toolkit" not in path.name


def _stated(paths: Iterable[Path], key: str) -> str | None:
    """The version that the first of some files gives under a key."""
    line = re.compile(rf"^\s*{key}\s*[=:]\s*\[?(?:cann-)?(\d[\w.+-]*)", re.MULTILINE | re.IGNORECASE)
    for path in paths:
        try:
            found = line.search(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:  # not there, or a toolkit of another user; the next file may be readable
            continue
        if found:
            return found[1]
    return None


def _torch_version() -> str | None:
    version = _package_version("torch")
    if version is None:
        # A torch that was built in place has no metadata; torch_npu carries the number of its torch.
        version = _package_version("torch_npu")
        numbers = re.match(r"\d+\.\d+\.\d+", version or "")
        return numbers[0] if numbers else None
    return version


def cuda_version() -> str | None:
    """Of the CUDA toolkit that the installed torch was built with; None for a CPU build, or none."""
    # Reading the file that states it is not importing torch.
    try:
        text = Path(str(metadata.distribution("torch").locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, OSError):  # no torch, or one that is not in a folder
        return None
    version = re.search(r"""^cuda\b[^=\n]*=\s*["']([\d.]+)["']""", text, flags=re.MULTILINE)
    return version[1] if version else None


def nccl_version() -> str | None:
    """Of the NCCL that torch's wheel stands on; None where it is built in, or comes from elsewhere."""
    major = (cuda_version() or "").partition(".")[0]
    return _package_version(f"nvidia-nccl-cu{major}") if major else None


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
