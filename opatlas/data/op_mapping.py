"""Reads and writes op_mapping.yaml, by which a simulator such as msmodeling finds the rows of an operator.

The file lies next to the CSVs of a compute database. Under `operator_mappings` each operator has fields that name its
kernel types; other top-level keys are settings of the simulator.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.row.communication import is_communication
from opatlas.row.location import communication_reference, newness, parse_npu_path
from opatlas.row.versions import CANN, TORCH, VLLM
from opatlas.yaml_file import YamlError, key_lines, parse_yaml

MAPPING = "op_mapping.yaml"
OPERATORS = "operator_mappings"
REFERENCE = "communication_data_ref"
COMMUNICATION = "communication"
_LARGEST_BYTES = 16 << 20


_Name = Annotated[str, msgspec.Meta(min_length=1)]


class OperatorFields(msgspec.Struct, frozen=True):
    """The fields of an operator that msmodeling reads.

    Attributes:
        kernel_type: the kernel type whose rows are searched first; "" if the operator names none.
        alternate_kernel_types: the kernel types whose rows are searched next.
        sub_kernels: those of a composite: the first compute kernel with a row counts, and all messages are added.
        composite: whether the operator consists of several kernels.
        decomposer: whether code of the simulator says which kernels these are.
        zero_cost, accepted_miss: whether, or why, the operator counts as 0 us, without a row.
        query_mode: how a row is found; "" for the usual way.
        tc_input_count: the number of tensors that are compared with a row; None: all.
    """

    kernel_type: str = ""
    alternate_kernel_types: tuple[_Name, ...] = ()
    sub_kernels: tuple[_Name, ...] = ()
    composite: bool = False
    decomposer: bool = False
    zero_cost: bool = False
    accepted_miss: str | bool = ""
    category: str = ""
    query_mode: str = ""
    tc_input_count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    notes: str = ""


class MappedOperator(OperatorFields, frozen=True, kw_only=True):
    """An operator of a simulation.

    Attributes:
        name: `aten.mm.default`.
        line: the line of the operator in the file.
        fields: all fields, as in the file.
        wrong: what is wrong with the value of a field, by its name. Such a field counts as left out.
    """

    name: str
    line: int
    fields: Mapping[str, Any]
    wrong: Mapping[str, str]

    @property
    def kernel_types(self) -> Sequence[str]:
        """All kernel types of the operator, without duplicates."""
        names = (self.kernel_type, *self.alternate_kernel_types, *self.sub_kernels)
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def is_free(self) -> bool:
        """Whether the operator counts as 0 us, without a row."""
        return self.zero_cost or bool(self.accepted_miss)

    @property
    def is_communication(self) -> bool:
        """Whether the rows are messages of a collective."""
        return self.category == COMMUNICATION or is_communication(self.kernel_type)


@dataclass(frozen=True)
class OpMapping:
    """The content of an op_mapping.yaml.

    Attributes:
        operators: the operators, in the order of the file.
        malformed: name and line of each operator whose value is not a mapping.
        settings: the other top-level keys.
        lines: the lines of the top-level keys.
    """

    operators: Sequence[MappedOperator]
    malformed: Mapping[str, int]
    settings: Mapping[str, Any]
    lines: Mapping[str, int]


def read_mapping(folder: Path) -> OpMapping | None:
    """Reads the mapping of a database; None if there is no file.

    Raises:
        OpAtlasError: the file cannot be read, is not YAML, or has no operators.
    """
    path = folder / MAPPING
    if not path.exists() and not path.is_symlink():
        return None
    try:
        return parse_mapping(read_text(path).encode())
    except YamlError as error:
        raise _unreadable(path, error) from None


def read_text(path: Path) -> str:
    """Reads the text of a mapping. Raises OpAtlasError."""
    try:
        return read_safely(path, _LARGEST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> OpAtlasError:
    return OpAtlasError(f"{path} cannot be read ({' '.join(str(error).split())}): repair or remove it")


def parse_mapping(text: bytes) -> OpMapping:
    """Parses a mapping. Raises YamlError if the text is not YAML, or has no mapping `operator_mappings`."""
    content = parse_yaml(text)
    operators = content.get(OPERATORS) if isinstance(content, dict) else None
    if not isinstance(operators, dict):
        raise YamlError(f"no mapping {OPERATORS!r}")
    lines = key_lines(text, OPERATORS)
    return OpMapping(
        [
            _operator(str(name), lines.get(str(name), 1), {str(field): value for field, value in fields.items()})
            for name, fields in operators.items()
            if isinstance(fields, dict)
        ],
        {str(name): lines.get(str(name), 1) for name, fields in operators.items() if not isinstance(fields, dict)},
        {str(name): value for name, value in content.items() if name != OPERATORS},
        key_lines(text),
    )


def _operator(name: str, line: int, fields: Mapping[str, Any]) -> MappedOperator:
    wrong = {}
    for field, value in fields.items():
        try:
            msgspec.convert({field: value}, OperatorFields)
        except msgspec.ValidationError as error:
            wrong[field] = str(error)
    right = msgspec.convert({field: value for field, value in fields.items() if field not in wrong}, OperatorFields)
    return MappedOperator(name=name, line=line, fields=fields, wrong=wrong, **msgspec.structs.asdict(right))


_DEFAULT = Path(__file__).with_name("default_op_mapping.yaml")
#: Prefix of the first line of a copy.
_COPY = "# A copy of "
_VERSION_KEYS = {"version": VLLM, "cann_version": CANN, "pytorch_version": TORCH}


@dataclass(frozen=True)
class WrittenMapping:
    """An op_mapping.yaml that was written.

    Attributes:
        path: the path of the file.
        source: the file that was copied; None for the default mapping of OpAtlas.
    """

    path: Path
    source: Path | None

    def __str__(self) -> str:
        origin = f"a copy of {self.source}" if self.source is not None else "the default of OpAtlas"
        return f"wrote {self.path.name} ({origin}), with which a simulator finds the rows"


def write_default_mapping(
    database: Path, *, is_npu: bool = False, sources: Sequence[Path] = ()
) -> WrittenMapping | None:
    """Writes an op_mapping.yaml for a database without one. The caller holds the lock of the database.

    Args:
        database: a folder of {KernelType}.csv files.
        is_npu: whether the rows are of an NPU, if the path of the database does not say.
        sources: databases whose files are preferred as the source of the copy.

    Returns:
        The written file and its source; None if there is a file, or the rows are not of an NPU.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    path = database / MAPPING
    parsed = parse_npu_path(database)
    candidates = [*(source / MAPPING for source in sources), *(_neighbours(database) if parsed else ())]
    candidates = [candidate for candidate in candidates if candidate.is_file()]
    has_mapping = path.exists() or path.is_symlink()
    if has_mapping or not (parsed or is_npu or any(source / MAPPING in candidates for source in sources)):
        return None
    settings = _settings(database)
    for source in candidates:
        text = _copy_text(source, settings)
        if text is not None:
            origin = f"{_COPY}{os.path.relpath(source, database)}: notes and thresholds are of that version.\n"
            write_text(path, origin + re.sub(rf"\A{_COPY}.*\n", "", text))
            return WrittenMapping(path, source)
    write_text(path, _with_settings(_DEFAULT.read_text(encoding="utf-8"), settings))
    return WrittenMapping(path, None)


def _settings(database: Path) -> Mapping[str, str]:
    """Returns the settings that the path of a database implies, by top-level key."""
    parsed = parse_npu_path(database)
    if parsed is None:
        return {}
    device, versions = parsed
    return {
        **{key: versions[component.name] for key, component in _VERSION_KEYS.items()},
        "device": device,
        REFERENCE: communication_reference(database, versions[CANN.name]),
    }


def _neighbours(database: Path) -> list[Path]:
    """Returns the mappings of other databases below the same root: same device first, then the newest versions."""
    here = database.resolve()
    stack = here.parent
    found = stack.parent.parent.glob(f"*/{stack.name}/*/{MAPPING}")
    others = [path for path in found if parse_npu_path(path.parent) is not None and path.parent != here]
    others.sort(key=lambda path: newness(path.parent), reverse=True)
    return sorted(others, key=lambda path: path.parents[2].name != stack.parent.name)


def _copy_text(source: Path, settings: Mapping[str, str]) -> str | None:
    """Returns the text of a mapping with other settings; None if the file cannot be read."""
    try:
        text = read_text(source)
        copy = _with_settings(text, settings)
        there = parse_mapping(copy.encode()).settings
    except (OpAtlasError, YamlError):
        return None
    return copy if {key: there[key] for key in (*settings, REFERENCE) if key in there} == settings else None


def _with_settings(text: str, settings: Mapping[str, str]) -> str:
    """Returns the text of a mapping with new top-level settings.

    Without settings, the reference to messages and empty values are removed.
    """
    for key, value in settings.items():
        line = f"{key}: {json.dumps(value)}"
        text, count = re.subn(rf"^{key}:.*$", line.replace("\\", r"\\"), text, flags=re.MULTILINE)
        text = text if count else f"{line}\n{text}"
    return text if settings else re.sub(rf"^({REFERENCE}:.*|\w+: \"\")\n", "", text, flags=re.MULTILINE)
