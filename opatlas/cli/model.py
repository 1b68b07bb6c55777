"""`opatlas model`: the cost of a step of a model on one device, and which rows to measure next for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from opatlas.ask.query.database import OpenDatabase, open as open_database
from opatlas.ask.query.model_cost import ModelCost, PartCost, PartField
from opatlas.ask.query.next_rows import NextRows
from opatlas.ask.query.question import How
from opatlas.ask.query.sweep import Served, SweptStep, served_costs, step_costs
from opatlas.data.database import Database
from opatlas.data.fold import add_rows
from opatlas.data.manifest import Manifest, code_digest, this_machine
from opatlas.errors import UsageError
from opatlas.formats import change, microseconds, number, percent, size
from opatlas.grouping import grouped
from opatlas.progress import progress
from opatlas.row.columns import EXPERT_LOAD, INPUT_SHAPES
from opatlas.row.location import parse_implementation
from opatlas.row.record import new_run_id
from opatlas.run.devices.device import available_devices, database_name
from opatlas.show.chrome_trace import write_trace
from opatlas.show.parameters import Count, Counts, Names, OneStep
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.theory.model_kinds import MODEL_KINDS
from opatlas.theory.model_step import Step, step_memory
from opatlas.theory.models import models_by_name
from opatlas.theory.sources import resolve_model

#: What a table says of a part, by `PartCost.composed`.
_COMPOSED = {True: "composition", None: "may be composition", False: ""}
#: The properties of `ModelCost` that JSON has.
_OF_SUM = (
    *("model", "database", "stack", "dtype", "layers", "differs"),
    *("us", "interval_us", "tokens_per_s", "us_in_layers", "composition_us", "untold_us", "other_dtypes_us"),
    *("missing_calls_share", "missing_bytes_share"),
)


def model(
    model: OneStep = None,
    database: Annotated[str | None, Parameter(name="DB")] = None,
    /,
    *,
    tp: Counts = (),
    ep: Counts = (),
    batch: Counts = (),
    context: Counts = (),
    phase: Literal["prefill", "decode"] | None = None,
    sequences: Names = (),
    dtype: str = "",
    implementation: Names = (),
    against: Path | None = None,
    next: Count | None = None,  # noqa: A002
    dry_run: bool = False,
    list: bool = False,  # noqa: A002
    trace: Path | None = None,
) -> Result:
    """The cost of a step of a model on one device: the sum of its calls, and what is missing from it.

    A step is what an engine computes at once: the next token of each sequence (decode), or all tokens of each
    (prefill). The sum is that of kernels, one after another, without gaps. Several values of --batch, --context,
    --sequences, --tp or --ep, with commas, give a table of steps.

    Exit status: 0 done, also if durations are missing; 1 a file failed; 2 wrong usage, or no step fits the device.

    Args:
        model: a model's name, or its config.json or the folder of that; with commas further settings, as in
            MODEL,dp=4 (replicas of the attention that share the experts), pp=2 (stages of the layers),
            cache_dtype=FLOAT8_E4M3FN, captured=1+2+4+8 or vllm (tokens with a CUDA graph, to which steps are padded),
            launch=eager (without one).
        database: a folder, or a device such as NVIDIA_H200 (default: the device of this machine).
        tp: devices that share a layer (default: 1).
        ep: devices that share the experts: 1, or all of tp x dp (default: 1).
        batch: sequences of a step of --tp devices.
        context: tokens of each sequence, in decode with the one that is computed.
        phase: what a step computes (default: decode).
        sequences: in place of the three: count x queries @ keys, as in 63x1@4096+1x2048@6144 for 63 sequences of one
            new token and 4096 in all, and a part of a prompt.
        dtype: BF16 or FLOAT16; INT8 or FLOAT8_E4M3FN for quantized products (default: that of the model's weights).
        implementation: implementations in their order, of which the first with rows of a kernel type answers; fastest:
            for each call the fastest (default: the stack that the database names).
        against: a CSV of the times per output token of servers; MODEL is one of its models, or `all`.
        next: add the N rows to the database whose measurement tells most about this step; opatlas bench measures them.
        dry_run: with --next: show the rows, and add nothing.
        list: the models that have names, and the kinds of config.json.
        trace: write the calls of a step, one after the other, to a Chrome trace (ui.perfetto.dev); .gz packs it.
    """
    if list:
        return Result([_names(), f"config.json of model_type {', '.join(MODEL_KINDS)}"])
    if model is None:
        raise UsageError("no model: give its name (--list), or its config.json or the folder of that")
    if next is None and dry_run:
        raise UsageError("--dry-run: only --next adds rows")
    if next is not None and implementation:
        raise UsageError("--implementation: --next adds rows for the stack that the database names: leave it out")
    if next is not None and trace is not None:
        raise UsageError("--trace: --next shows no step: leave it out")
    place = database or database_name(available_devices(None))
    if against is not None:
        if any((tp, ep, batch, context, phase, sequences, dtype, next, trace, model != Step(model.model))):
            raise UsageError(f"--against: {against} has the steps: leave out all but MODEL and --implementation")
        opened = open_database(place)
        with progress(f"{against.name}, calls", None) as advance:
            served = served_costs(opened, against, model.model, implementation, lambda _: advance(1))
        return Result([*_served_parts(served)], json=served.figures)
    model = msgspec.structs.replace(model, phase=phase or model.phase, dtype=dtype or model.dtype)
    steps = [*_steps(model, tp, ep, batch, context, sequences)]
    # A wrong model is told before a wrong database.
    name = resolve_model(model.model).name
    if next is not None:
        return _next(name, place, steps, next, dry_run)
    opened = open_database(place)
    # The first questions about a database fit models, which takes up to half a minute.
    with progress(f"{name}, calls", None) as advance:
        found = step_costs(opened, steps, implementation, lambda _: advance(1))
    if len(found) == 1 and found[0][1] is None:
        raise UsageError(found[0][2])
    costs = [cost for _, cost, _ in found if cost is not None]
    if trace is not None:
        write_trace(trace, costs)
    written = [] if trace is None else [f"written: {trace}"]
    if len(found) == len(costs) == 1:
        return Result([*_cost_parts(costs[0]), *written], json=_cost_json(costs[0]))
    return Result([*_sweep_parts(name, found), *written], json=[*map(_swept_json, found)])


def _steps(
    model: Step,
    tp: Sequence[int],
    ep: Sequence[int],
    batch: Sequence[int],
    context: Sequence[int],
    sequences: Sequence[str],
) -> Iterator[Step]:
    """Yields a step for each combination of the values; one of the model's own for what has none."""
    lengths = [(0, 0, words) for words in sequences]
    if batch or context or not sequences:
        lengths += product(batch or (model.batch,), context or (model.context,), ("" if batch else model.sequences,))
    for t, e, (b, c, words) in product(tp or (model.tp,), ep or (model.ep,), lengths):
        yield msgspec.structs.replace(model, tp=t, ep=e, batch=b, context=c, sequences=words)


def _next(name: str, place: str, steps: Sequence[Step], most: int, dry_run: bool) -> Result:
    """Finds the rows to measure next, and adds them to the database."""
    started_at, opened = time.time(), open_database(place)
    with progress(f"{name}, calls", None) as advance:
        rows = opened.next_rows(most, steps, lambda _: advance(1))
    added = 0 if dry_run or not rows.rows else _add(Database(opened.path), rows, steps, started_at)
    return Result([*_next_parts(opened, rows, added)], json=_next_json(rows))


def _names() -> Table:
    """Returns the models that have names."""
    known = models_by_name()
    rows = []
    for facts in dict.fromkeys(known.values()):
        memory = step_memory(facts, Step(facts.name, 1, 1, dtype=facts.dtype or "BF16"))
        experts = facts.experts.count if facts.experts is not None else None
        short = ", ".join(word for word, named in known.items() if named.name == facts.name and "/" not in word)
        rows.append((facts.name, short, facts.layers, facts.hidden, experts, memory.weights, facts.stored))
    wide = [Column(name, wide=True) for name in ("hidden", "stored as")]
    return Table(("model", "short names", "layers", wide[0], "experts", Column("weights", size), wide[1]), rows)


def _cost_json(cost: ModelCost) -> dict[str, object]:
    memory = {**asdict(cost.memory), "needed": cost.memory.needed, "tokens_left": cost.memory.tokens_left}
    time = cost.time
    return {
        **msgspec.structs.asdict(cost.step),
        **{name: getattr(cost, name) for name in _OF_SUM},
        "interval_of": "kernels",
        "step_time": {**asdict(time), "us": time.us} if time is not None else None,
        "memory": memory,
        "us_by_how": cost.us_by_how(),
        "us_by_device": cost.us_by("device"),
        "us_by_source": cost.us_by("source"),
        "missing": [part.part for part in cost.missing],
        "parts": [{**asdict(part), "us": part.us} for part in cost.parts],
    }


def _cost_parts(cost: ModelCost) -> Iterator[Part]:
    low, high = cost.interval_us
    lacks = bool(cost.missing)
    name = "sum without missing(us)" if lacks else "sum(us)"
    of_kernels = f"90 %: {microseconds(low)} to {microseconds(high)}, of kernels"
    missing = ", ".join(dict.fromkeys(part.part for part in cost.missing))
    yield Fields(
        {
            **_step_fields(cost),
            name: (round(cost.us) or None, of_kernels),
            "missing calls": (percent(cost.missing_calls_share) if lacks else None, missing),
            "tokens/s": None if cost.tokens_per_s is None else round(cost.tokens_per_s),
            "memory": str(cost.memory),
            "how": _shares(cost, "how"),
            "device": _shares(cost, "device"),
            "stack": ", ".join(cost.stack),
            "unlike the model": "; ".join(cost.differs),
        },
        title=f"{msgspec.structs.replace(cost.step, model=cost.model)}, {cost.dtype}",
    )
    fields: tuple[PartField, ...] = ("source", "cache", "instrument")
    yield Fields(
        {
            "a layer(us)": (round(cost.us_in_layers / cost.layers), f"mean of {cost.layers}"),
            "outside of layers(us)": round(cost.us - cost.us_in_layers),
            "tokens of cache left": cost.memory.tokens_left,
            "missing bytes": percent(cost.missing_bytes_share) if lacks else None,
            **{field: _shares(cost, field) for field in fields},
            "compositions": _share(cost.composition_us, cost),
            "may be compositions": _share(cost.untold_us, cost),
            "other dtypes": _share(cost.other_dtypes_us, cost),
            "database": str(cost.database),
        },
        title="layers, measurements",
        detail=True,
    )
    yield Table(
        ("part", "kernel type", "calls", "each(us)", Column("share", percent), "how", "implementation", "note"),
        [
            (
                *(part.part, part.kernel_type, part.calls, part.us_per_call, part.us / cost.us if part.us else None),
                *(part.how, parse_implementation(part.implementation)[0], _note(part)),
            )
            for part in cost.parts
        ],
        title="parts",
        weight=lambda row: row[4] or 0.0,
    )


def _step_fields(cost: ModelCost) -> dict[str, object]:
    """Returns the time of the step, and its parts; nothing on a device without measured steps."""
    time = cost.time
    if time is None:
        return {}
    low, high = map(microseconds, time.interval_us)
    names = ("gaps", "place", "messages", "power_cap", "host")
    parts = {name.replace("_", " "): getattr(time, f"{name}_us") for name in names}
    told = " ".join(["sum", *(f"{'-+'[us > 0]} {name} {microseconds(abs(us))}" for name, us in parts.items() if us)])
    of_known = ", without missing" if cost.missing else ""
    title = f"step {'without' if cost.step.is_eager else 'in'} a graph{of_known}(us)"
    return {title: (round(time.us), f"90 %: {low} to {high}"), "of that": told}


def _swept_json(found: SweptStep) -> dict[str, object]:
    step, cost, problem = found
    return {**msgspec.structs.asdict(step), "problem": problem} if cost is None else _cost_json(cost)


def _sweep_parts(name: str, found: Sequence[SweptStep]) -> Iterator[Part]:
    """Yields a table of steps. Raises UsageError if none of them can be answered."""
    if all(cost is None for _, cost, _ in found):
        raise UsageError(found[0][2])
    name_of_ms = "step(ms)" if any(cost is not None and cost.time for _, cost, _ in found) else "sum(ms)"
    rows = list[Sequence[Any]]()
    for step, cost, problem in found:
        asked = (step.sequences, step.batch or None, step.context or None, step.tp, step.ep)
        if cost is None:
            rows.append((*asked, *[None] * 7, problem))
            continue
        left = cost.missing_calls_share or None
        each = None if cost.tokens_per_s is None else round(cost.tokens_per_s / step.tp / step.pp)
        speed = None if cost.tokens_per_s is None else round(cost.tokens_per_s)
        found_us = cost.time or cost
        low, high = (us / 1000 for us in found_us.interval_us)
        note = f"without {', '.join(dict.fromkeys(part.part for part in cost.missing))}" if left else ""
        memory = cost.memory
        rows.append((*asked, found_us.us / 1000, low, high, speed, each, memory.needed, memory.tokens_left, note))
    times = name_of_ms, "low(ms)", "high(ms)", "tokens/s", "a device"
    columns = ("sequences", "batch", "context", "tp", "ep", *times, Column("memory", size), "tokens left", "note")
    yield Table(columns, rows, name)


def _served_parts(served: Served) -> Iterator[Part]:
    """Yields the errors of predictions of served times: by model and engine, the worst points, and those left out."""
    counted = sorted(served.points, key=lambda each: -abs(each.error))
    groups = grouped(((each.point.model, each.point.engine), each) for each in counted)
    if len(groups) > 1:
        groups["all", ""] = counted
    summary, error = list[Sequence[Any]](), Column("error", change)
    for names, group in groups.items():
        # The worst point is the first.
        sizes = [abs(each.error) for each in group]
        middle, added = (median(getattr(each, name) for each in group) for name in ("error", "added_us"))
        covered, lacks = sum(each.covered for each in group), median(each.cost.missing_calls_share for each in group)
        after = [abs(each.fitted_error) for each in group if each.fitted_error is not None]
        fitted = (group[0].fitted_share if all(names) else None, median(after) if after else None)
        counts = (covered, lacks or None, added, *fitted)
        summary.append((*names, len(group), middle, median(sizes), sizes[len(sizes) // 10], *counts))
    missing = Column("missing", percent, wide=True)
    of_points = ("points", error, Column("|error|", percent), Column("p90", percent), "in 90 %", missing)
    columns = ("model", "engine", *of_points, "adds(us)", Column("fit", change), Column("with fit", percent))
    yield Table(columns, summary, "predicted against served, medians; us a layer more; share as fitted on other models")
    rows = list[Sequence[Any]]()
    for each in counted:
        cost, step = each.cost, each.cost.step
        asked = (each.point.model, each.point.engine, step.tp, step.ep, step.replicas, step.batch, step.context)
        us = (each.point.tpot_ms * 1000, each.told.us, *each.told.interval_us)
        rows.append((*asked, *(time / 1000 for time in us), each.error, cost.missing_calls_share or None))
    ms = [Column(name, number) for name in ("served", "predicted", "low", "high")]
    sizes_of_step = ("model", "engine", "tp", "ep", "dp", "batch", "context")
    yield Table((*sizes_of_step, *ms, error, missing), rows, "points in ms, the worst first")
    differs = {f"unlike {each.point.model}": "; ".join(each.cost.differs) for each in counted}
    yield Fields(differs, "models", detail=True)
    count = len(served.points) + len(served.refused) + len(served.dropped)
    for name, left in (("refused", served.refused), ("dropped", served.dropped)):
        reasons = Counter((point.model, point.engine, why) for point, why in left)
        told = [(*names, points, why) for (*names, why), points in reasons.items()]
        yield Table(("model", "engine", "points", "why"), told, f"{name}: {len(left)} of {count}", detail=True)


def _note(part: PartCost) -> str:
    other = "other dtypes" if part.other_dtypes else ""
    load = f"{part.expert_load} load" if part.expert_load else ""
    # That a part is predicted `how` says.
    told = part.note if part.how == How.MEASURED.value or (load and "; " in part.note) else ""
    return ", ".join(filter(None, (part.reason, _COMPOSED[part.composed], other, load, told)))


def _share(us: float, cost: ModelCost) -> str | None:
    return percent(us / cost.us) if us else None


def _shares(cost: ModelCost, field: PartField) -> str:
    """Returns the values of a field of the parts: one alone, several with their shares of the sum."""
    shares = {value or "unknown": percent(us / cost.us) for value, us in cost.us_by(field).items()}
    return ", ".join(shares if len(shares) == 1 else (f"{value} {share}" for value, share in shares.items()))


def _next_json(found: NextRows) -> dict[str, object]:
    now, waiting, after = found.error
    return {
        "rows": [{**asdict(row), "signature": row.signature} for row in found.rows],
        "waiting": found.waiting,
        "differs": found.differs,
        "error": now,
        "error_with_waiting": waiting,
        "error_with_rows": after,
    }


def _next_parts(opened: OpenDatabase, found: NextRows, added: int) -> Iterator[Part]:
    times = "duration(us)", "low(us)", "high(us)"
    yield Table(
        ("kernel type", "input shapes", Column("gain", lambda share: percent(share, 3)), *times, "implementation"),
        [
            (
                *(row.kernel_type, f"{row.cells[INPUT_SHAPES].rstrip(';')} {row.cells.get(EXPERT_LOAD, '')}".rstrip()),
                *(row.gain, row.duration_us, *row.interval_us, row.implementation),
            )
            for row in found.rows
        ],
        title="rows to measure",
    )
    now, waiting, after = found.error
    yield Fields(
        {
            **{f"unlike {name}": "; ".join(differs) for name, differs in found.differs.items()},
            "now": percent(now),
            "with rows that wait": (percent(waiting) if found.waiting else None, f"{found.waiting:,} rows"),
            "with rows to measure": (percent(after), f"{len(found.rows):,} rows"),
        },
        title="expected error of the step: of its kernels' rows, without collectives and the spread of machines",
    )
    yield Fields({"database": str(opened.path), "rows added": added})
    if added:
        yield f"next: opatlas bench --database-path {opened.path}{_implementations(opened, found)}"


def _implementations(opened: OpenDatabase, found: NextRows) -> str:
    """Returns the option that measures the implementations that answer; "" for the default one."""
    default, *_ = opened.implementations
    others = dict.fromkeys(row.implementation for row in found.rows if row.implementation != default)
    return f" --implementation {','.join([default, *others])}" if others else ""


def _add(database: Database, found: NextRows, steps: Sequence[Step], started_at: float) -> int:
    added = add_rows(database, grouped((row.kernel_type, row.cells) for row in found.rows))
    options: dict[str, Any] = {
        "command": "opatlas model",
        "next": len(found.rows),
        "steps": list(map(msgspec.structs.asdict, steps)),
    }
    here = Path(__file__).parents[1]
    Manifest(
        run_id=new_run_id(),
        started_at=started_at,
        finished_at=time.time(),
        options=options,
        code=code_digest([here / "ask", here / "theory"]),
        statuses={"added": added},
        **this_machine(),
    ).write(database)
    return added
