"""The header of a profiler capture: kernel_details*.csv of torch_npu, op_summary*.csv of msprof.

Every generation of headers is read: `Block Dim` or `Block Num`, with or without `Device_id` and `OP State`, any metric
group, names in any case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from database.closest import alike
from database.errors import TableError
from database.header import read_header
from database.schema import ACCELERATOR_CORE, BASE, INPUT_SHAPES, OP_STATE, PIPE_UTILIZATION, REQUIRED

TYPE = "Type"
DURATION = "Duration(us)"
CONTEXT_ID = "Context ID"

#: What msprof's op_summary calls the columns of kernel_details.
_SYNONYMS = {
    TYPE: "OP Type",
    DURATION: "Task Duration(us)",
    ACCELERATOR_CORE: "Task Type",
    OP_STATE: "Op State",
}

#: Columns that describe a launch. In a file without `Context ID` everything else is a counter.
_DESCRIPTIVE = frozenset(
    {
        *("Step Id", "Device_id", "Model ID", "Model Name", "Infer ID", "Task ID", "Stream ID", "Name", "Op Name"),
        *(TYPE, "OP Type", DURATION, "Task Duration(us)", "Start Time(us)", "Task Start Time(us)"),
        *("Wait Time(us)", "Task Wait Time(us)", "Block Dim", "Block Num", "Mix Block Dim", "Mix Block Num"),
        *("HF32 Eligible", CONTEXT_ID, "Task Type", "Op State", *BASE),
    }
)


def _key(name: str) -> str:
    return "".join(name.split()).lower()


#: Columns by their names in lower case without blanks, as tools that rewrite captures may spell them.
_BY_KEY = {_key(name): name for name in (*_DESCRIPTIVE, *PIPE_UTILIZATION)}
#: `Duration(ns)` is like `Duration(us)` (0.92), and `Total Time(us)` of another file is not (0.38).
_ALIKE = 0.75
_COLUMNS_SHOWN = 8
_UNIT = re.compile(r"\((ns|ms|s)\)\s*\Z")
LEVEL_0_REMEDY = (
    "Take the capture again with profiler_level=ProfilerLevel.Level1 (torch_npu.profiler) or --task-time=l1 (msprof)"
)


@dataclass(frozen=True)
class Header:
    """Which columns of a capture hold what.

    Attributes:
        names: every column, in the file's order, by the profiler's name where case and blanks alone are different.
        text: the column among `names` of `Type` and of each base column that the file has, by our name.
        duration: the duration column among `names`.
        counters: the counter columns.
    """

    names: tuple[str, ...]
    text: Mapping[str, str]
    duration: str
    counters: tuple[str, ...]

    @property
    def of_msprof(self) -> bool:
        """Whether the file is an op_summary, and no kernel_details."""
        return self.duration == _SYNONYMS[DURATION]


def read_capture_header(path: Path) -> Header:
    """Which columns the capture has.

    Raises:
        TableError: the file cannot be read, is no capture, or was taken at level 0 (no shapes).
    """
    # Whoever names a capture may name a link to one.
    header = read_header(path.resolve())
    if header.lines > 1:
        raise TableError(
            path, "a column's name spans lines", "No profiler writes such a header; leave the file out", line=1
        )
    names = _known_names([name.strip() for name in header.names])
    text = {}
    for column in (TYPE, *BASE):
        for name in (column, _SYNONYMS.get(column)):
            if name in names:
                text[column] = str(name)
                break
    duration = DURATION if DURATION in names else _SYNONYMS[DURATION]
    if TYPE not in text or duration not in names:
        raise _no_capture(path, names, [name for name in (TYPE, DURATION) if name not in (*text, *names)])
    if INPUT_SHAPES not in text:
        raise TableError(path, "taken at profiler level 0, which records no shapes", LEVEL_0_REMEDY, line=1)
    missing = [column for column in REQUIRED if column not in text]
    if missing:
        raise TableError(path, f"no column {', '.join(map(repr, missing))}", LEVEL_0_REMEDY, line=1)
    # The profiler writes the counters last, whatever their metric group.
    tail = names[names.index(CONTEXT_ID) + 1 :] if CONTEXT_ID in names else names
    counters = tuple(name for name in tail if name not in _DESCRIPTIVE and name)
    return Header(tuple(names), text, duration, counters)


def _known_names(names: Sequence[str]) -> list[str]:
    """Returns the columns of a file by the profiler's names, where case and blanks alone are different."""
    alike = Counter(map(_key, names))
    return [name if name in _DESCRIPTIVE or alike[_key(name)] > 1 else _BY_KEY.get(_key(name), name) for name in names]


def _no_capture(path: Path, names: Sequence[str], missing: Sequence[str]) -> TableError:
    said, remedy = [], "Correct the header, or leave the file out"
    for name in missing:
        near = [other for other in names if _key(other) == _key(name)] or alike(name, names, most=1, least=_ALIKE)
        said.append(f"{name!r}" + (f" (is {' or '.join(map(repr, near))} it?)" if near else ""))
        if near and (unit := _UNIT.search(near[0])):
            remedy = f"Convert its values from {unit[1]} to microseconds, and name the column {name!r}"
    problem = f"no column {' or '.join(said)}"
    if "(is " in problem:
        return TableError(path, problem, remedy, line=1)
    more = f", and {len(names) - _COLUMNS_SHOWN} more" if len(names) > _COLUMNS_SHOWN else ""
    return TableError(
        path,
        f"{problem}; the columns are: {', '.join(names[:_COLUMNS_SHOWN])}{more}",
        "This is neither a kernel_details nor an op_summary file; leave it out",
        line=1,
    )
