"""The process that lists the rows of a suite: reads a request from standard input, and prints a line for each row."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from opatlas.errors import OpAtlasError
from opatlas.outer.suites.listing import OPINFO, TRACE, SlotText, row_line
from opatlas.outer.suites.operators import find_overload, functional_of, is_no_operator, name_of
from opatlas.outer.suites.opinfo import list_cases
from opatlas.outer.suites.trace_call import output_slots
from opatlas.outer.suites.trace_file import read_traces


def _opinfo_lines(request: Mapping[str, Any]) -> Iterator[str]:
    for case in list_cases(request["device_kind"], request["left_out"], request["opinfos"], request["dtypes"]):
        yield row_line(
            f"{OPINFO}/{case.opinfo}/{case.dtype}/{case.number}",
            case.overload,
            case.functional,
            case.arguments,
            case.inputs,
            case.results,
            torch_version=torch.__version__,
        )


def _trace_lines(path: Path, omitted: Container[str]) -> Iterator[str]:
    for call in read_traces(path):
        overload = find_overload(call.overload)
        if call.overload in omitted or (overload is not None and is_no_operator(overload)):
            continue
        functional = functional_of(overload) if overload is not None else None
        inputs: list[SlotText] = [(each.shape, each.dtype) for each in call.arguments.tensors()]
        yield row_line(
            TRACE,
            call.overload,
            name_of(functional) if functional is not None else "",
            str(call.arguments),
            inputs,
            output_slots(overload, call.arguments) if overload is not None else [],
            torch_version=torch.__version__,
            count=call.count,
        )


def _main() -> int:
    request = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        has_traces = "traces" in request
        lines = _trace_lines(Path(request["traces"]), request["left_out"]) if has_traces else _opinfo_lines(request)
        for line in lines:
            print(line)
    except OpAtlasError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
