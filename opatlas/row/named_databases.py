"""The database that a name or a folder means: the newest default database of a device."""

from __future__ import annotations

from pathlib import Path

from opatlas.files import expect_folder
from opatlas.row.location import ROOT, implementation_of, list_databases, parse_path
from opatlas.row.versions import version_key
from opatlas.text import suggest


def database_folder(place: Path | str) -> Path:
    """Returns the folder that `named_folder` does. Raises UsageError if a text names neither a folder nor a device."""
    folder = named_folder(place)
    if isinstance(place, str):
        expect_database(folder)
    return folder


def named_folder(place: Path | str) -> Path:
    """Returns the folder that a name means: of a device, that of its newest default database; else the path.

    A device is named by its name, or by the folder that has its databases.
    """
    folder = Path(place)
    if folder.is_dir() and not next(folder.glob("[!.]*.csv"), None):
        found = [path for path in folder.glob("*/*") if _is_default(path)]
    else:
        found = [] if folder.exists() or isinstance(place, Path) else _default_databases().get(place, [])
    return max(found, key=newness, default=folder)


def expect_database(folder: Path) -> None:
    """Checks that a folder exists. Raises UsageError, which names the device that was meant."""
    remedy = "" if folder.exists() else f"name the folder of a database, or a device{meant_device(folder)}"
    expect_folder(folder, remedy)


def meant_device(folder: Path) -> str:
    """Returns the text after "a device" in an error about a missing folder: the devices that may have been meant."""
    devices = _default_databases()
    none = f" with a database below {ROOT}, which has none; a checkout of OpAtlas has some in database/data"
    return suggest(folder.name, devices) or (f" ({', '.join(devices)})" if devices else none)


def _default_databases() -> dict[str, list[Path]]:
    """Returns the default databases by the name of their device."""
    devices: dict[str, list[Path]] = {}
    for path in filter(_is_default, list_databases()):
        devices.setdefault(path.parts[-3], []).append(path)
    return devices


def _is_default(path: Path) -> bool:
    """Whether a folder is a compute database of a device, and not that of another implementation."""
    return parse_path(path) is not None and not implementation_of(path)[0] and bool(next(path.glob("[!.h]*.csv"), None))


def newness(path: Path) -> tuple[object, ...]:
    """Sorts databases of a device: newer versions later, and of equal ones that without a suffix last."""
    parsed = parse_path(path)
    versions = () if parsed is None else tuple(version_key(version) for version in parsed[1].values())
    return versions, -len(path.name), path.name
