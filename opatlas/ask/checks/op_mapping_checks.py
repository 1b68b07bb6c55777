"""Checks of op_mapping.yaml: its operators name kernel types that exist, in fields that simulators read.

A simulator skips unknown names: an operator with a misspelt kernel type has no duration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from opatlas.ask.checks.check import WHOLE_DATABASE, CheckedDatabase, Finding
from opatlas.data.op_mapping import (
    COMMUNICATION,
    MAPPING,
    REFERENCE,
    MappedOperator,
    OperatorFields,
    OpMapping,
    read_mapping,
)
from opatlas.errors import OpAtlasError
from opatlas.row.communication import BY_KERNEL_TYPE, is_communication
from opatlas.row.location import are_of_same_release, communication_reference, parse_npu_path
from opatlas.row.versions import CANN
from opatlas.text import close_matches, suggest

_FIELDS = OperatorFields.__struct_fields__
_WORDS = {
    "category": ("compute", COMMUNICATION),
    "query_mode": ("elementwise", "attention_special", "moe_fused", "mtp_projection"),
}
#: In a name of so many letters one wrong letter is a misspelling.
_LONG = 7
#: Operators with this prefix are notes for people; no simulation uses them.
_NOT_ASKED = "profiling."


def op_mapping(database: CheckedDatabase) -> Iterator[Finding]:
    """Finds operators, and references to messages, for which a simulator finds no rows."""
    try:
        mapping = read_mapping(database.path)
    except OpAtlasError as error:
        yield Finding(str(database.path / MAPPING), None, "", WHOLE_DATABASE, "", str(error))
        return
    if mapping is not None:
        yield from _check_reference(database.path, mapping)
        yield from _check_operators(database, mapping)


def op_mapping_rows(database: CheckedDatabase) -> Iterator[Finding]:
    """Finds operators without rows, and rows without an operator."""
    # The check op-mapping reports an error.
    with suppress(OpAtlasError):
        if (mapping := read_mapping(database.path)) is not None:
            yield from _without_rows(database, mapping)
            yield from _not_named(database, mapping)


def _without_rows(database: CheckedDatabase, mapping: OpMapping) -> Iterator[Finding]:
    """Yields the operators without a CSV for any of their kernel types."""
    reference = mapping.settings.get(REFERENCE)
    messages = database.path / reference if isinstance(reference, str) else database.path
    for operator in mapping.operators:
        names = operator.kernel_types
        if not names or operator.is_free or operator.name.startswith(_NOT_ASKED):
            continue
        paths = [(messages if is_communication(name) else database.path) / f"{name}.csv" for name in names]
        # A simulator also looks for messages beside the compute rows.
        if not any(path.is_file() or (database.path / path.name).is_file() for path in paths):
            where = f" in {reference}" if is_communication(names[0]) and isinstance(reference, str) else ""
            unknown = [n for n in names if n not in database.replayed_types and not is_communication(n)]
            more = f"; OpAtlas replays no {' and no '.join(unknown)}" if unknown else ""
            files = ", no ".join(path.name for path in paths)
            yield _finding(database, operator, names[0], f"there is no {files}{where}{more}")


def _not_named(database: CheckedDatabase, mapping: OpMapping) -> Iterator[Finding]:
    """Yields the kernel types that have rows and that no operator names."""
    named = {name for operator in mapping.operators for name in operator.kernel_types}
    # Only the code of the simulator says which kernels a decomposer uses.
    has_decomposer = any(operator.decomposer for operator in mapping.operators)
    for name in database.tables:
        if name not in named:
            hint = ", but a decomposer may use its rows" if has_decomposer else ""
            yield Finding(
                str(database.path / f"{name}.csv"), None, name, name, "", f"no operator of {MAPPING} names it{hint}"
            )


def _check_reference(path: Path, mapping: OpMapping) -> Iterator[Finding]:
    parsed = parse_npu_path(path)
    given = mapping.settings.get(REFERENCE)
    line = mapping.lines.get(REFERENCE)
    finding = Finding(str(path / MAPPING), line, "", REFERENCE, str(given or ""), "")
    wanted = communication_reference(path, parsed[1][CANN.name]) if parsed is not None else ""
    if given is not None and (not isinstance(given, str) or Path(given).is_absolute()):
        yield replace(finding, reason=f"must be a relative path, such as {wanted or '../../hccl/v8.5/'}")
    elif wanted and (given is None or not _leads_to(path / given, path / wanted)):
        yield replace(finding, reason=f"the messages of this database are in {wanted}")


def _leads_to(given: Path, wanted: Path) -> bool:
    """Returns whether a reference leads to the messages of this database, or to another folder of the same release."""
    return given.resolve() == wanted.resolve() or (not wanted.is_dir() and are_of_same_release(given, wanted))


def _check_operators(database: CheckedDatabase, mapping: OpMapping) -> Iterator[Finding]:
    for name, line in mapping.malformed.items():
        yield Finding(
            str(database.path / MAPPING), line, "", name, "", "must have fields, such as {kernel_type: MatMulV2}"
        )
    known = {*database.tables, *database.unreadable, *database.replayed_types, *BY_KERNEL_TYPE}
    for operator in mapping.operators:
        for field, value in operator.fields.items():
            problem = _wrong_field(operator, field, value)
            if problem:
                yield _finding(database, operator, f"{field}: {value}"[:80], problem)
        if not operator.kernel_types and not operator.is_free and not operator.decomposer:
            wanted = "sub_kernels or decomposer: true" if operator.composite else "kernel_type, composite or zero_cost"
            yield _finding(database, operator, "", f"has no duration: give {wanted}")
        for name in operator.kernel_types:
            meant = _misspelt(name, known)
            if meant:
                yield _finding(database, operator, name, f"no such kernel type{suggest(name, [meant])}")


def _wrong_field(operator: MappedOperator, field: str, value: Any) -> str:
    """Returns what is wrong with a field; "" if nothing is, or OpAtlas does not know the field."""
    if field not in _FIELDS:
        return f"no such field{suggest(field, _FIELDS, least=0.8)}" if close_matches(field, _FIELDS, 1, 0.8) else ""
    words = _WORDS.get(field, ())
    if field in operator.wrong or not words or value in words:
        return operator.wrong.get(field, "")
    return f"{field} must be one of {', '.join(words)}{suggest(value, words)}"


def _misspelt(name: str, known: set[str]) -> str:
    """Returns the kernel type that a name misspells; "" if the name is known, or may be another kernel.

    A misspelt name differs in case, or, if long, in one letter that is neither the first nor a digit. Sin and Min,
    ReluGrad and GeluGrad, LayerNormV3 and LayerNormV4 are different kernels.
    """
    # One letter in so many.
    least = 1 - 1.01 / len(name)
    for other in [] if name in known else close_matches(name, known, 3, least):
        is_version = _without_numbers(name.lower()) == _without_numbers(other.lower())
        is_letter = len(name) >= _LONG and name[0] == other[0] and not is_version
        if is_letter or name.lower() == other.lower():
            return other
    return ""


def _without_numbers(name: str) -> str:
    return re.sub(r"\d|_", "", name)


def _finding(database: CheckedDatabase, operator: MappedOperator, value: str, reason: str) -> Finding:
    return Finding(str(database.path / MAPPING), operator.line, operator.kernel_type, operator.name, value, reason)


def without_mapping(database: CheckedDatabase) -> str:
    """Returns why a database has no mapping to check; "" if it has one."""
    return "" if (database.path / MAPPING).exists() else f"no {MAPPING}; only databases of NPUs have one"
