"""The implementations that a session can measure: those that ship with OpAtlas, and those in a user's folder."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.row.location import implementation_label, public_version
from opatlas.run.implementations.directory import Finder, Marks, read_directory, read_marks
from opatlas.run.implementations.implementation import (
    TORCH,
    Implementation,
    KernelSource,
    default_devices,
    default_name,
)
from opatlas.text import suggest

PACKAGE = "opatlas.bench.implementations"
#: Every shipped implementation that is installed and runs on the device.
ALL = "all"
_WRAP = "wrap"
_ABOUT_DEFAULT = "the calls that the replays name"


def default_implementation(kind: str) -> Implementation:
    """Returns what is measured on devices of a kind without --implementation."""
    return Implementation(default_name(kind), about=_ABOUT_DEFAULT)


@cache
def shipped() -> Mapping[str, Implementation]:
    """Returns the implementations that ship with OpAtlas, without the defaults, by name."""
    found: dict[str, Implementation] = {}
    for info in pkgutil.iter_modules(import_module(PACKAGE).__path__):
        # As in a user's folder, a name with an underscore is a helper.
        if info.name != TORCH and not info.name.startswith("_"):
            module = f"{PACKAGE}.{info.name}"
            found[info.name] = _of_modules(info.name, _modules(module, info.ispkg))
    return found


def every_implementation() -> list[Implementation]:
    """Returns what is measured without --implementation on each kind of device, with its version, and all shipped."""
    defaults = []
    for name, kinds in default_devices().items():
        version, missing = installed((name,))
        defaults.append(Implementation(name, version, _ABOUT_DEFAULT, devices=kinds, missing=missing))
    return [*defaults, *shipped().values()]


def named_implementations(name: str) -> list[Implementation]:
    """Returns the implementation of a name, or those in a user's folder or file, on whatever device they run.

    Raises:
        OpAtlasError: there is no such name, folder or file, or the folder is unusable.
    """
    known = {each.name: each for each in every_implementation()}
    if name in known:
        return [known[name]]
    if Path(name).exists():
        return _read_own(name)
    raise OpAtlasError(_unknown(name, known))


def find_implementations(names: Sequence[str], kind: str, find: Finder | None = None) -> list[Implementation]:
    """Returns the implementations that a user names, in this order, each once.

    Args:
        names: names, folders and files of a user, or "all"; empty: the default of the device.
        kind: the kind of the device.
        find: finds the kernels in folders and files of a user; None: those of kernel types.

    Raises:
        OpAtlasError: a name is unknown, an implementation does not run on the device, or a folder is unusable.
    """
    found: dict[str, Implementation] = {}
    named = [each for name in names for each in _named(name, kind, find)]
    for implementation in named or [default_implementation(kind)]:
        other = found.setdefault(implementation.name, implementation)
        if other != implementation:
            raise OpAtlasError(f"--implementation: two of them are called {other.name}: rename a folder")
    return list(found.values())


def _named(name: str, kind: str, find: Finder | None) -> Iterable[Implementation]:
    default = default_implementation(kind)
    if name == default.name:
        return [default]
    if name == ALL:
        fitting = (each for each in shipped().values() if _fits(each, kind))
        return [default, *(each for each in fitting if not each.missing)]
    if name in shipped():
        chosen = shipped()[name]
        if not _fits(chosen, kind):
            kinds = ", ".join(chosen.devices)
            raise OpAtlasError(f"--implementation {name}: it runs on devices of kind {kinds}, and the device is {kind}")
        return [chosen]
    if Path(name).exists():
        return _read_own(name, find)
    raise OpAtlasError(f"--implementation {_unknown(name, [default.name, *shipped(), ALL])}")


def _read_own(place: str, find: Finder | None = None) -> list[Implementation]:
    """Reads a user's folder or file. Raises OpAtlasError, also where its name is that of another implementation."""
    found = read_directory(Path(place), find)
    taken = {ALL, *default_devices(), *shipped()}
    for each in found:
        if each.name in taken:
            raise OpAtlasError(f"{place}: {each.name} is the name of another implementation: rename the folder or file")
    return found


def _unknown(name: str, known: Iterable[str]) -> str:
    known = list(known)
    folder = Path(name).parent
    beside = [str(folder / each.name) for each in folder.glob("[!._]*")] if folder.is_dir() else []
    meant = suggest(name, [*known, *beside], least=0.6) or f" ({', '.join(known)})"
    return f"{name}: there is no such implementation, folder or file{meant}"


def _fits(implementation: Implementation, kind: str) -> bool:
    return not implementation.devices or kind in implementation.devices


def _modules(module: str, is_package: bool) -> list[tuple[str, Path]]:
    """Returns the dotted names and the files of a module, or of a package and the modules in it."""
    folder = Path(import_module(PACKAGE).__path__[0], module.rpartition(".")[2])
    if not is_package:
        return [(module, folder.with_suffix(".py"))]
    files = sorted(folder.glob("*.py"))
    return [(module if path.stem == "__init__" else f"{module}.{path.stem}", path) for path in files]


def _of_modules(name: str, modules: Sequence[tuple[str, Path]]) -> Implementation:
    marks = [(module, read_marks(path)) for module, path in modules]
    distributions = tuple(each for _, own in marks for each in own.distributions)
    version, missing = installed(distributions)
    label = implementation_label(name, version)
    sources: dict[str, KernelSource] = {}
    wrap: KernelSource | None = None
    for module, own in marks:
        for kernel_type, function in own.functions.items():
            _expect_one(name, kernel_type, own, sources)
            sources[kernel_type] = KernelSource(label, module, str(own.path), function)
        if own.wraps:
            wrap = KernelSource(label, module, str(own.path), _WRAP, wraps=True)
    devices = tuple(dict.fromkeys(kind for _, own in marks for kind in own.devices))
    about = next((own.about for _, own in marks if own.about), "")
    return Implementation(name, version, about, sources, wrap, devices, missing)


def _expect_one(name: str, kernel_type: str, marks: Marks, sources: Mapping[str, KernelSource]) -> None:
    if kernel_type in sources:
        raise OpAtlasError(f"{marks.path}: {kernel_type} of {name} is marked in {sources[kernel_type].path} too")


def installed(distributions: Sequence[str]) -> tuple[str, str]:
    """Returns the version of the first distribution, and why the implementation cannot run; "" if it can."""
    versions: list[str] = []
    for distribution in distributions:
        try:
            versions.append(public_version(metadata.version(distribution)))
        except metadata.PackageNotFoundError:
            return "", f"not installed (pip install {distribution})"
    return (versions[0] if versions else ""), ""
