"""The calls of steps as a Chrome trace, which ui.perfetto.dev opens."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from opatlas.ask.query.model_cost import ModelCost, PartCost
from opatlas.data.csv_files import write_atomically

_CALLS, _LAYERS = 0, 1


def write_trace(path: Path, costs: Iterable[ModelCost]) -> None:
    """Writes a trace of steps, packed if the name ends with .gz. Raises OpAtlasError: the old file is intact."""
    events = [event for process, cost in enumerate(costs) for event in _step_events(process, cost)]
    text = msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": events}, enc_hook=str)
    content = gzip.compress(text, mtime=0) if path.suffix.lower() == ".gz" else text
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(content))


def _step_events(process: int, cost: ModelCost) -> Iterator[dict[str, Any]]:
    """Yields the calls of a step one after the other, and its layers. A call without a known duration takes none."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": str(cost.step)}}
    for track, name in ((_CALLS, "calls"), (_LAYERS, "layers")):
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}

    def event(name: str, track: int, start_us: float, end_us: float, **args: Any) -> dict[str, Any]:
        # Times are told to the nanosecond, and what ends where the next begins does not overlap it.
        start, end = round(start_us, 3), round(end_us, 3)
        told = {key: value for key, value in args.items() if value not in (None, "")}
        place = {"pid": process, "tid": track, "ts": start, "dur": round(end - start, 3)}
        return {"ph": "X", "name": name, "cat": "kernel", **place, "args": told}

    at_us = 0.0
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
                end_us = at_us + (part.us_per_call or 0.0)
                yield event(part.part, _CALLS, at_us, end_us, **args)
                at_us = end_us
        if layer:
            yield event(layer, _LAYERS, start_us, at_us)


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
