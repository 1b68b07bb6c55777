"""Tells why kernels are slow, and what to do: of a capture, or of the rows of a database.

Each kernel gets verdicts by rules of msprof, msprof-analyze and msopprof, with the cells that they come from. The
ranking is by time lost: duration x (1 - share of the roofline).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.cli.kernel_template import sample_rows
from opatlas.diagnosis.changes import change_lines, changes_json, compare_diagnoses, kernel_change_lines
from opatlas.diagnosis.diagnosis import Diagnosis, RankedKernel, diagnose
from opatlas.diagnosis.peaks import read_peaks
from opatlas.diagnosis.prompt import ask_for_candidate, prompt_text
from opatlas.diagnosis.text import diagnosis_json, diagnosis_lines, ranked_json, row_lines
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.errors import OpAtlasError, UsageError, describe_error
from opatlas.generation.endpoint import Endpoint
from opatlas.generation.models_file import read_models
from opatlas.model.errors import ReplayError
from opatlas.model.named_databases import meant_device, named_folder
from opatlas.options import at_least
from opatlas.store.csv_files import write_text
from opatlas.text import pluralize, print_problems, show

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done; 1 a file could not be read or written; 2 wrong usage"
    parser.add_argument(
        "place",
        type=named_folder,
        metavar="PATH",
        help="kernel_details*.csv or op_summary*.csv, a folder with such, a database, or a device such as NVIDIA_H200",
    )
    parser.add_argument(
        "--row",
        type=at_least(1),
        metavar="N",
        help="show everything about one kernel of the ranking, by its number (default: the ranking)",
    )
    parser.add_argument(
        "--peaks",
        default="",
        metavar="FILE",
        help="peaks and cores of the device: a YAML file with bandwidth_gbps, tera_ops, cube_cores, vector_cores, or a "
        "device such as ATLAS_800_A2_313T_64G (default: those of a database's device; none for a capture)",
    )
    parser.add_argument(
        "--against",
        default="",
        metavar="OTHER",
        help="the capture or database before a change: durations, verdicts and counters of both, side by side; --row N "
        "shows all counters of a kernel (default: no comparison)",
    )
    add_json(parser, "the verdicts and the whole ranking")
    parser.add_argument(
        "--prompt",
        type=Path,
        metavar="FILE",
        help="write what a model may be asked for about the kernel of --row, else the first of the ranking: shapes, "
        "counters, verdicts, code, constraints (default: not written)",
    )
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help="code of the kernel, for the prompt (default: the prompt has none)"
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="FILE",
        help="post the prompt to the models of a YAML file with their endpoints, as of `opatlas bench --models` "
        "(default: nothing is posted)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="with --models: folder that gets the answers as candidates, which --implementation DIR measures (default: "
        "none)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the diagnosis, and returns the exit status that the help explains. Raises OpAtlasError."""
    peaks = read_peaks(arguments.peaks) if arguments.peaks else None
    _expect_together(arguments)
    diagnosis = diagnose(arguments.place, peaks)
    if arguments.against:
        return _compare(arguments, diagnosis, diagnose(named_folder(arguments.against), peaks))
    is_asked = bool(arguments.prompt or arguments.models)
    ranked = _chosen(diagnosis.ranking, arguments.row or 1) if arguments.row or is_asked else None
    only_json = arguments.json is not None and write_or_print_json(
        arguments.json, diagnosis_json(diagnosis) if ranked is None else ranked_json(diagnosis, ranked)
    )
    if not only_json:
        show("\n".join(diagnosis_lines(diagnosis) if ranked is None else row_lines(diagnosis, ranked)))
    print_problems(diagnosis.table.problems)
    if ranked is not None and is_asked:
        lines = _ask(arguments, diagnosis, ranked)
        if not only_json:
            show("\n".join(["", *lines]))
    return 1 if diagnosis.table.problems else 0


def _compare(arguments: argparse.Namespace, new: Diagnosis, old: Diagnosis) -> int:
    changes = compare_diagnoses(old, new)
    if not write_or_print_json(arguments.json, changes_json(changes)):
        if arguments.row:
            show("\n".join(kernel_change_lines(_chosen(changes.kernels, arguments.row))))
        else:
            show("\n".join(change_lines(changes, old, new)))
    problems = [*old.table.problems, *new.table.problems]
    print_problems(problems)
    return 1 if problems else 0


def _expect_together(arguments: argparse.Namespace) -> None:
    """Refuses arguments that lack others. Raises UsageError."""
    for place in (arguments.place, *([named_folder(arguments.against)] if arguments.against else [])):
        if not place.exists():
            raise UsageError(
                f"{place}: no such file or folder: name a capture, a database or a device{meant_device(place)}"
            )
    if arguments.against and (arguments.prompt or arguments.models):
        raise UsageError("--against compares, and --prompt and --models ask about one diagnosis: leave out one")
    if (arguments.models is None) != (arguments.output is None):
        raise UsageError("--models FILE and --output DIR belong together: give both, or none")
    if arguments.source is not None and not (arguments.prompt or arguments.models):
        raise UsageError("--source is the code of a prompt: give --prompt FILE or --models FILE, too")


def _chosen(ranking: Sequence[T], rank: int) -> T:
    if rank > len(ranking):
        has = pluralize(len(ranking), "kernel")
        raise UsageError(f"--row {rank}: the ranking has {has}: choose 1 to {len(ranking)}")
    return ranking[rank - 1]


def _ask(arguments: argparse.Namespace, diagnosis: Diagnosis, ranked: RankedKernel) -> list[str]:
    """Writes the prompt, asks the models, and returns lines about the files. Raises OpAtlasError."""
    source, suffix = "", ".py"
    if arguments.source is not None:
        source, suffix = _read_source(arguments.source), arguments.source.suffix
    folder = arguments.output or Path("my_kernels")
    interface = _interface(ranked.kernel_type, folder)
    prompt = prompt_text(diagnosis, ranked, interface=interface, source=source, source_suffix=suffix)
    lines = []
    if arguments.prompt is not None:
        write_text(arguments.prompt, prompt)
        lines.append(f"prompt     {arguments.prompt}")
    if arguments.models is not None:
        models = read_models(arguments.models).models
        if silent := [name for name, model in models.items() if not model.endpoint]:
            raise UsageError(f"{arguments.models}: {silent[0]} has no endpoint: add `endpoint: URL`")
        for name, model in models.items():
            endpoint = Endpoint(model.endpoint, model.api_key_variable)
            path = ask_for_candidate(
                endpoint, name, prompt, folder, ranked.kernel_type, source, max_tokens=model.max_tokens
            )
            lines.append(f"candidate  {path}")
        measure = f"opatlas bench --implementation {folder} --ops {ranked.kernel_type}"
        none = f"{ranked.kernel_type} has no replay: add one (docs/contributing.md)"
        lines.append(f"measure    {measure if interface else none}")
    return lines


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
        from opatlas.engine.kernel_template import template

        return template(folder, kernel_type, row)
    except (OpAtlasError, ReplayError, ImportError):
        # A kernel that several devices run together, a row that is not at hand, or no torch.
        return ""
