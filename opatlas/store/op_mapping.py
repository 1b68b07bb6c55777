"""Reads op_mapping.yaml, the file by which a simulator such as msmodeling finds the rows of an operator.

The file lies beside the CSVs of a compute database. Under `operator_mappings` each operator of the simulation has the
fields that name its kernel types; other top-level keys are settings of the simulator.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.files import read_own
from opatlas.model.communication import is_communication
from opatlas.model.location import Place, communication_reference, npu_place
from opatlas.model.versions import CANN, TORCH, VLLM
from opatlas.store.csv_files import write_text
from opatlas.yaml_file import NotYaml, key_lines, parse_yaml

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


_DEFAULT = Path(__file__).with_name("default_op_mapping.yaml")
#: The first line of a copy begins so.
_COPY = "# A copy of "
#: The software whose version says most about which kernels run comes first.
_NEARNESS = (VLLM, CANN, TORCH)
_VERSION_KEYS = {"version": VLLM, "cann_version": CANN, "pytorch_version": TORCH}


@dataclass(frozen=True)
class WrittenMapping:
    """An op_mapping.yaml that was written.

    Attributes:
        path: of the file.
        source: the file that was copied; None where the table of OpAtlas was written.
    """

    path: Path
    source: Path | None

    def __str__(self) -> str:
        origin = f"a copy of {self.source}" if self.source is not None else "OpAtlas' table"
        return f"wrote {self.path.name} ({origin}), by which a simulator finds the rows"


def write_default_mapping(
    database: Path, *, is_npu: bool = False, sources: Sequence[Path] = ()
) -> WrittenMapping | None:
    """Writes the op_mapping.yaml of a database that has none; call it with the lock of the database held.

    Args:
        database: a folder of {KernelType}.csv files.
        is_npu: whether its rows are of an NPU, where its place does not tell.
        sources: databases whose file is taken first.

    Returns:
        What was written; None where there is a file, or the rows are not of an NPU.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    path = database / MAPPING
    place = npu_place(database)
    candidates = [*(source / MAPPING for source in sources), *(_neighbours(database) if place else ())]
    candidates = [candidate for candidate in candidates if candidate.is_file()]
    has_mapping = path.exists() or path.is_symlink()
    if has_mapping or not (place or is_npu or any(source / MAPPING in candidates for source in sources)):
        return None
    settings = _settings(database)
    for source in candidates:
        text = _copied(source, settings)
        if text is not None:
            told = f"{_COPY}{os.path.relpath(source, database)}: notes and thresholds are of that version.\n"
            write_text(path, told + re.sub(rf"\A{_COPY}.*\n", "", text))
            return WrittenMapping(path, source)
    write_text(path, _with_settings(_DEFAULT.read_text(encoding="utf-8"), settings))
    return WrittenMapping(path, None)


def _settings(database: Path) -> Mapping[str, str]:
    """What the place of a database says of it, by top-level key; nothing where the place says nothing."""
    place = npu_place(database)
    if place is None:
        return {}
    device, versions = place
    return {
        **{key: versions[component.name] for key, component in _VERSION_KEYS.items()},
        "device": device,
        REFERENCE: communication_reference(database, versions[CANN.name]),
    }


def _neighbours(database: Path) -> Iterator[Path]:
    """The mappings of other version folders below the same root, those of the same device and near versions first."""
    here = database.resolve()
    stack = here.parent
    found = []
    for path in stack.parent.parent.glob(f"*/{stack.name}/*/{MAPPING}"):
        place = npu_place(path.parent)
        if place is not None and path.parent != here:
            found.append((place[0] != stack.parent.name, _distance(npu_place(here), place), path))
    for _, _, path in sorted(found):
        yield path


def _distance(one: Place | None, other: Place | None) -> Sequence[Sequence[int]]:
    """The differences of the numbers of two places' versions, one list for each piece of software."""
    ours, theirs = (place[1] if place is not None else {} for place in (one, other))
    pairs = [(_numbers(ours.get(each.name, "")), _numbers(theirs.get(each.name, ""))) for each in _NEARNESS]
    return [[abs(a - b) for a, b in zip_longest(*pair, fillvalue=0)] for pair in pairs]


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)]


def _copied(source: Path, settings: Mapping[str, str]) -> str | None:
    """The text of a mapping, for another place; None where the file is no mapping that can be read."""
    try:
        text = read_text(source)
        copy = _with_settings(text, settings)
        there = parse_mapping(copy.encode()).settings
    except (OpAtlasError, NotYaml):
        return None
    return copy if {key: there[key] for key in (*settings, REFERENCE) if key in there} == settings else None


def _with_settings(text: str, settings: Mapping[str, str]) -> str:
    """A mapping whose top-level keys say what `settings` says; without settings it refers to no other folder.

    What the table of OpAtlas leaves open goes, too.
    """
    for key, value in settings.items():
        line = f"{key}: {json.dumps(value)}"
        text, count = re.subn(rf"^{key}:.*$", line.replace("\\", r"\\"), text, flags=re.MULTILINE)
        text = text if count else f"{line}\n{text}"
    return text if settings else re.sub(rf"^({REFERENCE}:.*|\w+: \"\")\n", "", text, flags=re.MULTILINE)
