"""The command-line options of `pytest bench/`, each defined once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.devices.at_hand import devices_at_hand
from bench.instruments import OFFERED
from bench.job import DeviceSpec
from bench.msprof.command import METRICS
from database.merge import UpdateMode
from database.option_types import at_least, positive
from plugins import newhooks
from plugins.plan import GIVEN_UP_AFTER, Shard

#: The older tool's environment variable for --repeat-count.
REPEAT_COUNT_VARIABLE = "MSMODELING_OP_REPLAY_REPEAT_COUNT"

_DEFAULT_TIME_LIMIT_S = 5.0
#: Long enough for the largest rows of real captures on a slow CPU (tens of seconds a call).
CASE_TIMEOUT_S = 300.0
#: A kernel may be compiled when it is first called with a shape, and caches keep the result.
FIRST_CASE_TIMEOUT_S = 900.0
#: A profile of so many rows is parsed in seconds; starting the next process costs some twenty.
_MSPROF_ROWS = 200

#: Options that say how rows are run, with what they are where they are not given.
OF_RUNNING: Mapping[str, object] = {
    "--in-process": False,
    "--instrument": None,
    "--repeat-count": None,
    "--cache": None,
    "--time-limit": _DEFAULT_TIME_LIMIT_S,
    "--case-timeout": None,
    "--threads": None,
    "--msprof-rows": _MSPROF_ROWS,
    "--aic-metrics": METRICS[0],
}
#: Options that mean something on NPUs alone.
OF_NPUS: Mapping[str, object] = {
    "--vllm-version": None,
    "--cann-version": None,
    "--msprof-rows": _MSPROF_ROWS,
    "--aic-metrics": METRICS[0],
}
#: OF_RUNNING, and those that say which rows are run and what becomes of them.
OF_REPLAYS: Mapping[str, object] = {
    **OF_RUNNING,
    "--prof-path": None,
    "--shard": None,
    "--update-mode": UpdateMode.ALL.value,
    "--retry-failed": False,
    "--wait": 0.0,
    "--prune-empty-duration-rows": False,
}


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(newhooks)


@pytest.hookimpl(trylast=True)
def pytest_opatlas_devices(config: pytest.Config) -> list[DeviceSpec]:
    """Trylast: a conftest.py that knows other devices is asked first."""
    return devices_at_hand(config.option.device)


def pytest_addoption(parser: pytest.Parser) -> None:
    database = parser.getgroup("opatlas", "OpAtlas: the database, and the device")
    database.addoption(
        "--database-path",
        metavar="DIR",
        help="folder of the {KernelType}.csv files (default: that of the device and versions, under database/data)",
    )
    database.addoption(
        "--device",
        metavar="NAME",
        help="a device by the name of its database folder, or 'npu', 'cuda' or 'cpu' "
        "(default: the device at hand: NPUs, else GPUs, else the CPU)",
    )
    database.addoption(
        "--vllm-version",
        metavar="V",
        help="vllm-ascend version of an NPU's database; a CPU's has none (default: the installed one)",
    )
    database.addoption(
        "--torch-version", metavar="V", help="torch version of the database (default: the installed one)"
    )
    database.addoption(
        "--cann-version",
        metavar="V",
        help="CANN version of an NPU's database; a CPU's has none (default: the installed one)",
    )
    rows = parser.getgroup("opatlas-rows", "OpAtlas: which rows are run, and what becomes of them")
    rows.addoption(
        "--ops",
        metavar="TYPE[,TYPE...]",
        default="",
        help="run only these kernel types, named exactly (default: all; -k selects by part of a name)",
    )
    rows.addoption(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="run part I of N of the rows, the same part on every machine, whatever other rows come and go; "
        "python -m database merge joins the parts (default: all rows)",
    )
    rows.addoption(
        "--update-mode",
        choices=[mode.value for mode in UpdateMode],
        default=UpdateMode.ALL.value,
        help="all: run every row; missing-only: run only rows without a valid duration (default: %(default)s)",
    )
    rows.addoption(
        "--retry-failed",
        action="store_true",
        help=f"run rows again that crashed or timed out in {GIVEN_UP_AFTER} sessions in a row "
        "(default: they are xfail and not run)",
    )
    rows.addoption(
        "--prune-empty-duration-rows",
        action="store_true",
        help="move rows that were run and still have no valid duration to pruned/ "
        "(default: keep them, with their status)",
    )
    rows.addoption(
        "--fail-fast", action="store_const", const=1, dest="maxfail", help="stop at the first failure (the same as -x)"
    )
    rows.addoption(
        "--wait",
        type=positive,
        default=0.0,
        metavar="SECONDS",
        help="wait so long for another session that has the database (default: do not wait)",
    )
    measuring = parser.getgroup("opatlas-measuring", "OpAtlas: how a row is measured")
    measuring.addoption(
        "--repeat-count",
        type=at_least(1),
        metavar="N",
        help="samples of each row (default: as many as its noise asks for, at least 10 where --time-limit lets it; "
        f"or what {REPEAT_COUNT_VARIABLE} says)",
    )
    measuring.addoption(
        "--time-limit",
        type=positive,
        default=_DEFAULT_TIME_LIMIT_S,
        metavar="SECONDS",
        help="end the sampling of a row after this time, without --repeat-count (default: %(default)g)",
    )
    measuring.addoption(
        "--cache",
        choices=("cold", "warm"),
        help="cold: flush the last-level cache before each sample; warm: do not (default: cold; of collectives, whose "
        "data was written just before, warm)",
    )
    measuring.addoption(
        "--instrument",
        metavar="NAME",
        help=f"what takes the durations; {_instruments()} (default: the best that the device offers)",
    )
    measuring.addoption(
        "--aic-metrics",
        choices=METRICS,
        default=METRICS[0],
        metavar="GROUP",
        help=f"the hardware counters that an NPU's profilers record: {', '.join(METRICS)} (default: %(default)s)",
    )
    measuring.addoption(
        "--msprof-rows",
        type=at_least(1),
        default=_MSPROF_ROWS,
        metavar="N",
        help="with --instrument msprof: rows of one profiling session, whose durations are known at its end "
        "(default: %(default)s)",
    )
    measuring.addoption(
        "--case-timeout",
        type=positive,
        metavar="SECONDS",
        help="kill a row that is not done after this time, whatever it hangs in "
        f"(default: {CASE_TIMEOUT_S:g}, and {FIRST_CASE_TIMEOUT_S:g} for a row that was never run before)",
    )
    measuring.addoption(
        "--threads", type=at_least(1), metavar="N", help="CPU threads of torch (default: one per available core)"
    )
    measuring.addoption(
        "--in-process",
        action="store_true",
        help="run rows in pytest's own process, for --pdb and profilers: a crash ends the session "
        "(default: in a device process)",
    )
    measuring.addoption(
        "--prof-path",
        type=Path,
        metavar="PATH",
        help="start nothing, and take the samples from profiles that are there: an op_summary*.csv file, a PROF_* "
        "folder of msprof, or a folder of them (default: rows are run)",
    )


def given(option: argparse.Namespace, defaults: Mapping[str, object]) -> list[str]:
    """Those options, of some with their defaults, that the user has set to something else."""
    return [
        name
        for name, default in defaults.items()
        if getattr(option, name.removeprefix("--").replace("-", "_"), default) != default
    ]


def refuse(useless: Sequence[str], why: str) -> None:
    """Raises pytest.UsageError where options were given that would do nothing."""
    if useless:
        raise pytest.UsageError(f"{why}: leave out {', '.join(useless)}")


def _instruments() -> str:
    """What each kind of device offers, the best one first."""
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in OFFERED.items())


def _shard(text: str) -> Shard:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: give I/N with I from 1 to N, such as 2/8")
    return Shard(int(index), int(count))
