"""Shows the contents of a database: rows by kernel type and state, their quality, and the devices of their runs.

Without DB the default databases are listed, with --kernels the kernel types that have a replay.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from opatlas.checks.overview import KernelTypeOverview, Overview, read_overview
from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.cli.kernels import show_kernels
from opatlas.combine.row_devices import are_one_device
from opatlas.errors import UsageError
from opatlas.model.location import ROOT, list_databases
from opatlas.model.named_databases import expect_database, named_folder
from opatlas.model.quality import NOISE_LIMIT
from opatlas.store.database import Database
from opatlas.text import COLUMNS, align_numbers, percent_text, pluralize, print_problems, show, wrap

#: Room for the name of a kernel type; longer names get a line of their own.
_LEAST_NAME = 12
_DAY_S = 86400.0
_COMPOSED = "composed"
_NUMBERS = ("rows", "measured", _COMPOSED, "captured", "failed", "missing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done; 1 a file could not be read; 2 no such database"
    parser.add_argument(
        "database",
        type=named_folder,
        nargs="?",
        metavar="DB",
        help="folder of {KernelType}.csv files, or a device such as NVIDIA_H200 (default: the default databases of all "
        "devices are listed)",
    )
    parser.add_argument(
        "--kernels",
        nargs="*",
        metavar="NAME",
        help="list the kernel types that have a replay, with their NPU calls: all, or only those with NAME in "
        "their names, or of the family NAME (default: databases are shown)",
    )
    add_json(parser, "what is shown,")


def run(arguments: argparse.Namespace) -> int:
    """Prints the contents and returns the exit status that the help explains. Raises OpAtlasError."""
    path: Path | None = arguments.database
    if arguments.kernels is not None:
        if path is not None:
            raise UsageError(f"--kernels lists kernel types, and {path} is a database: leave one of them out")
        show_kernels(arguments.kernels, arguments.json)
        return 0
    if path is not None:
        expect_database(path)
        found = [read_overview(Database(path))]
        lines = list(_page(found[0]))
    else:
        found = [read_overview(Database(each)) for each in list_databases(ROOT)]
        none = f"no database below {ROOT}: `opatlas bench` makes one for this machine"
        lines = _list(found) if found else [wrap(none, indent=0)]
    content = [asdict(each) for each in found]
    if not write_or_print_json(arguments.json, content if path is None else content[0]):
        show("\n".join(lines))
    problems = [problem for each in found for problem in each.problems]
    print_problems(problems)
    return 1 if problems else 0


def _page(found: Overview) -> Iterable[str]:
    yield found.path
    facts = [
        ("device", found.folder or found.device or "not known"),
        ("replayed on", _counts(found.devices, "run")),
        ("captured on", _counts(found.captured_on, "ingest")),
        ("no answers", ", ".join(f"durations of {name}" for name in _others(found))),
        ("shipped", found.shipped),
        (
            "runs",
            ", ".join(filter(None, [pluralize(found.runs, "replay"), pluralize(found.ingests, "ingest"), _age(found)])),
        ),
        ("unmerged", pluralize(found.unmerged, "journal") if found.unmerged else ""),
        ("machines", ", ".join(f"{count:,} rows on {each}" for each, count in found.counts("machines").items())),
        ("compares", f"{', '.join(found.implementations)} (opatlas compare)" if found.implementations else ""),
        ("cache", _counts(found.counts("cache"))),
        ("instrument", _counts(found.counts("instrument"))),
        ("quality", _counts(found.counts("quality"))),
        ("status", _counts({status or "never run": count for status, count in found.counts("status").items()})),
    ]
    for name, text in facts:
        if text:
            yield textwrap.fill(text, COLUMNS, initial_indent=f"{name:12}", subsequent_indent=" " * 12)
    yield ""
    if not found.kernel_types:
        yield "no kernel types: `opatlas ingest` or `opatlas shapes` adds rows"
        return
    numbers = _shown([found])
    header = ("kernel type", *numbers, "noise", "noisy")
    rows = [_row(each, numbers) for each in found.kernel_types]
    total = [f"{found.total(what):,}" for what in numbers]
    noise = [each.noise for each in found.kernel_types if each.noise is not None]
    middle = _percent(median(noise) if noise else None)
    rows.append((pluralize(len(found.kernel_types), "kernel type"), *total, middle, f"{found.total('noisy'):,}"))
    yield from align_numbers([header, *rows], least=_LEAST_NAME)
    yield ""
    yield "noise: standard deviation / mean of a measured row, the median of all"
    if _COMPOSED in numbers:
        yield "composed: several torch operators were measured in place of the kernel"
    yield f"noisy: not quiet by its Quality; without one: noise over {percent_text(NOISE_LIMIT, 0)}"
    yield "missing: no duration; failed rows are among them"


def _others(found: Overview) -> list[str]:
    """Returns the devices of runs and captures that are not the one that answers."""
    names = [*found.captured_on, *(name.partition(" with ")[0].partition(" (")[0] for name in found.devices)]
    return [name for name in dict.fromkeys(names) if not are_one_device(name, found.device)]


def _shown(databases: Iterable[Overview]) -> list[str]:
    """Returns the numbers of a table of these databases: compositions only if there are some."""
    composed = any(each.total(_COMPOSED) for each in databases)
    return [what for what in _NUMBERS if composed or what != _COMPOSED]


def _row(each: KernelTypeOverview, numbers: Iterable[str]) -> tuple[str, ...]:
    return (
        each.kernel_type,
        *(f"{number:,}" if (number := getattr(each, what)) else "" for what in numbers),
        _percent(each.noise),
        str(each.noisy or ""),
    )


def _list(found: Sequence[Overview]) -> list[str]:
    shown = [what for what in _shown(found) if what != "failed"]
    header = ("database", *shown, "newest")
    rows = [
        (
            str(Path(each.path).relative_to(ROOT)),
            *(f"{each.total(what):,}" for what in shown),
            _day(each),
        )
        for each in found
    ]
    return [str(ROOT), *align_numbers([header, *rows])]


def _counts(counts: Mapping[str, int], unit: str = "") -> str:
    return ", ".join(
        f"{name} ({pluralize(count, unit)})" if unit else f"{name} {count:,}" for name, count in counts.items()
    )


def _percent(noise: float | None) -> str:
    return "" if noise is None else percent_text(noise)


def _day(found: Overview) -> str:
    """Returns the day of the newest run; "" without one."""
    return "" if found.last_run_at is None else time.strftime("%Y-%m-%d", time.gmtime(found.last_run_at))


def _age(found: Overview) -> str:
    if found.last_run_at is None:
        return ""
    days = int((time.time() - found.last_run_at) // _DAY_S)
    return f"{_day(found)} ({pluralize(days, 'day')} ago)" if days > 0 else f"{_day(found)} (today)"
