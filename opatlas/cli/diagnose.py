"""Tells why kernels are slow, and what to do: of a capture, or of the rows of a database.

Each kernel gets verdicts by rules of msprof, msprof-analyze and msopprof, with the cells that they come from. The
ranking is by time lost: duration x (1 - share of the roofline).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from opatlas.cli.arguments import write_or_print_json
from opatlas.diagnosis.diagnosis import Diagnosis, RankedKernel, diagnose
from opatlas.diagnosis.peaks import read_peaks
from opatlas.diagnosis.text import diagnosis_json, diagnosis_lines, ranked_json, row_lines
from opatlas.errors import UsageError, usage_errors
from opatlas.model.named_databases import named_folder
from opatlas.options import at_least
from opatlas.text import pluralize, print_problems, show


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
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the verdicts and the whole ranking; - for the terminal, and nothing else there (default: not "
        "written)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the diagnosis, and returns the exit status that the help explains. Raises OpAtlasError."""
    peaks = read_peaks(arguments.peaks) if arguments.peaks else None
    with usage_errors():
        if not arguments.place.exists():
            raise UsageError(f"{arguments.place}: no such file, folder or device: name a capture or a database")
    diagnosis = diagnose(arguments.place, peaks)
    ranked = _chosen(diagnosis, arguments.row) if arguments.row else None
    content = diagnosis_json(diagnosis) if ranked is None else ranked_json(diagnosis, ranked)
    if not write_or_print_json(arguments.json, content):
        show("\n".join(diagnosis_lines(diagnosis) if ranked is None else row_lines(diagnosis, ranked)))
    print_problems(diagnosis.table.problems)
    return 1 if diagnosis.table.problems else 0


def _chosen(diagnosis: Diagnosis, rank: int) -> RankedKernel:
    ranking = diagnosis.ranking
    if rank > len(ranking):
        raise UsageError(
            f"--row {rank}: the ranking has {pluralize(len(ranking), 'kernel')}: choose 1 to {len(ranking)}"
        )
    return ranking[rank - 1]
