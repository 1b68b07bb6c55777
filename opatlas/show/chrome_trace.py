"""Kernels as a Chrome trace, which ui.perfetto.dev opens."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from opatlas.ask.query.model_cost import ModelCost, PartCost
from opatlas.data.csv_files import write_atomically

#: Compresses kernels 1:20, four times as fast as the default.
_COMPRESSION = 3


@dataclass(frozen=True, slots=True)
class TraceSlice:
    """Something that took time.

    Attributes:
        process, track: where it is shown. What overlaps on a track gets a further line.
        args: what is told about it; None and "" are left out.
    """

    name: str
    start_us: float
    duration_us: float
    track: str
    process: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)


def write_trace(path: Path, slices: Iterable[TraceSlice]) -> None:
    """Writes a trace, packed if the name ends with .gz. Raises OpAtlasError: the old file is intact."""

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            is_packed = path.suffix.lower() == ".gz"
            out = gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) if is_packed else file
            out.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
            for number, event in enumerate(_events(slices)):
                out.write((b",\n" if number else b"") + msgspec.json.encode(event, enc_hook=str))
            out.write(b"\n]}\n")
            out.close()

    write_atomically(path, write)


def _events(slices: Iterable[TraceSlice]) -> Iterator[dict[str, Any]]:
    processes: dict[str, int] = {}
    # The end of the last slice of each line of a track, and the number of the line.
    lines: dict[tuple[str, str], list[tuple[float, int]]] = {}
    count = 0
    for each in slices:
        if each.process not in processes:
            processes[each.process] = len(processes)
            yield {"ph": "M", "name": "process_name", "pid": processes[each.process], "args": {"name": each.process}}
        pid, of_track = processes[each.process], lines.setdefault((each.process, each.track), [])
        end = each.start_us + each.duration_us
        # Times are told to the nanosecond.
        place = next((i for i, (last, _) in enumerate(of_track) if last <= each.start_us + 5e-4), len(of_track))
        if place == len(of_track):
            of_track.append((end, count))
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": count, "args": {"name": each.track}}
            count += 1
        tid = of_track[place][1]
        of_track[place] = end, tid
        args = {name: value for name, value in each.args.items() if value not in (None, "")}
        start_us = round(each.start_us, 3)
        times = {"ts": start_us, "dur": round(round(end, 3) - start_us, 3)}
        yield {"ph": "X", "name": each.name, "cat": "kernel", "pid": pid, "tid": tid, **times, "args": args}


def model_slices(cost: ModelCost) -> Iterator[TraceSlice]:
    """Yields the calls of a step one after the other, and its layers. A call without a known duration takes none."""
    at_us, process = 0.0, str(cost.step)
    for layer, parts in _by_layer(cost):
        start_us = at_us
        for part in parts:
            low, high = part.interval_us or (None, None)
            args = {
                "kernel type": part.kernel_type,
                "signature": part.signature,
                "how": part.how,
                "low(us)": low,
                "high(us)": high,
                "share of the roof": part.roofline,
                "implementation": part.implementation,
                "device": part.device,
                "source": part.source,
                "cache": part.cache,
                "reason": part.reason,
            }
            for _ in range(part.calls // (part.layers or 1)):
                yield TraceSlice(part.part, at_us, part.us_per_call or 0.0, "calls", process, args)
                at_us += part.us_per_call or 0.0
        if layer:
            yield TraceSlice(layer, start_us, at_us - start_us, "layers", process)


def _by_layer(cost: ModelCost) -> Iterator[tuple[str, Sequence[PartCost]]]:
    """Yields the parts of each layer, and before and after them ("") those outside of layers.

    A part is in the first layers, or in the last ones if a part before it has the others.
    """
    places = [index for index, part in enumerate(cost.parts) if part.layers] or [len(cost.parts)]
    yield "", cost.parts[: places[0]]
    layers: list[list[PartCost]] = [[] for _ in range(cost.layers)]
    first = set[int]()
    for part in cost.parts[places[0] : places[-1] + 1]:
        is_last = cost.layers - part.layers in first
        first |= {part.layers} - {0}
        for own in layers[-part.layers :] if is_last else layers[: part.layers]:
            own.append(part)
    yield from ((f"layer {number}", own) for number, own in enumerate(layers))
    yield "", [part for part in cost.parts[places[0] :] if not part.layers]
