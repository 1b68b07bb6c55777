"""Reads op_mapping.yaml, the file by which a simulator such as msmodeling finds the rows of an operator.

The file lies beside the CSVs of a compute database. Under `operator_mappings` each operator of the simulation has the
fields that name its kernel types; other top-level keys are settings of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from database.communication import is_communication
from database.errors import OpAtlasError
from database.safe_paths import read_own
from database.yaml_file import NotYaml, key_lines, parse_yaml

MAPPING = "op_mapping.yaml"
OPERATORS = "operator_mappings"
REFERENCE = "communication_data_ref"
COMMUNICATION = "communication"
_LARGEST_BYTES = 16 << 20


@dataclass(frozen=True)
class MappedOperator:
    """An operator of the simulation.

    Attributes:
        name: `aten.mm.default`.
        line: of the operator in its file.
        fields: as the file has them.
    """

    name: str
    line: int
    fields: Mapping[str, Any]

    @property
    def kernel_type(self) -> str:
        """The kernel type whose rows are asked first; "" where the operator names none."""
        return _text(self.fields.get("kernel_type"))

    @property
    def alternates(self) -> Sequence[str]:
        """Kernel types whose rows are asked next."""
        return _texts(self.fields.get("alternate_kernel_types"))

    @property
    def parts(self) -> Sequence[str]:
        """Kernel types of a composite: the first compute kernel with a row counts, and each message is added."""
        return _texts(self.fields.get("sub_kernels"))

    @property
    def kernel_types(self) -> Sequence[str]:
        """All that the operator names, each once."""
        return tuple(dict.fromkeys(filter(None, (self.kernel_type, *self.alternates, *self.parts))))

    @property
    def is_composite(self) -> bool:
        """Whether the operator is several kernels."""
        return bool(self.fields.get("composite"))

    @property
    def is_free(self) -> bool:
        """Whether the operator counts as 0 us, and no row is asked."""
        return bool(self.fields.get("zero_cost") or self.fields.get("accepted_miss"))

    @property
    def is_communication(self) -> bool:
        """Whether the rows are messages of a collective."""
        return self.fields.get("category") == COMMUNICATION or is_communication(self.kernel_type)


@dataclass(frozen=True)
class OpMapping:
    """The content of a file.

    Attributes:
        operators: in the order of the file.
        malformed: names and lines of operators whose value is no mapping.
        settings: the other top-level keys.
        lines: of the top-level keys.
    """

    operators: Sequence[MappedOperator]
    malformed: Mapping[str, int]
    settings: Mapping[str, Any]
    lines: Mapping[str, int]


def read_mapping(folder: Path) -> OpMapping | None:
    """Reads the mapping of a database; None where there is no file.

    Raises:
        OpAtlasError: the file cannot be read, is not YAML, or has no operators.
    """
    path = folder / MAPPING
    if not path.exists() and not path.is_symlink():
        return None
    try:
        return parse_mapping(read_text(path).encode())
    except NotYaml as error:
        raise _unreadable(path, error) from None


def read_text(path: Path) -> str:
    """Reads the text of a mapping. Raises OpAtlasError."""
    try:
        return read_own(path, _LARGEST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> OpAtlasError:
    return OpAtlasError(
        f"{path} cannot be read ({' '.join(str(error).split())}): repair it, or move it out of the database"
    )


def parse_mapping(text: bytes) -> OpMapping:
    """Raises NotYaml: the text is not YAML, or has no mapping `operator_mappings`."""
    content = parse_yaml(text)
    operators = content.get(OPERATORS) if isinstance(content, dict) else None
    if not isinstance(operators, dict):
        raise NotYaml(f"no mapping {OPERATORS!r}")
    lines = key_lines(text, OPERATORS)
    return OpMapping(
        [
            MappedOperator(str(name), lines.get(str(name), 1), fields)
            for name, fields in operators.items()
            if isinstance(fields, dict)
        ],
        {str(name): lines.get(str(name), 1) for name, fields in operators.items() if not isinstance(fields, dict)},
        {str(name): value for name, value in content.items() if name != OPERATORS},
        key_lines(text),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> Sequence[str]:
    return tuple(filter(None, map(_text, value))) if isinstance(value, list) else ()
