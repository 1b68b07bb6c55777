"""Which database a name or a folder stands for: the newest default database of a device."""

from __future__ import annotations

from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.model.location import ROOT, implementation_of, list_databases, parse_path
from opatlas.model.versions import version_key
from opatlas.text import suggest


def database_folder(place: Path | str) -> Path:
    """Returns the folder of a database: the named folder, or the newest default database of a named device.

    A device is named by its name, or by the folder that has its databases. Raises OpAtlasError.
    """
    folder = Path(place)
    if isinstance(place, Path) or folder.is_dir():
        below = (
            [] if next(folder.glob("[!.]*.csv"), None) else [path for path in folder.glob("*/*") if _is_default(path)]
        )
        return max(below, key=newness, default=folder)
    devices = _default_databases()
    if place not in devices:
        meant = suggest(place, devices) or (f" ({', '.join(devices)})" if devices else f": there are none below {ROOT}")
        raise OpAtlasError(
            f"{place}: neither a folder nor a device with a database{meant}: name a folder, such as that of a device "
            f"in database/data of a checkout of OpAtlas"
        )
    return max(devices[place], key=newness)


def named_folder(text: str) -> Path:
    """Returns the folder that a command's argument names: as `database_folder` for a device, else the path itself."""
    path = Path(text)
    return path if path.exists() else max(_default_databases().get(text, [path]), key=newness)


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
