"""What an implementation is: its name, its version, and the function of each kernel type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opatlas.row.kind import Kind, kinds
from opatlas.row.location import implementation_label
from opatlas.run.implementations.contract import KernelSource

#: What is measured without --implementation on devices of a user's own kind.
TORCH = Kind.implementation


def default_name(kind: str) -> str:
    """Returns the name of what is measured on devices of a kind without --implementation."""
    return kinds()[kind].implementation if kind in kinds() else TORCH


def default_devices() -> Mapping[str, tuple[str, ...]]:
    """Returns the kinds of devices of each default, apart from a user's own kind."""
    found: dict[str, tuple[str, ...]] = {}
    for name, kind in kinds().items():
        found[kind.implementation] = (*found.get(kind.implementation, ()), name)
    return found


@dataclass(frozen=True)
class Implementation:
    """An implementation of kernel types.

    Attributes:
        name: part of the path of its databases, of case ids, and a value of --implementation.
        version: the version of its library, or a digest of its files; "" for the default and without the library.
        about: what it is, in a line.
        sources: the function of each marked kernel type.
        wrap: the function for kernel types without a mark; None if there is none.
        devices: the kinds of devices on which it runs; () for all.
        missing: why it cannot run here ("not installed (pip install ...)"); "" if it can.
        notes: what the user should know of its files.
        counts_missing: whether rows of kernel types without a function are cases too, with a status that says so.
    """

    name: str
    version: str = ""
    about: str = ""
    sources: Mapping[str, KernelSource] = field(default_factory=dict)
    wrap: KernelSource | None = None
    devices: tuple[str, ...] = ()
    missing: str = ""
    notes: tuple[str, ...] = ()
    counts_missing: bool = False

    @property
    def is_default(self) -> bool:
        """Whether rows are measured so without --implementation: with torch, or on an NPU with its own calls."""
        return self.name in default_devices()

    @property
    def label(self) -> str:
        """The name and the version: `flashinfer 0.5.3`."""
        return implementation_label(self.name, self.version)

    @property
    def suffix(self) -> str:
        """The end of the ids of its cases; "" for the default."""
        return "" if self.is_default else f"-{self.name}"

    def source(self, kernel_type: str) -> KernelSource | None:
        """Returns the function of a kernel type; None if there is none, and for the default."""
        return self.sources.get(kernel_type, self.wrap)

    def implements(self, kernel_type: str) -> bool:
        """Returns whether rows of a kernel type are cases: there is a function, or missing ones count."""
        return self.is_default or self.counts_missing or self.source(kernel_type) is not None
