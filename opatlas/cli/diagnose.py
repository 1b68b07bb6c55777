"""`opatlas diagnose`: why kernels are slow, and what to do; or which of them a SuperKernel may fuse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from cyclopts import Group, Parameter

from opatlas.ask.kernel_rows import sample_rows
from opatlas.capture.capture_reader import DURATION
from opatlas.cli.superkernel import compare_scopes, find_scopes
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError, UsageError, describe_error
from opatlas.formats import microseconds, percent, ratio
from opatlas.outer.diagnosis.advice import advice
from opatlas.outer.diagnosis.changes import DiagnosisChanges, KernelChange, compare_diagnoses
from opatlas.outer.diagnosis.diagnosis import Diagnosis, KernelFinding, RankedKernel, origin_text
from opatlas.outer.diagnosis.diagnosis import diagnose as read_diagnosis
from opatlas.outer.diagnosis.kernels import NAME
from opatlas.outer.diagnosis.peaks import read_peaks
from opatlas.outer.diagnosis.prompt import ask_for_candidate, prompt_text
from opatlas.outer.diagnosis.report import changes_as_json, diagnosis_as_json, ranked_as_json
from opatlas.outer.diagnosis.rules import KernelVerdict, limit
from opatlas.outer.generation.endpoint import Endpoint
from opatlas.outer.generation.models_file import NamedModel, read_models
from opatlas.outer.superkernel.kernel_types import StepPhase
from opatlas.row.columns import BASE, KERNEL_NAMES, MICROBENCH_DEVICE_KERNELS, SPAN
from opatlas.row.errors import ReplayError
from opatlas.row.named_databases import meant_device, named_folder
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.show.parameters import Count, reads
from opatlas.show.result import Column, Fields, Part, Result, Table

T = TypeVar("T")
_Place = Annotated[Path, reads(named_folder)]
_SUPERKERNEL = Group("SuperKernel", sort_key=50)
#: Rows of a table.
_SHOWN = 10
#: The characters of shapes that a table shows.
_WIDTH = 24


def _first_shapes(cell: str) -> str:
    """Returns the first shapes of a cell, without empty slots."""
    text = "; ".join(filter(None, cell.split(";")))
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


_SHAPES = Column("shapes", _first_shapes)


def diagnose(
    path: Annotated[_Place, Parameter(name="PATH")],
    /,
    *,
    row: Count | None = None,
    peaks: str = "",
    against: _Place | None = None,
    prompt: Path | None = None,
    source: Path | None = None,
    models: Path | None = None,
    output: Path | None = None,
    superkernel: Annotated[bool, Parameter(group=_SUPERKERNEL)] = False,
    module_map: Annotated[Path | None, Parameter(group=_SUPERKERNEL)] = None,
    phase: Annotated[Literal["prefill", "decode", "training"] | None, Parameter(group=_SUPERKERNEL)] = None,
) -> Result:
    """Why kernels are slow, and what to do: of captures, or of the rows of a database.

    The ranking is by time lost: duration x (1 - share of the roofline).

    Exit status: 0 done; 1 a file could not be read or written, a model did not answer, or a check of --superkernel
    --against failed; 2 wrong usage.

    Args:
        path: kernel_details*.csv or op_summary*.csv, a folder with such, a database, or a device such as NVIDIA_H200.
        row: show all about one kernel of the ranking, by its number.
        peaks: peaks and cores of the device: its name, or a YAML file with bandwidth_gbps, tera_ops, cube_cores and
            vector_cores (default: those of a database's device; none for a capture).
        against: the capture or database before a change, to compare PATH with.
        prompt: write what a model may be asked about the kernel of --row, else the first of the ranking.
        source: code of the kernel, for the prompt.
        models: YAML file of models with endpoints, as of `opatlas bench --models`: post the prompt to them.
        output: with --models, folder that gets the answers as candidates, which `--implementation DIR` measures.
        superkernel: find the scopes of a capture that a SuperKernel may fuse; with --against, compare captures with
            SuperKernels to those without.
        module_map: YAML of patterns of kernel names or types, and their module: attention, moe or ffn.
        phase: what the steps compute (default: as the kernel types tell).
    """
    for place in (path, *([against] if against else [])):
        if not place.exists():
            raise UsageError(
                f"{place}: no such file or folder: name a capture, a database or a device{meant_device(place)}"
            )
    of_scopes = {"--module-map": module_map, "--phase": phase}
    of_model = {"--prompt": prompt, "--source": source, "--models": models, "--output": output}
    of_kernels = {"--row": row, "--peaks": peaks, **of_model}
    if superkernel:
        _refuse(of_kernels, "takes no effect with --superkernel")
        if against is None:
            return find_scopes(path, module_map, phase and StepPhase(phase))
        _refuse(of_scopes, "takes no effect with --against")
        return compare_scopes(against, path)
    _refuse(of_scopes, "needs --superkernel")
    if (models is None) != (output is None):
        raise UsageError("--models FILE and --output DIR belong together: give both, or none")
    if source is not None and prompt is None and models is None:
        raise UsageError("--source is the code of a prompt: give --prompt FILE or --models FILE, too")
    if against is not None:
        _refuse(of_model, "asks about one diagnosis, and --against compares two")
    given = read_peaks(peaks) if peaks else None
    found = read_diagnosis(path, given)
    if against is not None:
        return _compare(found, read_diagnosis(against, given), row)
    problems = list(found.table.problems)
    if row is None and prompt is None and models is None:
        return Result(list(_parts(found)), diagnosis_as_json(found), problems, status=1 if problems else 0)
    ranked = _chosen(found.ranking, row or 1)
    asked = _ask(found, ranked, prompt, source, models, output, problems) if prompt or models else []
    parts = [*_kernel_parts(found, ranked), *asked]
    return Result(parts, ranked_as_json(found, ranked), problems, status=1 if problems else 0)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value:
            raise UsageError(f"{name} {why}: leave it out")


def _chosen(ranking: Sequence[T], rank: int) -> T:
    if rank > len(ranking):
        raise UsageError(f"--row {rank}: the ranking has no such kernel: choose 1 to {len(ranking)}")
    return ranking[rank - 1]


def _parts(found: Diagnosis) -> Iterator[Part]:
    yield _facts(found)
    yield _peaks(found)
    word = "launches" if found.table.is_capture else "rows"
    if not found.table.is_capture:
        yield Table(
            ("durations", "rows"), list(found.sources.items())[:_SHOWN], left_out=len(list(found.sources)[_SHOWN:])
        )
    firsts = Counter(found.verdicts.first.tolist())
    yield Table(
        ("verdict", word, Column("time", percent), "first"),
        [
            (verdict, count, found.us_of(verdict) / found.kernel_us, firsts[verdict])
            for verdict, count in found.counts.items()
        ],
        title="verdicts",
    )
    if untested := found.untested():
        groups = dict.fromkeys(rule.counters for rule in untested)
        yield Table(
            ("counters of", "verdicts"),
            [(group, ", ".join(rule.verdict for rule in untested if rule.counters == group)) for group in groups],
            title="not tested, without counters",
        )
    yield _ranking(found)
    yield _kernel_types(found)
    if first := dict.fromkeys(each.verdict for each in found.ranking[:_SHOWN] if each.verdict is not None):
        yield Table(
            ("verdict", "what to do"), [(verdict, advice()[verdict].what) for verdict in first], title="to do first"
        )
        yield "--row N shows the rules, cells and APIs of a kernel"


def _facts(found: Diagnosis) -> Fields:
    table, verdicts = found.table, found.verdicts
    facts: dict[str, object] = {"device": table.device or None}
    if table.is_capture:
        facts["launches"] = found.kernel_launches
    else:
        facts["rows"] = found.kernels
        if found.counted:
            facts["launches"] = (found.kernel_launches, f"counted in {found.counted:,} rows")
    facts |= {"duration(us)": microseconds(found.kernel_us), "joined": table.joined or None}
    facts["left out"] = table.left_out or None
    if found.collectives:
        facts["collectives, not judged"] = (found.collectives, f"{microseconds(found.collective_us)} us")
    if found.with_ratios:
        over, over_share = found.memory_over_compute
        facts["bound by no pipe"] = (found.unbound, f"of {found.with_ratios:,} with ratios of pipes")
        facts["mte2 > max(vec, mac)"] = (over, f"{percent(over_share)} of the time")
    if not math.isnan(verdicts.wait_share):
        waits = f"waits > {limit(KernelVerdict.HOST_BOUND, 'us'):g} us"
        facts[waits] = (int(verdicts.long_waits.sum()), f"{percent(verdicts.wait_share)} of the time")
    if np.isfinite(verdicts.l2_hit_rate).any():
        for name, source in (("ratio", "npu-mfu-analyzer"), ("article_ratio", "article")):
            rate = limit(KernelVerdict.L2_MISSES, name)
            facts[f"L2 hit rate < {percent(rate)}"] = (int((verdicts.l2_hit_rate < rate).sum()), source)
    return Fields(facts, title=str(table.place))


def _peaks(found: Diagnosis) -> Fields:
    peaks = found.peaks
    return Fields(
        {
            "memory(GB/s)": peaks.peak.bandwidth_gbps,
            **{f"{dtype}(T/s)": rate for dtype, rate in peaks.peak.tera_ops.items()},
            "cube cores": peaks.cube_cores and (peaks.cube_cores, peaks.origin_of_cores),
            "vector cores": peaks.vector_cores and (peaks.vector_cores, peaks.origin_of_cores),
        },
        title=f"peaks: {peaks.origin or 'not known, give --peaks'}",
    )


def _ranking(found: Diagnosis) -> Table:
    known = any(each.lost_is_known for each in found.ranking)
    columns = (
        *("#", "kernel type", _SHAPES, Column("launches", wide=not found.counted)),
        *(Column("time(us)", microseconds), Column("share", percent, wide=known)),
        *(Column("roofline", percent, wide=not known), Column("lost(us)", microseconds, wide=not known), "verdict"),
    )
    rows = [
        (
            *(each.rank, each.kernel_type, each.shapes, each.launches, each.duration_us, each.share, each.roofline),
            *(each.lost_us if each.lost_is_known else None, each.verdict),
        )
        for each in found.ranking
    ]
    title = "most time lost; all of it counts where the roofline is not known" if known else "most time"
    return Table(columns, rows[:_SHOWN], title, left_out=len(rows[_SHOWN:]))


def _kernel_types(found: Diagnosis) -> Table:
    by_type: dict[str, list[RankedKernel]] = {}
    for each in found.ranking:
        by_type.setdefault(each.kernel_type, []).append(each)
    rows = []
    for name, kernels in sorted(by_type.items(), key=lambda item: -sum(each.lost_us for each in item[1])):
        times = dict.fromkeys((each.verdict or "" for each in kernels), 0.0)
        for each in kernels:
            times[each.verdict or ""] += each.duration_us
        known = all(each.lost_is_known for each in kernels)
        lost_us = sum(each.lost_us for each in kernels) if known else None
        rows.append((name, len(kernels), sum(times.values()), lost_us, max(times, key=times.__getitem__)))
    columns = ("kernel type", "kernels", Column("time(us)", microseconds), Column("lost(us)", microseconds), "mostly")
    return Table(columns, rows[:_SHOWN], title="by kernel type", left_out=len(rows[_SHOWN:]))


def _kernel_parts(found: Diagnosis, ranked: RankedKernel) -> Iterator[Part]:
    """Yields everything about one kernel of the ranking: cells, verdicts with rule and source, advice with API."""
    line, shares = ranked.line, found.shares
    cells = found.table.frame.iloc[line]
    share, gbps = float(shares.share[line]), float(shares.gbps[line])
    bound = "arithmetic" if shares.by_arithmetic[line] else "memory"
    names = (NAME, *BASE, KERNEL_NAMES, MICROBENCH_DEVICE_KERNELS, SPAN)
    yield Fields(
        {
            "duration(us)": microseconds(float(cells[DURATION])),
            "launches": f"{ranked.launches:,}",
            "time(us)": (microseconds(ranked.duration_us), f"{percent(ranked.share)} of all"),
            "lost(us)": (microseconds(ranked.lost_us), "" if ranked.lost_is_known else "at most"),
            "roofline": None if share != share else (percent(share), f"{bound}, {gbps:,.0f} GB/s"),
        },
        title=f"{ranked.rank} {ranked.kernel_type}",
    )
    yield Fields(
        {
            "longest launch" if found.table.is_capture else "row": found.place(line),
            "source": None if found.table.is_capture else origin_text(ranked.captured, ranked.device, ranked.by),
            **{name: str(cell) for name in names if (cell := cells.get(name, "")) != "" and cell == cell},
        }
    )
    yield from (_finding(each, found.table.device) for each in found.findings(line))
    ideals = [(name, value, ideal) for name, (value, ideal) in found.ideals(line).items()]
    counters = [(name, value, "") for name, value in found.counters(line).items()]
    yield Table(("counter", "value", "ideal of the article"), [*ideals, *counters])


def _finding(finding: KernelFinding, device: str) -> Fields:
    rule, entry = finding.rule, advice()[finding.rule.verdict]
    cells = {name: cell if isinstance(cell, str) else f"{cell:.6g}" for name, cell in finding.cells.items()}
    do = {"do": entry.what, **entry.apis_of(device), "article": entry.document or None}
    title = f"{rule.verdict}{'' if rule.decides else ' (decides nothing)'}"
    return Fields({**cells, "rule": rule.test, "source": rule.source, **do}, title)


def _compare(new: Diagnosis, old: Diagnosis, row: int | None) -> Result:
    changes = compare_diagnoses(old, new)
    parts = _change_parts(changes, old, new) if row is None else _kernel_change(_chosen(changes.kernels, row))
    problems = [*old.table.problems, *new.table.problems]
    return Result(list(parts), changes_as_json(changes), problems, status=1 if problems else 0)


def _change_parts(changes: DiagnosisChanges, old: Diagnosis, new: Diagnosis) -> Iterator[Part]:
    kernels = changes.kernels
    yield Fields({"old": str(old.table.place), "new": str(new.table.place)})
    yield Fields(
        {
            "kernels in both": len(kernels),
            "with another verdict": sum(each.old_verdict != each.new_verdict for each in kernels),
            "only in old": changes.only_old,
            "only in new": changes.only_new,
        }
    )
    columns = (
        *("#", "kernel type", _SHAPES, Column("old(us)", microseconds), Column("new(us)", microseconds)),
        *(Column("speed-up", ratio), "old verdict", "new verdict"),
    )
    rows = [
        (
            *(each.rank, each.kernel_type, each.shapes, each.old_us, each.new_us, each.speed_up),
            *(each.old_verdict, each.new_verdict),
        )
        for each in kernels
    ]
    yield Table(columns, rows[:_SHOWN], title="largest changes", left_out=len(rows[_SHOWN:]))
    ratios = [(each.rank, name, *both) for each in kernels[:_SHOWN] for name, both in each.changed_ratios.items()]
    if ratios:
        yield Table(("#", "counter", "old", "new"), ratios, title="counters that changed")


def _kernel_change(change: KernelChange) -> Iterator[Part]:
    """Yields all counters of one kernel, side by side."""
    verdicts = {"old verdict": change.old_verdict, "new verdict": change.new_verdict}
    yield Fields({"shapes": change.shapes, **verdicts}, title=f"{change.rank} {change.kernel_type}")
    values = {"Duration(us)": (change.old_us, change.new_us), **change.counters}
    rows = [(name, old, new, new / old if old else None) for name, (old, new) in values.items()]
    yield Table(("counter", "old", "new", Column("new / old", ratio)), rows)


def _ask(
    found: Diagnosis,
    ranked: RankedKernel,
    prompt: Path | None,
    source: Path | None,
    models: Path | None,
    output: Path | None,
    problems: list[str],
) -> Iterator[Part]:
    """Writes the prompt, asks the models, and yields the files. `problems` receives what went wrong with a model."""
    folder = output or Path("my_kernels")
    asked = {} if models is None else _models_with_endpoints(models)
    code = "" if source is None else _read_source(source)
    interface = _interface(ranked.kernel_type, folder)
    suffix = ".py" if source is None else source.suffix
    text = prompt_text(found, ranked, interface=interface, source=code, source_suffix=suffix)
    if prompt is not None:
        write_text(prompt, text)
        yield Fields({"prompt": str(prompt)})
    candidates = []
    for name, model in asked.items():
        endpoint = Endpoint(model.endpoint, model.api_key_variable)
        try:
            path = ask_for_candidate(
                endpoint, name, text, folder, ranked.kernel_type, code, max_tokens=model.max_tokens
            )
            candidates.append((name, path))
        except OpAtlasError as error:
            problems.append(str(error))
    if candidates:
        yield Table(("model", "candidate"), candidates)
    if interface:
        yield f"next: opatlas bench --implementation {folder} --ops {ranked.kernel_type}"
    else:
        yield f"{ranked.kernel_type} has no replay: docs/contributing.md adds one"


def _models_with_endpoints(path: Path) -> Mapping[str, NamedModel]:
    models = read_models(path).models
    for name, model in models.items():
        if not model.endpoint:
            raise UsageError(f"{path}: {name} has no endpoint: add `endpoint: URL`")
    return models


def _read_source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OpAtlasError(describe_error(error, path, "give a text file in UTF-8")) from None


def _interface(kernel_type: str, folder: Path) -> str:
    """Returns a file that has the arguments of a kernel type; "" for one without a replay."""
    if kernel_type not in replays_of_bench():
        return ""
    try:
        row = sample_rows([kernel_type], None)[kernel_type]
        # Imported here because it imports torch.
        from opatlas.run.kernel_template import template

        return template(folder, kernel_type, row)
    except (OpAtlasError, ReplayError, ImportError):
        # A kernel that several devices run together, a row that is not at hand, or no torch.
        return ""
