"""Lists the rows of a suite. Samples of OpInfo are made in a process of their own, which imports torch."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.outer.suites.overload import folder_of
from opatlas.outer.suites.trace_file import LARGEST_BYTES, trace_files
from opatlas.row.columns import (
    ARGUMENTS,
    FUNCTIONAL,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    SAMPLE,
    SAMPLE_TORCH,
    TRACE_COUNT,
)
from opatlas.row.slots import EMPTY_SHAPE, dtype_of_torch
from opatlas.run.process.fresh_python import import_environment, module_command
from opatlas.text import suggest

_LISTER = "opatlas.outer.suites.lister"
_LEFT_OUT = Path(__file__).with_name("left_out.yaml")
#: The listing takes half a minute; a machine may be slow.
_DEADLINE_S = 1800
_DIGITS = 12
#: The suites, and the first part of the name of a sample of a trace.
OPINFO, TRACES, TRACE = "opinfo", "traces", "trace"
_SHIPPED_TRACES = Path(__file__).with_name("traces")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.+]+")

Rows = dict[str, list[Mapping[str, str]]]
#: A tensor of a call: shape, and the name of the dtype in torch.
SlotText = tuple[Sequence[int], str]


def suite_name(suite: str) -> str:
    """Returns the name of a suite for the folder of its database: `opinfo`, or `hf_train_3f2a91c0` by name and content.

    Raises:
        OpAtlasError: there is no such suite, file or folder.
    """
    if suite == OPINFO:
        return OPINFO
    path = _trace_path(suite)
    digest = blake2b(digest_size=4)
    for file in trace_files(path):
        digest.update(read_safely(file, LARGEST_BYTES))
    return f"{_NOT_IN_NAMES.sub('_', path.stem).strip('_') or TRACES}_{digest.hexdigest()}"


def suite_rows(suite: str, device_kind: str) -> Rows:
    """Returns the rows of a suite by kernel type.

    Args:
        suite: OPINFO, TRACES for the traces that OpAtlas ships, or a file or folder of traces.
        device_kind: the kind of device.

    Raises:
        OpAtlasError: there is no such suite, or its cases cannot be listed.
    """
    return opinfo_rows(device_kind) if suite == OPINFO else trace_rows(_trace_path(suite))


def _trace_path(suite: str) -> Path:
    path = _SHIPPED_TRACES if suite == TRACES else Path(suite)
    if not path.exists():
        meant = suggest(suite, [OPINFO, TRACES]) or f": give {OPINFO}, {TRACES}, or a file or folder of traces"
        raise OpAtlasError(f"--suite {suite}: there is no such suite, file or folder{meant}")
    return path


@cache
def left_out() -> Mapping[str, str]:
    """Returns why operators are no operators of the suite of OpInfo, by overload."""
    reasons = msgspec.yaml.decode(_LEFT_OUT.read_bytes(), type=dict[str, list[str]])
    return {overload: reason for reason, overloads in reasons.items() for overload in overloads}


def opinfo_rows(device_kind: str, names: Sequence[str] = (), dtypes: Sequence[str] = ()) -> Rows:
    """Returns the rows of the suite of OpInfo by kernel type.

    Args:
        device_kind: a kind of device ("cuda"); OpInfo knows the dtypes of each operator there.
        names: the only OpInfos ("nn.functional.relu"); empty: all.
        dtypes: the only dtypes ("float32"); empty: all.

    Raises:
        OpAtlasError: torch is missing, or the samples cannot be made.
    """
    return _run_lister({"device_kind": device_kind, "opinfos": list(names), "dtypes": list(dtypes)})


def trace_rows(path: Path) -> Rows:
    """Returns the rows of the calls in a file or folder of traces, by kernel type.

    Raises:
        OpAtlasError: the files cannot be read, a line is not one of a trace, or torch is missing.
    """
    return _run_lister({"traces": str(path)})


def _run_lister(request: Mapping[str, Any]) -> Rows:
    try:
        done = subprocess.run(
            module_command(_LISTER),
            input=json.dumps({**request, "left_out": dict(left_out())}),
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            env=import_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OpAtlasError(f"the cases of the suite were not listed within {_DEADLINE_S} s: try again") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OpAtlasError(f"the cases of the suite cannot be listed ({said})")
    rows: Rows = defaultdict(list)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            kernel_type, cells = json.loads(line)["row"]
            rows[kernel_type].append(cells)
    if not rows:
        raise OpAtlasError("the suite has no case: this torch has no sample of it")
    return dict(sorted(rows.items()))


def row_line(
    source: str,
    overload: str,
    functional: str,
    arguments: str,
    inputs: Iterable[SlotText],
    outputs: Iterable[SlotText],
    *,
    torch_version: str,
    count: int | None = None,
) -> str:
    """Returns a row as a line of JSON.

    Args:
        source: OPINFO and the sample ("opinfo/add/float32/3"), or TRACE.
        overload, functional: the operator, and the functional operator of which it is a variant ("" for no variant).
        arguments: the text of the arguments, whose digest is a part of the sample's name.
        inputs, outputs: shapes and dtypes of the tensors.
        torch_version: the torch whose OpInfo has the sample.
        count: how often models make the call; None: unknown.
    """
    cells = {
        **_slot_cells(inputs, (INPUT_SHAPES, INPUT_DTYPES, INPUT_FORMATS)),
        **_slot_cells(outputs, (OUTPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS)),
        SAMPLE: f"{source}/{text_digest(arguments)}",
        ARGUMENTS: arguments,
        FUNCTIONAL: functional and folder_of(functional),
        TRACE_COUNT: "" if count is None else str(count),
        SAMPLE_TORCH: torch_version,
    }
    return json.dumps({"row": (folder_of(overload), cells)})


def text_digest(arguments: str) -> str:
    """Returns the digest of the text of arguments, which is a part of the name of a sample."""
    return blake2b(arguments.encode(), digest_size=_DIGITS // 2).hexdigest()


def _slot_cells(slots: Iterable[SlotText], columns: tuple[str, str, str]) -> dict[str, str]:
    slots = list(slots)
    shapes = ";".join(",".join(map(str, shape)) for shape, _ in slots)
    return {
        columns[0]: shapes or (EMPTY_SHAPE if slots else ""),
        columns[1]: ";".join(dtype_of_torch(dtype) for _, dtype in slots),
        columns[2]: ";".join("ND" for _ in slots),
    }
