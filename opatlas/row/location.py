"""The folder of a database: `{root}/{device}/{stack}/{version_dir}`.

The root is `database/data` of a checkout; for a wheel it is `opatlas/database` in the user's data folder. The
databases in the wheel are read beside those of the user, which come first.

{device}/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5    NPU compute
{device}/hccl/v8.5                                    NPU communication
{device}/torch/torch2.9.0_cuda12.8, torch2.9.0_cpu    CUDA and CPU compute
{device}/nccl|gloo/{version}                          CUDA and CPU communication
{device}/tasks/torch2.11.0_cuda13.0, torch2.9.0_cann8.5    tasks; those of candidates lie in `implementations/` there
{device}/suite_opinfo/torch2.11.0_cuda13.0            suites of operators, likewise
{device}/flashinfer/flashinfer0.5.3_torch2.11.0_cuda13.0   an implementation other than the default
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import expect_folder, read_file
from opatlas.installation import SHIPPED_DATABASES, databases_root
from opatlas.row.versions import (
    CANN,
    FIELD,
    TORCH,
    Component,
    Versions,
    components,
    kind_of,
    kinds,
    native_kind,
    parse_name,
    same_release,
    version_key,
    versions_option,
)
from opatlas.text import shortened, suggest

#: A device, and the versions by the name of the software.
ParsedPath = tuple[str, Mapping[str, str]]

ROOT = databases_root()

DEFAULT_NPU_DEVICE = "ATLAS_800_A3_752T_128G_DIE"
NPU_DEVICES = (
    "ATLAS_800_A2_376T_64G",
    "ATLAS_800_A2_313T_64G",
    "ATLAS_800_A2_280T_64G",
    "ATLAS_800_A2_280T_64G_PCIE",
    "ATLAS_800_A2_280T_32G_PCIE",
    DEFAULT_NPU_DEVICE,
    "ATLAS_800_A3_560T_128G_DIE",
)

#: The device of captures that do not name a device.
UNNAMED_NPU = "an unnamed NPU"

#: The file of a database that ships with OpAtlas; its text names the machine of its measurements.
SHIPPED = "SHIPPED.txt"
_LARGEST_MARKER_BYTES = 1 << 20
_LONGEST_MARKER = 300

_TASKS = "tasks"
_SUITE = "suite_"
#: The folder of a base that --database-path names, for the databases of implementations: `{name}-{version}`.
IMPLEMENTATIONS = "implementations"
_DIRECTORY_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)


def device_kind(device: str) -> str:
    """Returns the name of the kind of a device by its name. A name that no kind knows is a CPU."""
    return kind_of(device).name


def expect_npu(device: str) -> None:
    """Checks that a name is an NPU: a known Atlas, a chip (`Ascend910B3`), or an NPU that has a folder already.

    Raises:
        OpAtlasError: the name is not an NPU; the message suggests a similar name.
    """
    if device in NPU_DEVICES or is_chip(device) or (kind_of(device).is_native and (ROOT / device).is_dir()):
        return
    meant = suggest(device, NPU_DEVICES) or f" ({DEFAULT_NPU_DEVICE}, ...)"
    raise OpAtlasError(f"--device {device}: not an NPU{meant}: name an NPU, or the folder with --database-path")


def is_product(device: str) -> bool:
    """Returns whether a name is a product with NPUs (`ATLAS_800_A3_752T_128G_DIE`) rather than a chip."""
    return device.upper().startswith("ATLAS_")


def is_chip(device: str) -> bool:
    """Returns whether a name is the chip of an NPU (`Ascend910B3`) rather than the product with the chip."""
    return device.lower().startswith("ascend") and device.lower() != "ascend"


def parse_path(path: Path) -> ParsedPath | None:
    """Returns the device and the versions that the path of a database names.

    Returns:
        None unless the path has the form of `default_path` or `communication_path`, under any root.
    """
    *_, device, library, version = ("", "", "", *path.resolve().parts)
    for kind in kinds().values():
        if library == kind.library:
            number = version.removeprefix(kind.library_version.partition("{")[0])
            return (device, {kind.communication_named_by.name: number}) if number[:1].isdigit() else None
    if _is_of_torch(library):
        return _named(device, version, [kind.software for kind in kinds().values()])
    of_stack = [kind.compute or kind.software for kind in kinds().values() if kind.stack == library]
    return _named(device, version, of_stack) if of_stack else _implementation_place(device, library, version)


def _named(device: str, folder: str, templates: Iterable[str]) -> ParsedPath | None:
    """Returns the device and the versions in the name of a folder; None where no template has the name."""
    return next(((device, found) for each in templates if (found := parse_name(each, folder)) is not None), None)


def communication_library(path: Path) -> str:
    """Returns the library and the version that the path of a communication database names; "" for another path."""
    library, version = path.resolve().parts[-2:]
    return f"{library} {version}" if library in _libraries() else ""


def _libraries() -> set[str]:
    """Returns the libraries of collectives."""
    return {kind.library for kind in kinds().values()}


def _implementation_place(device: str, name: str, folder: str) -> ParsedPath | None:
    version, _, software = folder.removeprefix(name).partition("_")
    found = _named(device, software, [kind.software for kind in kinds().values()])
    return (device, {name: version, **found[1]}) if found and version and folder.startswith(name) else None


def implementation_label(name: str, version: str) -> str:
    """Returns an implementation as rows and manifests name it: `flashinfer 0.5.3`; the name alone without a version."""
    return f"{name} {version}".rstrip()


def parse_implementation(label: str) -> tuple[str, str]:
    """Returns the name and the version in a text by `implementation_label`; "" for missing parts."""
    name, _, version = label.strip().partition(" ")
    return name, version


def default_database_of(path: Path) -> Path | None:
    """Returns the database of a device's default whose `implementations/` holds a database; None if none does."""
    return path.parents[1] if path.parent.name == IMPLEMENTATIONS else None


def implementation_of(path: Path) -> tuple[str, str]:
    """Returns the name and the version of the implementation that the path of a database names.

    Returns:
        ("", "") for the default of a device, and for a path that names none.
    """
    folder = path.resolve()
    name, dash, version = folder.name.rpartition("-")
    if folder.parent.name == IMPLEMENTATIONS and dash:
        return name, version
    place = parse_path(path)
    library = folder.parent.name
    return (library, place[1][library]) if place is not None and library in set(place[1]) - {TORCH.name} else ("", "")


def list_databases(root: Path | None = None) -> list[Path]:
    """Returns the folders whose paths have the form `{device}/{stack}/{versions}`, sorted.

    Args:
        root: the folder above them (default: that of the user, then that of the wheel).
    """
    roots = (ROOT, SHIPPED_DATABASES) if root is None else (root,)
    found = (path for each in roots for path in sorted(each.glob("*/*/*")))
    return [path for path in found if path.is_dir() and parse_path(path) is not None]


def messages_of_device(database: Path) -> Path | None:
    """Returns the newest communication database of the device that a path names: beside it, or else in the wheel."""
    parsed = parse_path(database)
    for device in (database.parents[1], SHIPPED_DATABASES / parsed[0]) if parsed is not None else ():
        if folders := {path.parent for path in device.glob("*/*/hcom_*.csv")}:
            return max(folders, key=newness)
    return None


def parse_npu_path(path: Path) -> ParsedPath | None:
    """Returns `parse_path` of a compute database of an NPU; None for any other folder."""
    return parse_path(path) if path.resolve().parent.name == native_kind().stack else None


def communication_reference(database: Path, cann: str) -> str:
    """Returns the path from a compute database of an NPU to its messages: `../../hccl/v8.5/`.

    If that folder is missing, another version of the same release is taken (`v8.5.1`).
    """
    name = communication_path(DEFAULT_NPU_DEVICE, cann).name
    folder = database.resolve().parents[1] / native_kind().library
    parsed_paths = [(path, parse_path(path)) for path in folder.glob("*")] if not (folder / name).is_dir() else []
    versions = {
        parsed[1][CANN.name]: path.name for path, parsed in parsed_paths if parsed is not None and path.is_dir()
    }
    others = [version for version in versions if same_release(version, cann)]
    return f"../../{folder.name}/{versions[max(others, key=version_key)] if others else name}/"


def are_of_same_release(one: Path, other: Path) -> bool:
    """Returns whether the paths of two databases name the same device and the same releases of the software."""
    ours, theirs = parse_path(one), parse_path(other)
    if ours is None or theirs is None or ours[0] != theirs[0] or ours[1].keys() != theirs[1].keys():
        return False
    return all(same_release(version, theirs[1][name]) for name, version in ours[1].items())


def default_path(device: str, versions: Versions) -> Path:
    """Returns the path of the compute database of a device and its software.

    Raises:
        OpAtlasError: a version is unknown (the message names its option), or a name cannot be a folder.
    """
    kind = kind_of(device)
    folder = _folder(kind.compute or kind.software, versions)
    return place_of(device, kind.stack, folder)


def _is_of_torch(library: str) -> bool:
    """Returns whether a folder has databases of tasks or of a suite, which the version of torch names."""
    return library == _TASKS or library.startswith(_SUITE)


def beside(database: Path, place: Path) -> Path:
    """Returns where a database that lies at `place` below ROOT lies next to another database.

    Both have one root where the other one lies in the layout of this module. A database elsewhere (`DB`) has the root
    `DB-replays` for those next to it.
    """
    other = database.resolve()
    root = other.parents[2] if parse_path(other) is not None else other.with_name(f"{other.name}-replays")
    return root / place.relative_to(ROOT)


def suite_path(device: str, suite: str, versions: Versions) -> Path:
    """Returns the path of the database of a suite of operators on a device. Raises OpAtlasError as `tasks_path`."""
    return place_of(device, f"{_SUITE}{suite}", _folder(kind_of(device).software, versions))


def tasks_path(device: str, versions: Versions) -> Path:
    """Returns the path of the database of tasks of a device.

    Raises:
        OpAtlasError: a version is unknown (the message names its option), or a name cannot be a folder.
    """
    folder = _folder(kind_of(device).software, versions)
    return place_of(device, _TASKS, folder)


def implementation_path(device: str, name: str, version: str, versions: Versions) -> Path:
    """Returns the path of the database of an implementation on a device.

    Args:
        name, version: the implementation; the name of a stack or of a communication library is refused.

    Raises:
        OpAtlasError: a version is unknown, or a name cannot be a folder.
    """
    if name in {kind.stack for kind in kinds().values()} | _libraries() or _is_of_torch(name):
        raise OpAtlasError(f"an implementation cannot be called {name}, the name of other databases: rename its folder")
    return place_of(device, name, f"{name}{version}_{_folder(kind_of(device).software, versions)}")


def shipped_note(database: Path) -> str:
    """Returns the machine that a shipped database was measured on; "" for any other database. Raises OpAtlasError."""
    path = database / SHIPPED
    if not (path.exists() or path.is_symlink()):
        return ""
    text = read_file(path, _LARGEST_MARKER_BYTES, "remove it")
    line = text.decode("utf-8", errors="replace").strip().partition("\n")[0]
    return shortened(line, _LONGEST_MARKER)


def communication_path(device: str, version: str) -> Path:
    """Returns the path of the communication database of a device.

    Args:
        version: the version of CANN for an NPU, of NCCL for CUDA, of torch (which contains Gloo) for a CPU.

    Raises:
        OpAtlasError: a name cannot be a folder.
    """
    kind = kind_of(device)
    return place_of(device, kind.library, FIELD.sub(lambda found: _written(found[1], version), kind.library_version))


def _folder(template: str, versions: Versions) -> str:
    """Returns the name of a folder of a software stack. Raises OpAtlasError where a version is not known."""
    _require(components(template), versions)
    return FIELD.sub(lambda found: _written(found[1], str(getattr(versions, found[1]))), template)


def _written(field: str, version: str) -> str:
    # The toolkit states three numbers (8.5.0), users write two (8.5).
    return re.sub(r"^(\d+\.\d+)\.0$", r"\1", version) if field == CANN.field else public_version(version)


def slug(name: str) -> str:
    """Returns the name of a device as a folder name: `NVIDIA H100 80GB HBM3` → `NVIDIA_H100_80GB_HBM3`."""
    plain = re.sub(r"\((?:R|TM|C)\)", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z0-9.-]+", "_", plain).strip("_.-")


def cpu_device_name() -> str:
    """Returns the folder name of this machine's CPU; the architecture if the system gives no model name."""
    return slug(_cpu_model() or platform.processor() or platform.machine()) or "cpu"


def public_version(version: str) -> str:
    """Returns a version without the local suffix: `2.9.0+cpu` → `2.9.0`."""
    return version.partition("+")[0]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux
        return ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return model[1].strip() if model else ""


def _require(components: Iterable[Component], versions: Versions) -> None:
    missing = [component for component in components if not getattr(versions, component.field)]
    if missing:
        names = ", ".join(component.name for component in missing)
        known = [component for component in missing if component.example]
        remedy = f"give {versions_option(known)}, or name the folder with --database-path"
        remedy = remedy if known else "name the folder with --database-path"
        raise OpAtlasError(f"the version of {names} could not be detected: {remedy}")


def place_of(*names: str) -> Path:
    """Returns the folder of a device, a stack and a version. Raises OpAtlasError where a name cannot be a folder."""
    for name, part in zip(names, ("device", "name", "version"), strict=True):
        if not _DIRECTORY_NAME.fullmatch(name):
            raise OpAtlasError(f"the {part} {name!r} cannot name a folder: use letters, digits and . _ + - only")
    return ROOT.joinpath(*names)


def database_folder(place: Path | str) -> Path:
    """Returns the folder that `named_folder` does. Raises UsageError if a text names neither a folder nor a device."""
    folder = named_folder(place)
    if isinstance(place, str):
        expect_database(folder)
    return folder


def named_folder(place: Path | str) -> Path:
    """Returns the folder that a name means: of a device, that of its newest default database; else the path.

    A device is named by its name, or by the folder that has its databases. A name that is no path from here is one from
    the root of the databases: of the user's, else of those that ship.
    """
    folders = [Path(place)]
    if isinstance(place, str) and not folders[0].exists():
        folders += [ROOT / place, SHIPPED_DATABASES / place]
    for folder in folders:
        if next(folder.glob("[!.]*.csv"), None):
            return folder
        if found := [path for path in folder.glob("*/*") if _is_default(path)]:
            return max(found, key=newness)
    return folders[0]


def expect_database(folder: Path) -> None:
    """Checks that a folder exists. Raises UsageError, which names the device that was meant."""
    remedy = "" if folder.exists() else f"name the folder of a database, or a device{meant_device(folder)}"
    expect_folder(folder, remedy)


def meant_device(folder: Path) -> str:
    """Returns the text after "a device" in an error about a missing folder: the devices that may have been meant."""
    devices = dict.fromkeys(path.parts[-3] for path in list_databases() if _is_default(path))
    none = f" with a database below {ROOT}, which has none"
    return suggest(folder.name, devices) or (f" ({', '.join(devices)})" if devices else none)


def _is_default(path: Path) -> bool:
    """Whether a folder is a compute database of a device, and not that of another implementation."""
    return parse_path(path) is not None and not implementation_of(path)[0] and bool(next(path.glob("[!.h]*.csv"), None))


def newness(path: Path) -> tuple[object, ...]:
    """Sorts databases of a device: newer versions later, and of equal ones that without a suffix last."""
    parsed = parse_path(path)
    versions = () if parsed is None else tuple(version_key(version) for version in parsed[1].values())
    return versions, -len(path.name), path.name
