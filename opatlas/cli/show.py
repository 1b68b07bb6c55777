"""`opatlas show` and `opatlas report`: what databases hold, as tables or as a site; kernel types with a replay."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.overview import Overview, read_overview
from opatlas.data.database import Database
from opatlas.data.origin import are_one_device
from opatlas.errors import UsageError
from opatlas.formats import percent
from opatlas.installation import require_extra
from opatlas.row.location import ROOT, database_folder, expect_database, list_databases
from opatlas.run.devices.device import device_kinds
from opatlas.run.registry import CALLS, WITHOUT_REPLAY, proof_of, read_facts, replay_spec, replays_of_bench
from opatlas.show.parameters import DatabaseFolder, Steps
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.text import suggest

_NUMBERS = ("rows", "measured", "composed", "captured", "failed", "missing", "noisy")
#: The columns of which a database's rows are counted by cell.
_COUNTED = ("status", "quality", "cache", "instrument", "machines")
_KERNEL_COLUMNS = (
    *("kernel type", "family", "NPU call", "proven by"),
    *(Column("devices", wide=True), Column("timed on a GPU", wide=True)),
)


def show(
    database: DatabaseFolder | None = None,
    /,
    *,
    kernels: Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True)] = None,
) -> Result:
    """Shows the contents of a database, or all default databases, or the kernel types that have a replay.

    Exit status: 0 done; 1 a file could not be read; 2 no such database.

    Args:
        database: folder of {KernelType}.csv files, or a device such as NVIDIA_H200 (default: the databases of all
            devices are listed).
        kernels: list the kernel types that have a replay, with their NPU calls: all, or those with NAME in their names
            or of the family NAME.
    """
    if kernels is not None:
        if database is not None:
            raise UsageError(f"--kernels lists kernel types, and {database} is a database: leave one of them out")
        return _kernel_types(kernels)
    if database is not None:
        expect_database(database)
        found = read_overview(Database(database))
        return Result(list(_page(found)), json=asdict(found), problems=found.problems)
    every = [read_overview(Database(each)) for each in list_databases()]
    problems = [problem for each in every for problem in each.problems]
    return Result([_list(every)], json=[asdict(each) for each in every], problems=problems)


def _page(found: Overview) -> Iterator[Part]:
    noise = [each.noise for each in found.kernel_types if each.noise is not None]
    yield Fields(
        {
            "device": found.folder or found.device or "not known",
            "not answered from": ", ".join(_others(found)),
            "shipped": found.shipped,
            "compared with": ", ".join(found.implementations),
            "kernel types": len(found.kernel_types),
            **{what: found.total(what) or None for what in _NUMBERS},
            "noise": percent(median(noise)) if noise else None,
            "runs": found.runs or None,
            "ingests": found.ingests or None,
            f"newest {'run' if found.runs else 'ingest'}": _day(found),
        },
        title=found.path,
    )
    yield Fields(
        {
            "replayed on": _counts(found.devices, "runs"),
            "captured on": _counts(found.captured_on, "ingests"),
            "unmerged journals": found.unmerged or None,
        },
        title="runs",
        detail=True,
    )
    by_cell = [(what, cell, rows) for what in _COUNTED for cell, rows in found.counts(what).items()]
    yield Table(("column", "cell", "rows"), by_cell, "cells", detail=True)
    yield Table(
        ("kernel type", *_NUMBERS, Column("noise", percent)),
        [
            (each.kernel_type, *(getattr(each, what) or None for what in _NUMBERS), each.noise)
            for each in found.kernel_types
        ],
        weight=lambda row: row[1] or 0,
    )
    yield "noise: standard deviation / mean of a measured row, the median of all; missing: neither kind of duration"


def _others(found: Overview) -> list[str]:
    """Returns the devices of runs and captures that are not the one that answers."""
    names = [*found.captured_on, *(name.partition(" with ")[0].partition(" (")[0] for name in found.devices)]
    return [name for name in dict.fromkeys(names) if not are_one_device(name, found.device)]


def _list(found: Sequence[Overview]) -> Table:
    rows = [
        ("/".join(Path(each.path).parts[-3:]), *(each.total(what) or None for what in _NUMBERS[:4]), _day(each))
        for each in found
    ]
    roots = ", ".join(dict.fromkeys(str(Path(each.path).parents[2]) for each in found))
    return Table(("database", *_NUMBERS[:4], "newest"), rows, roots or str(ROOT))


def _counts(counts: Mapping[str, int], unit: str) -> str:
    return ", ".join(f"{name} ({count:,} {unit})" for name, count in counts.items())


def _day(found: Overview) -> str | None:
    """Returns the day of the newest run or ingest; None without one."""
    return None if found.last_run_at is None else time.strftime("%Y-%m-%d", time.gmtime(found.last_run_at))


def _kernel_types(names: Sequence[str]) -> Result:
    known = kernels_with_replay()
    chosen = [kernel for kernel in known if _has_name(names, kernel.kernel_type, kernel.family)]
    without = {name: reason for name, reason in WITHOUT_REPLAY.items() if _has_name(names, name)}
    if not chosen and not without:
        like = suggest(names[0], {*(kernel.kernel_type for kernel in known), *WITHOUT_REPLAY})
        raise UsageError(f"no kernel type has {' or '.join(map(repr, names))} in its name{like}")
    parts: list[Part] = [
        Table(_KERNEL_COLUMNS, [astuple(kernel) for kernel in chosen]),
        Fields({"kernel types": len(chosen), **Counter(kernel.proven_by for kernel in chosen)}),
        Table(("without a replay", "reason"), list(without.items())),
    ]
    return Result(parts, json={"kernels": [asdict(kernel) for kernel in chosen], "without_replay": without})


def _has_name(names: Sequence[str], kernel_type: str, family: str = "") -> bool:
    """Returns whether a name is a part of the kernel type, or its family, in any case; True for no names."""
    return not names or any(name.lower() in kernel_type.lower() or name.lower() == family for name in names)


@dataclass(frozen=True)
class Kernel:
    """A line of the table: the attributes are its columns."""

    kernel_type: str
    family: str
    npu_call: str
    proven_by: str
    devices: str
    on_gpu: str


#: The largest number of operators that are named for a composite kernel.
_NAMED = 4
#: Operators that take most of the time; they come first.
_HEAVY = re.compile(r"scaled_dot_product|mm\b|convolution|sort|topk")


def kernels_with_replay() -> list[Kernel]:
    """Returns all kernel types with a replay, by family and name."""
    calls = read_facts(CALLS)
    found = []
    for kernel_type, function in replays_of_bench().items():
        spec = replay_spec(function)
        assert spec is not None
        found.append(
            Kernel(
                kernel_type,
                function.__module__.rpartition("test_")[2],
                spec.npu or "",
                proof_of(spec.npu or "") or "not yet",
                ", ".join(name for name, kind in device_kinds().items() if spec.npu or not kind.is_native),
                _operator_names(calls.get(kernel_type, ())),
            )
        )
    return sorted(found, key=lambda kernel: (kernel.family, kernel.kernel_type))


def _operator_names(operators: Sequence[str]) -> str:
    more = len(operators) - _NAMED
    return ", ".join(sorted(operators, key=lambda name: not _HEAVY.search(name))[:_NAMED]) + (
        f" and {more} more" if more > 0 else ""
    )


def report(
    database: Annotated[str, Parameter(name="DB")], /, *, output: Path, against: str = "", step: Steps = ()
) -> Result:
    """Write a site that shows a database in a browser: kernel types, comparisons, costs of models, diagnosis.

    Open DIR/index.html from the disk, or copy DIR to any web server; no network is needed.

    Exit status: 0 done; 1 a file could not be read or written; 2 wrong usage.

    Args:
        database: folder of {KernelType}.csv files, or name of a device.
        output: folder of the site, made where it does not exist.
        against: a page that compares the rows with those of another database, or DB@STATE, as `opatlas compare` does.
        step: a page on what a step of a model costs: MODEL,batch=N,context=N and further tp=N, ep=N, phase=decode or
            prefill, dtype=NAME; may be given several times.
    """
    require_extra("report", "`opatlas report`", "bokeh")
    # pandas takes as long to import as `opatlas show` to run.
    from opatlas.show.site.pages import write_site

    place = database_folder(database)
    if against and "@" not in against:
        against = str(database_folder(against))
    site = write_site(place, output, against=against, steps=step)
    parts: list[Part] = [
        Fields({"site": str(site.start), "kernel types": site.kernel_types}),
        Table(("of", "rows"), [*site.rows_of.items(), ("all", site.rows)], title="rows"),
    ]
    return Result(parts, problems=site.problems)
