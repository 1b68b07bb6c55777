"""`opatlas diagnose`: why kernels are slow, and what to do; or which of them a SuperKernel may fuse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from opatlas.ask.kernel_rows import sample_rows
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError, UsageError, describe_error
from opatlas.row.errors import ReplayError
from opatlas.row.location import meant_device, named_folder
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.show.parameters import Count, reads
from opatlas.show.result import Fields, Part, Result, Table

from .changes import comparison_result
from .diagnosis import diagnose as read_diagnosis
from .peaks import read_peaks
from .prompt import prompt_text
from .shown import chosen, diagnosis_as_json, diagnosis_parts, kernel_parts, ranked_as_json

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
    from opatlas.outer.judging.answer import read_answer
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
