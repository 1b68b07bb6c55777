"""`opatlas diagnose`: why kernels are slow, and what to do; and the page of the site on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from cyclopts import Group, Parameter

from opatlas.ask.kernel_rows import sample_rows
from opatlas.ask.query.database import OpenDatabase
from opatlas.capture.capture_reader import TYPE
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError, UsageError, describe_error
from opatlas.row.communication import is_communication
from opatlas.row.errors import ReplayError
from opatlas.row.location import meant_device, named_folder
from opatlas.run.registry import replays_of_bench
from opatlas.show.parameters import Count, reads
from opatlas.show.result import Fields, Part, Result, Table
from opatlas.show.site.pages import ReportPage
from opatlas.show.site.rows import columns_of

from .diagnosis import Diagnosis
from .diagnosis import diagnose as read_diagnosis
from .kernels import LAUNCHES, KernelLines, row_lines
from .peaks import read_peaks
from .prompt import prompt_text
from .shown import chosen, comparison_result, diagnosis_as_json, diagnosis_parts, kernel_parts, ranked_as_json
from .verdicts import verdict_rules

_Place = Annotated[Path, reads(named_folder)]
_SUPERKERNEL = Group("SuperKernel", sort_key=50)


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
    if superkernel:
        _refuse({"--row": row, "--peaks": peaks, **of_model}, "takes no effect with --superkernel")
        return _scopes(path, against, module_map, phase)
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
        return comparison_result(read_diagnosis(against, given), found, row)
    problems = list(found.table.problems)
    if row is None and prompt is None and models is None:
        return Result(list(diagnosis_parts(found)), diagnosis_as_json(found), problems, status=1 if problems else 0)
    ranked = chosen(found.ranking, row or 1)
    parts = list(kernel_parts(found, ranked))
    if prompt is not None or models is not None:
        folder = output or Path("my_kernels")
        code = "" if source is None else _read_source(source)
        interface = _interface(ranked.kernel_type, folder)
        suffix = ".py" if source is None else source.suffix
        text = prompt_text(found, ranked, interface=interface, source=code, source_suffix=suffix)
        if prompt is not None:
            write_text(prompt, text)
            parts.append(Fields({"prompt": str(prompt)}))
        if models is not None:
            parts += _ask(models, text, folder / ranked.kernel_type.lstrip("_"), code, problems)
        parts.append(
            f"next: opatlas bench --implementation {folder} --ops {ranked.kernel_type}"
            if interface
            else f"{ranked.kernel_type} has no replay: docs/contributing.md adds one"
        )
    return Result(parts, ranked_as_json(found, ranked), problems, status=1 if problems else 0)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value:
            raise UsageError(f"{name} {why}: leave it out")


def _scopes(path: Path, against: Path | None, module_map: Path | None, phase: str | None) -> Result:
    try:
        # A package of its own, which may have been deleted.
        from opatlas.outer.superkernel.command import compare_scopes, find_scopes
    except ModuleNotFoundError:
        raise UsageError("--superkernel: this installation has no opatlas.outer.superkernel") from None
    if against is None:
        return find_scopes(path, module_map, phase)
    _refuse({"--module-map": module_map, "--phase": phase}, "takes no effect with --against")
    return compare_scopes(against, path)


def _ask(models: Path, prompt: str, folder: Path, code: str, problems: list[str]) -> Iterator[Part]:
    """Asks the models of a file, and stores each answer as `{folder}/{name}_{n}.py`, which --implementation measures.

    The whole answer is stored beside it, as `{name}_{n}.md`. An earlier answer stays. A model without an answer is one
    of the `problems`.
    """
    # Only a question to a model needs them.
    from opatlas.outer.generation.endpoint import ChatMessage, ChatRequest, Endpoint
    from opatlas.outer.generation.models_file import read_models
    from opatlas.outer.generation.prompt import read_answer
    from opatlas.outer.judging.judgement import Judgement

    named = read_models(models).models
    if without := [name for name, model in named.items() if not model.endpoint]:
        raise UsageError(f"{models}: {without[0]} has no endpoint: add `endpoint: URL`")
    endpoints = {name: Endpoint(model.endpoint, model.api_key_variable) for name, model in named.items()}
    candidates = []
    for name, model in named.items():
        try:
            request = ChatRequest(name, (ChatMessage("user", prompt),), max_tokens=model.max_tokens)
            answer = endpoints[name].ask(request)
            path = _free(folder, re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "answer")
            write_text(path.with_suffix(".md"), answer.text)
            found = read_answer(answer.text, code or None)
            if isinstance(found, Judgement):
                remedy = "ask again, or take the code from the answer by hand"
                raise OpAtlasError(f"{path.with_suffix('.md')}: {found.text}: {remedy}")
            write_text(path, found)
            candidates.append((name, path))
        except OpAtlasError as error:
            problems.append(str(error))
    if candidates:
        yield Table(("model", "candidate"), candidates)


def _free(folder: Path, stem: str) -> Path:
    """Makes a folder, and returns the file `{stem}_{n}.py` of the first number that is free in it."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = {path.stem for path in folder.glob(f"{stem}_*")}
    number = next(each for each in range(1, len(taken) + 2) if f"{stem}_{each}" not in taken)
    return folder / f"{stem}_{number}.py"


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

    def content(self, tables: Sequence[pd.DataFrame], capture: Path | None) -> dict[str, Any] | None:
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
                {
                    "verdict": str(verdict),
                    "zh": rule.zh,
                    "rows": int(counts[verdict]),
                    "duration_us": float(times[verdict]),
                    "test": rule.test,
                    "source": rule.source,
                    "what": rule.advice.what,
                    "what_zh": rule.advice.zh,
                    "apis": dict(rule.advice.apis),
                }
                for verdict, rule in verdict_rules().items()
                if verdict in counts
            ],
            "known": int(rows["lost_us"].notna().sum()),
            "ranked": len(rows),
            "time_us": float(rows["time_us"].sum()),
            "counted": int(rows["launches"].notna().sum()),
            "table": columns_of(ranking),
        }
