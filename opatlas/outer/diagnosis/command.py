"""`opatlas diagnose`: why kernels are slow, and what to do; two diagnoses compared; and the page of the site on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
from cyclopts import Parameter

from opatlas.ask.query.database import OpenDatabase
from opatlas.capture.capture_reader import DURATION, TYPE
from opatlas.errors import OpAtlasError, UsageError
from opatlas.formats import ratio
from opatlas.row.columns import BASE, INPUT_SHAPES
from opatlas.row.communication import is_communication
from opatlas.row.location import meant_device, named_folder
from opatlas.show.parameters import Count, reads
from opatlas.show.result import Column, Fields, Result, Table
from opatlas.show.site.pages import ReportPage
from opatlas.show.site.rows import columns_of

from . import shown as show
from .diagnosis import Diagnosis, diagnose as read_diagnosis
from .kernels import CALL_US, LAUNCHES, ROW, KernelLines, row_lines
from .peaks import read_peaks
from .verdicts import verdict_rules

_Place = Annotated[Path, reads(named_folder)]


def diagnose(
    path: Annotated[_Place, Parameter(name="PATH")],
    /,
    *,
    row: Count | None = None,
    peaks: str = "",
    against: _Place | None = None,
    output: Path | None = None,
    source: Path | None = None,
    wish: tuple[str, ...] = (),
    models: Path | None = None,
    superkernel: bool = False,
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
        output: folder that gets prompt.md, the question to a model about the kernel of --row, else the first of the
            ranking; with --models also their attempts, and the kernels that are faster.
        source: code of the kernel, for the prompt.
        wish: what the answer should do, such as "use double buffer" (may be repeated).
        models: YAML file of models, as of `opatlas bench --models`: they answer the prompt; each answer is measured on
            that row against its baseline, and told what was found, until one is faster or the attempts are over.
        superkernel: find the scopes of a capture that a SuperKernel may fuse; with --against, compare captures or logs
            with SuperKernels to those without.
    """
    for place in (path, *([against] if against else [])):
        if not place.exists():
            raise UsageError(
                f"{place}: no such file or folder: name a capture, a database or a device{meant_device(place)}"
            )
    of_model = {"--source": source, "--wish": wish, "--models": models}
    if superkernel:
        others = {"--row": row, "--peaks": peaks, "--output": output, **of_model}
        _refuse(others, "takes no effect with --superkernel")
        return _scopes(path, against)
    if against is not None:
        _refuse({"--row": row, "--output": output, **of_model}, "asks about one diagnosis, and --against compares two")
    if output is None:
        _refuse(of_model, "is about a question to a model: give --output DIR, too, or")
    given = read_peaks(peaks) if peaks else None
    found = read_diagnosis(path, given)
    if against is not None:
        return comparison_result(read_diagnosis(against, given), found)
    problems = list(found.table.problems)
    if row is None and output is None:
        return Result(list(show.diagnosis_parts(found)), show.diagnosis_as_json(found), problems)
    ranked = show.chosen(found.ranking, row or 1)
    parts, content = list(show.kernel_parts(found, ranked)), show.ranked_as_json(found, ranked)
    if output is not None:
        try:
            # Only questions to models need it, and what it is made of may have been deleted.
            from .improve import ask
        except ModuleNotFoundError as error:
            raise UsageError(f"--output: this installation has no {error.name}") from None
        # What was asked, and answered, is about the kernel of the first part.
        parts[1:] = ask(found, ranked, output, source, wish, models, content, problems)
    return Result(parts, content, problems)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value:
            raise UsageError(f"{name} {why}: leave it out")


def _scopes(path: Path, against: Path | None) -> Result:
    try:
        # A package of its own, which may have been deleted.
        from opatlas.outer.superkernel.scopes_command import compare_scopes, find_scopes
    except ModuleNotFoundError:
        raise UsageError("--superkernel: this installation has no opatlas.outer.superkernel") from None
    return find_scopes(path) if against is None else compare_scopes(against, path)


#: The least change of a ratio that is worth a look.
_TELLING = 0.05
_VERDICT = "verdict"
#: Counters that compare between calls of other durations.
_RATIOS = ("_ratio", "_rate", "(%)")


def comparison_result(old: Diagnosis, new: Diagnosis) -> Result:
    """Returns what changed; the JSON has all counters.

    Kernels are the same where type, shapes, dtypes and formats are, or the row's id. Durations and counters are means
    of the launches, verdicts those of the longest launch; None if none holds. The largest change of time is first.
    """
    captured = new.table.is_capture or old.table.is_capture
    names = [name for name in (TYPE, *BASE[2:]) if all(name in each.table.frame for each in (old, new))]
    counters = [name for name in new.table.counters if name in old.table.counters]
    before, after = (_by_kernel(each, names if captured else [ROW], counters) for each in (old, new))
    both = after.index.intersection(before.index, sort=False)
    changed_us = (after.loc[both, DURATION] - before.loc[both, DURATION]).abs() * after.loc[both, LAUNCHES]
    kernels: list[dict[str, Any]] = []
    ratios: list[tuple[Any, ...]] = []
    for rank, key in enumerate(changed_us.sort_values(ascending=False, kind="stable").index, 1):
        first, second = before.loc[key], after.loc[key]
        values = {name: (float(first[name]), float(second[name])) for name in counters}
        kernels.append(
            {
                "rank": rank,
                "kernel_type": str(second[TYPE]),
                "shapes": str(second[INPUT_SHAPES]),
                "launches": int(second[LAUNCHES]),
                "old_us": float(first[DURATION]),
                "new_us": float(second[DURATION]),
                "old_verdict": first[_VERDICT] or None,
                "new_verdict": second[_VERDICT] or None,
                "counters": {name: each for name, each in values.items() if not any(map(math.isnan, each))},
                "speed_up": float(first[DURATION] / second[DURATION]),
            }
        )
        for name, (was, now) in kernels[-1]["counters"].items():
            least = _TELLING * (100 if name.endswith("(%)") else 1)
            if rank <= show.FIRST and name.endswith(_RATIOS) and abs(now - was) >= least:
                ratios.append((rank, name, was, now))
    content = {"only_old": len(before) - len(both), "only_new": len(after) - len(both), "kernels": kernels}
    problems = [*old.table.problems, *new.table.problems]
    facts = {
        "old": str(old.table.place),
        "new": str(new.table.place),
        "kernels in both": len(kernels),
        "with another verdict": sum(each["old_verdict"] != each["new_verdict"] for each in kernels),
        "only in old": content["only_old"],
        "only in new": content["only_new"],
    }
    times = ("old(us)", "new(us)", Column("speed-up", ratio))
    columns = ("#", "kernel type", show.SHAPES, *times, "old verdict", "new verdict")
    cells = ("rank", "kernel_type", "shapes", "old_us", "new_us", "speed_up", "old_verdict", "new_verdict")
    shown = [tuple(each[name] for name in cells) for each in kernels]
    counters_changed = Table(("#", "counter", "old", "new"), ratios, "counters that changed")
    return Result([Fields(facts), Table(columns, shown, "largest changes"), counters_changed], content, problems)


def _by_kernel(diagnosis: Diagnosis, keys: list[str], counters: list[str]) -> pd.DataFrame:
    """Returns a line for each kernel, without collectives: means, and the verdict of the longest launch.

    Of a trace, which has operators, the duration is that of a call, and launches are calls.
    """
    call_us = CALL_US if CALL_US in diagnosis.table.frame else DURATION
    wanted = list(dict.fromkeys([*keys, TYPE, INPUT_SHAPES, DURATION, call_us, *counters]))
    own = {_VERDICT: diagnosis.verdicts.first, LAUNCHES: diagnosis.launches}
    lines = diagnosis.table.frame[wanted].assign(**own)[diagnosis.is_kernel]
    grouped = lines.sort_values(DURATION, ascending=False, kind="stable").groupby(
        [lines[name] for name in keys], sort=False, dropna=False
    )
    found: pd.DataFrame = grouped[[TYPE, INPUT_SHAPES, _VERDICT]].first()
    found[[DURATION, *counters]] = grouped[[DURATION, *counters]].mean()
    found[LAUNCHES] = grouped[LAUNCHES].sum()
    if call_us is CALL_US:
        found[LAUNCHES] = (grouped[DURATION].sum() / grouped[CALL_US].mean()).round()
        found[DURATION] = grouped[CALL_US].mean()
    return found


#: The rows of the ranking.
_MOST_ROWS = 1_000
_COLUMNS = ("id", "kernel_type", "implementation", "origin", "device", "verdict", "duration_us")
_TIMES = ("launches", "time_us", "roofline", "lost_us")


class DiagnosisPage(ReportPage):
    """Judges rows as `opatlas diagnose` does."""

    def row_cells(self, database: OpenDatabase, implementation: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns the verdict on each row ("" for none), and its numbers of _TIMES, the roofline in percent."""
        kernels = []
        for kernel_type in database.kernel_types():
            if not is_communication(kernel_type):
                try:
                    kernels.append(database.answers.stored_rows(kernel_type, implementation))
                except OpAtlasError:
                    # Told where the kernel type is shown.
                    continue
        lines = KernelLines(database.path, row_lines(kernels), database.answers.device)
        judged: dict[str, list[Mapping[str, Any]]] = {}
        if len(lines.frame):
            found = Diagnosis(lines)
            share = found.shares.share
            lost_us = np.where(np.isfinite(share), found.lost_us, np.nan)
            numbers = zip(lines.frame[LAUNCHES], found.duration_us, share * 100, lost_us, strict=True)
            for kernel_type, verdict, times in zip(lines.frame[TYPE], found.verdicts.first, numbers, strict=True):
                cells = {"verdict": str(verdict), **dict(zip(_TIMES, times, strict=True))}
                judged.setdefault(kernel_type, []).append(cells)
        return judged

    def content(self, tables: Sequence[pd.DataFrame]) -> dict[str, Any] | None:
        """Returns the verdicts with rows, rules and advice, and the rows that lose the most time.

        A row whose roofline is not known loses at most its time.
        """
        judged = [table[[*_COLUMNS, *_TIMES]] for table in tables if "time_us" in table]
        rows = pd.concat(judged, ignore_index=True).dropna(subset="time_us") if judged else pd.DataFrame()
        if not len(rows):
            return None
        lost = rows["lost_us"].fillna(rows["time_us"])
        ranking = rows.loc[lost.sort_values(ascending=False, kind="stable").index[:_MOST_ROWS]]
        counts, times = rows["verdict"].value_counts(), rows.groupby("verdict")["time_us"].sum()
        return {
            "verdicts": [
                {**msgspec.to_builtins(rule), "rows": int(counts[verdict]), "duration_us": float(times[verdict])}
                for verdict, rule in verdict_rules().items()
                if verdict in counts
            ],
            "known": int(rows["lost_us"].notna().sum()),
            "ranked": len(rows),
            "time_us": float(rows["time_us"].sum()),
            "counted": int(rows["launches"].notna().sum()),
            "table": columns_of(ranking),
        }
