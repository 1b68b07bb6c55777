"""What a library supports: refuses the rows that its kernels cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opatlas.row.errors import Unsupported

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Support:
    """The refusals of one library; `library` is its name in their reasons."""

    library: str

    def expect(self, holds: bool, found: str, supported: str) -> None:
        """Raises Unsupported unless `holds`: `found` is the value of the row, `supported` what the library has."""
        if not holds:
            raise Unsupported(f"{found}: {self.library} has {supported}")

    def expect_dtype(self, supported: Sequence[torch.dtype], **given: torch.Tensor | torch.dtype) -> None:
        """Raises Unsupported for a tensor, or a dtype, by its name in the reason, that is of no supported dtype."""
        for name, value in given.items():
            dtype = getattr(value, "dtype", value)
            own, *others = (str(each).removeprefix("torch.") for each in (dtype, *supported))
            self.expect(dtype in supported, f"{name} in {own}", " or ".join(others))
