"""Kinds of devices as names and folders show them. Each file in opatlas/run/devices/ that has a `KIND` declares one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from opatlas.row.versions import COMPONENTS, Component

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
