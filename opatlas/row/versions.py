"""The kinds of devices, and the versions of the software that names their databases, detected without importing torch.

Each file in opatlas/run/devices/ that has a `KIND` declares a kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Component:
    """A piece of software.

    Attributes:
        field: the field in `Versions`, and the prefix of the version in folder names.
        name: the name for users.
        example: an example version for --versions; "" if --versions does not take this software.
    """

    field: str
    name: str
    example: str = ""


VLLM = Component("vllm", "vllm-ascend", "0.18.0")
TORCH = Component("torch", "torch", "2.9.0")
CANN = Component("cann", "CANN", "8.5")
CUDA = Component("cuda", "CUDA (of torch)")
NCCL = Component("nccl", "NCCL")
#: By their field.
COMPONENTS = {component.field: component for component in (VLLM, TORCH, CANN, CUDA, NCCL)}


#: Folders of a toolkit with a version.info: the toolkit itself first, folders of newer releases last.
_COMPONENTS = ("", "compiler", "runtime", "share/info/compiler", "share/info/runtime")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.\-_]?(alpha|beta|dev|rc|a|b)[.\-_]?(\d+(?:\.\d+)*)?)?")


@dataclass(frozen=True)
class Versions:
    """Versions as the software states them; None if it is not installed, or does not state a version.

    Attributes:
        vllm: vllm-ascend.
        torch: torch, with the local suffix (`2.9.0+cpu`).
        cann: the CANN toolkit.
        cuda: the CUDA toolkit that torch was built with; None for a CPU build.
        nccl: the NCCL package that the wheel of torch depends on; None if NCCL is built in, or comes from elsewhere.
    """

    vllm: str | None = None
    torch: str | None = None
    cann: str | None = None
    cuda: str | None = None
    nccl: str | None = None


def versions_option(versions: Mapping[Component, str] | Iterable[Component]) -> str:
    """Returns the option --versions for some software, with its versions, or with V as a placeholder."""
    values = versions if isinstance(versions, Mapping) else dict.fromkeys(versions, "V")
    return f"--versions {','.join(f'{component.field}={version}' for component, version in values.items())}"


def detect(given: Versions | None = None) -> Versions:
    """Returns the versions of the installed software; `given` versions take precedence."""
    given = given or Versions()
    return Versions(
        vllm=given.vllm or package_version("vllm-ascend"),
        torch=given.torch or _torch_version(),
        cann=given.cann or cann_version(),
        cuda=given.cuda or cuda_version(),
        nccl=nccl_version(),
    )


def version_key(version: str) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
    """Returns a sort key: 10.0 follows 8.5, 8.5 equals 8.5.0, and both follow the candidate 8.5.0.RC1.

    Returns:
        The numbers without trailing zeros; whether the version is a release; the number of the candidate.
    """
    found = _VERSION.match(version.strip().lower())
    if found is None:
        return (), False, ()
    numbers, candidate, which = found.groups()
    return _numbers(re.sub(r"(\.0+)+$", "", numbers)), candidate is None, _numbers(which if candidate else "")


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text or "")))


def same_release(one: str, other: str) -> bool:
    """Returns whether two versions have the same first two numbers, such as 8.3, 8.3.RC1 and 8.3.0.1.200."""
    return _release(one) == _release(other)


def _release(version: str) -> tuple[int, ...]:
    numbers, _, _ = version_key(version)
    return (*numbers, 0, 0)[:2]


def cann_version(environment: Mapping[str, str] = os.environ, root: Path = Path("/usr/local/Ascend")) -> str | None:
    """Returns the version of the CANN toolkit from the files of its installer; None if there are none.

    A toolkit that the environment names comes first. `*_install.info` states the version of the toolkit. The
    version.info of a component (compiler, runtime) states the version of the component, which differs (7.6.0.1.220 in
    CANN 8.0.0); newer toolkits add their own version as `version_dir`.

    Args:
        environment: variables; ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME may name the toolkit.
        root: the usual folder of the toolkit.
    """
    named = [Path(environment[name]) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environment.get(name)]
    # Not every file below `root`: root/driver/version.info states the version of the driver.
    usual = [root / "ascend-toolkit" / "latest", root / "cann", root / "latest", root]
    return _toolkit_version(named) or _toolkit_version(usual)


def _toolkit_version(homes: Sequence[Path]) -> str | None:
    directories = [directory for home in homes for directory in (home, *sorted(home.glob("*-linux")))]
    files = (path for directory in directories for path in sorted(directory.glob("*_install.info")))
    # Files of other packages than the toolkit (kernels, NNAL) come last.
    installed = sorted(files, key=lambda path: "toolkit" not in path.name)
    components = [directory / part / "version.info" for directory in directories for part in _COMPONENTS]
    stated = (_first_version(paths, key) for paths in (installed, components) for key in ("version_dir", "version"))
    return next((version for version in stated if version), None)


def _first_version(paths: Iterable[Path], key: str) -> str | None:
    """Returns the version that the first file with the key states; None if no file has the key."""
    line = re.compile(rf"^\s*{key}\s*[=:]\s*\[?(?:cann-)?(\d[\w.+-]*)", re.MULTILINE | re.IGNORECASE)
    for path in paths:
        try:
            found = line.search(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:  # The file is missing or unreadable; the next file may be readable.
            continue
        if found:
            return found[1]
    return None


def _torch_version() -> str | None:
    version = package_version("torch")
    if version is None:
        # A torch that was built in place has no metadata. torch_npu has the same version number.
        version = package_version("torch_npu")
        numbers = re.match(r"\d+\.\d+\.\d+", version or "")
        return numbers[0] if numbers else None
    return version


def cuda_version() -> str | None:
    """Returns the version of CUDA that the installed torch was built with; None for a CPU build, or without torch."""
    from importlib import metadata

    # Reads the file instead of importing torch.
    try:
        text = Path(str(metadata.distribution("torch").locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, OSError):  # no torch, or torch in an archive
        return None
    version = re.search(r"""^cuda\b[^=\n]*=\s*["']([\d.]+)["']""", text, flags=re.MULTILINE)
    return version[1] if version else None


def nccl_version() -> str | None:
    """Returns the version of the NCCL package of torch; None if NCCL is built in, or comes from elsewhere."""
    major = (cuda_version() or "").partition(".")[0]
    return package_version(f"nvidia-nccl-cu{major}") if major else None


def package_version(package: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    # It takes 20 ms to import, which commands that ask for no version do without.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


_PLACE = "opatlas.run.devices"
#: A version in the name of a folder.
FIELD = re.compile(r"\{(\w+)\}")


class Kind:
    """A kind of device; its subclass sets what differs from a CPU. Names of folders have `{field}` of `Versions`.

    Attributes:
        name: torch's name of the type of device, or that of a user's own devices.
        rank: which kind a session takes by default: of those that are present, the one with the highest rank.
        device_names: what the names of such devices begin with; None: what no other kind has.
        is_native: whether kernel types are kernels of this kind. Elsewhere functions of torch take their place.
        stack: the folder of compute databases.
        software: the name of a folder of tasks, of a suite, and after its own version of an implementation.
        compute: the name of a folder of `stack`; "" for `software`.
        library: the library of collectives, and the folder of its databases.
        library_version: the name of a folder of `library`.
        implementation: what is measured without --implementation.
        assumed_s_a_row: the time of a row in seconds, where no run of a database shows its pace.
    """

    name = ""
    rank = 0
    device_names: re.Pattern[str] | None = None
    is_native = False
    stack = "torch"
    software = "torch{torch}_cpu"
    compute = ""
    library = "gloo"
    library_version = "{torch}"
    implementation = "torch"
    assumed_s_a_row = 1.0

    def __init__(self, name: str = "") -> None:
        self.name = name or self.name

    @property
    def named_by(self) -> Sequence[Component]:
        """The software whose versions name a compute database."""
        return components(self.compute or self.software)

    @property
    def tasks_named_by(self) -> Sequence[Component]:
        """The software whose versions name a database of tasks, which does not run vllm-ascend."""
        return components(self.software)

    @property
    def communication_named_by(self) -> Component:
        """The software whose version names a communication database."""
        return components(self.library_version)[0]


def components(template: str) -> Sequence[Component]:
    """Returns the software whose versions a name of a folder has, in their order."""
    return [COMPONENTS[name] for name in FIELD.findall(template)]


def parse_name(template: str, name: str) -> Mapping[str, str] | None:
    """Returns the versions in the name of a folder, by the name of the software; None for another name.

    A suffix separates databases of a machine (`torch2.11.0_cuda13.0_warm`).
    """
    found = _pattern(template).fullmatch(name)
    return found and {COMPONENTS[name].name: version for name, version in found.groupdict().items()}


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(FIELD.sub(r"(?P<\1>[^_]+)", template) + "(?:_.*)?")


@cache
def kinds() -> Mapping[str, Kind]:
    """Returns the kinds of devices by name, those that a session prefers first. Imports no torch."""
    files = (path for folder in import_module(_PLACE).__path__ for path in sorted(Path(folder).glob("*.py")))
    # The other files there take longer to import than a query to answer.
    names = [path.stem for path in files if b"\nKIND = " in path.read_bytes()]
    found: list[Kind] = [import_module(f"{_PLACE}.{name}").KIND for name in names]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: -kind.rank)}


def kind_of(device: str) -> Kind:
    """Returns the kind of a device by its name: a kind whose names begin so, or else that of a CPU."""
    named = (kind for kind in kinds().values() if kind.device_names and kind.device_names.match(device))
    return next(named, None) or next(kind for kind in kinds().values() if kind.device_names is None)


def native_kind() -> Kind:
    """Returns the kind of device whose kernels the kernel types are."""
    return next(kind for kind in kinds().values() if kind.is_native)
