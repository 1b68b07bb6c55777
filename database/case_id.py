"""The id of a row as a case: how pytest shows a row, and how a user names one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from database.communication import is_communication
from database.errors import OpAtlasError
from database.signature import digest

#: Readable part of an id: enough for the shapes of most kernels, short enough for one line.
_READABLE = 72
_SEPARATORS = str.maketrans({",": "x", ";": "_"})
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.x+-]+")


def case_id_of(kernel_type: str, signature: str, row_digest: str = "") -> str:
    """`MatMulV2-4096x4096_4096x1024-BF16_BF16-4096x1024-1f0c9a72b3de`: readable, then unique.

    Of a collective, `hcom_allReduce_-1048576-BF16-16-tier1-0c9a72b3de1f`.
    """
    if is_communication(kernel_type):
        message_bytes, devices, dtype, tier = signature.split("|")
        readable = f"{message_bytes}-{dtype}-{devices}-tier{tier}"
    else:
        inputs, dtypes, _formats, outputs = signature.split("|")[:4]
        readable = f"{inputs}-{dtypes}-{outputs}".translate(_SEPARATORS)
    return f"{kernel_type}-{_NOT_IN_IDS.sub('', readable)[:_READABLE]}-{row_digest or digest(kernel_type, signature)}"


def case_id_in(nodeid: str) -> str:
    """The id of the row in a node id: what stands in its last brackets."""
    return nodeid.rpartition("[")[2].removesuffix("]")


@dataclass(frozen=True)
class RowChoice:
    """The rows that a user names on a command line.

    Attributes:
        names: each a kernel type, an id, a node id of pytest, the digest at the end of an id, or a part of ids in
            upper or lower case; empty: all rows.
    """

    names: Sequence[str] = ()

    def holds(self, kernel_type: str, signature: str) -> bool:
        """Whether one of the names is that of a row."""
        case_id = case_id_of(kernel_type, signature)
        return not self.names or any(_is_name(name, kernel_type, case_id) for name in self.names)

    def expect(self, found: int, where: str) -> None:
        """Raises OpAtlasError if no row was found in `where` by the names."""
        if self.names and not found:
            raise OpAtlasError(
                f"no row of {where} has the name {' or '.join(self.names)}: name a kernel type, or a part of an id as "
                f"`pytest bench/ --collect-only -q` shows them"
            )


def _is_name(name: str, kernel_type: str, case_id: str) -> bool:
    if name == kernel_type:
        return True
    # A node id has the case in its last brackets.
    wanted = case_id_in(name) if "[" in name else name
    return wanted.lower() in case_id.lower()
