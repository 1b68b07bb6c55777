"""The command-line options of `pytest bench/`, each defined once, and what they come to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.collectives import options as collectives
from bench.collectives.options import Wanted
from bench.devices.at_hand import database_name, devices_at_hand, npus_present
from bench.instruments import MSPROF, OFFERED, choose
from bench.job import DeviceSpec, MeasureSettings
from bench.msprof.command import METRICS
from bench.profiles.marks import MOST_ROWS
from database.layout import DEFAULT_NPU_DEVICE, communication_path, default_path, kind_of
from database.merge import UpdateMode
from database.option_types import at_least, positive
from database.versions import CANN, TORCH, VLLM, Versions, detect, version_key
from plugins import newhooks
from plugins.plan import GIVEN_UP_AFTER, Shard

#: The older tool's environment variable for --repeat-count.
REPEAT_COUNT_VARIABLE = "MSMODELING_OP_REPLAY_REPEAT_COUNT"

_DEFAULT_TIME_LIMIT_S = 5.0
#: Long enough for the largest rows of real captures on a slow CPU (tens of seconds a call).
_CASE_TIMEOUT_S = 300.0
#: A kernel may be compiled when it is first called with a shape, and caches keep the result.
_FIRST_CASE_TIMEOUT_S = 900.0
#: A profile of so many rows is parsed in seconds; starting the next process costs some twenty.
_MSPROF_ROWS = 200

#: Options that say how rows are run, with what they are where they are not given.
_OF_RUNNING: Mapping[str, object] = {
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
#: _OF_RUNNING, and those that say which rows are run and what becomes of them.
OF_REPLAYS: Mapping[str, object] = {
    **_OF_RUNNING,
    "--prof-path": None,
    "--shard": None,
    "--update-mode": UpdateMode.ALL.value,
    "--retry-failed": False,
    "--wait": 0.0,
    "--prune-empty-duration-rows": False,
}


@dataclass(frozen=True)
class Settings:
    """What the options of a session come to.

    Attributes:
        database: directory of the CSVs.
        devices: the devices that rows are replayed on; with prof_path, the one that was profiled.
        mode, prune: how durations are written back.
        ops: the only kernel types to run; empty: all.
        shard: the part of the rows to run, and of how many; None: all of them.
        retry_failed: run rows again that crashed or timed out in two sessions in a row.
        prof_path: profiles that rows are looked up in instead of being run; None: they are run.
        measure: how a row is measured.
        case_timeout_s: deadline of a row in the device process; None: by whether it ran before.
        wait_s: how long to wait for another session that has the database.
        msprof_rows: the most rows of one msprof session; None where msprof is not the instrument.
        in_process: run the bodies of replays in pytest itself.
        collect_only: nothing is to be written.
        file_names: of CSVs that are not named for their kernel type, by that.
        messages: what a session that measures communication is to measure; None: it replays rows.
        note: what the user should know of the choice of the database; "" mostly.
    """

    database: Path
    devices: tuple[DeviceSpec, ...]
    mode: UpdateMode
    prune: bool
    ops: frozenset[str]
    shard: Shard | None
    retry_failed: bool
    prof_path: Path | None
    measure: MeasureSettings
    case_timeout_s: float | None
    wait_s: float
    msprof_rows: int | None
    in_process: bool
    collect_only: bool
    file_names: Mapping[str, str] = field(default_factory=dict)
    messages: Wanted | None = None
    note: str = ""

    @property
    def rows_at_once(self) -> int:
        """How many rows the instrument measures before it tells any duration."""
        return self.msprof_rows or 1

    def timeout_s(self, *, first_run: bool) -> float:
        """The deadline of a row."""
        return self.case_timeout_s or (_FIRST_CASE_TIMEOUT_S if first_run else _CASE_TIMEOUT_S)


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
        f"(default: {_CASE_TIMEOUT_S:g}, and {_FIRST_CASE_TIMEOUT_S:g} for a row that was never run before)",
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


def settings_of(config: pytest.Config) -> Settings:
    """The settings of a session.

    Raises:
        OpAtlasError: a device that cannot be replayed on, an instrument that it does not offer, or versions
            that cannot be detected.
        pytest.UsageError: options that contradict each other.
    """
    option = config.option
    communicates = collectives.are_asked_for(config)
    if communicates:
        _expect_ranks(option)
    else:
        refuse(given(option, collectives.DEFAULTS), f"only bench/{collectives.MODULE} measures collectives")
    if option.prof_path is not None:
        _expect_nothing_to_run(config)
        devices = _profiled_devices(option.device, option.database_path)
    else:
        devices = config.hook.pytest_opatlas_devices(config=config)
    if option.in_process and is_distributed(config):
        raise pytest.UsageError("--in-process runs rows in one process: leave out -n")
    if option.in_process and option.case_timeout:
        raise pytest.UsageError("--in-process cannot end a row that hangs: leave out --case-timeout")
    if option.usepdb and not option.in_process:
        raise pytest.UsageError("--pdb cannot reach into the device process: add --in-process")
    kinds = {device.kind for device in devices} if option.prof_path is None else set()
    instruments = {choose(kind, option.instrument) for kind in kinds & OFFERED.keys()}
    if option.prof_path is None and "npu" not in kinds:
        refuse(given(option, OF_NPUS), f"rows are replayed on {devices[0]}, which is no NPU")
    if MSPROF in instruments and option.in_process:
        raise pytest.UsageError("--in-process cannot run under msprof: choose another --instrument")
    if option.msprof_rows > MOST_ROWS:
        raise pytest.UsageError(f"--msprof-rows {option.msprof_rows}: a profile tells at most {MOST_ROWS} rows apart")
    file_names: Mapping[str, str] = {}
    note = ""
    if communicates:
        database, file_names = collectives.output_of(option, lambda: _communication_database(option, devices))
    elif option.database_path:
        database = Path(option.database_path)
    else:
        versions = detect(vllm=option.vllm_version, torch=option.torch_version, cann=option.cann_version)
        if option.prof_path is not None:
            note = _of_this_machine(option, versions)
        elif not option.collectonly:
            _expect_installed(versions)
        database = default_path(database_name(devices), versions)
    return Settings(
        database=database.absolute(),
        devices=tuple(devices),
        mode=UpdateMode(option.update_mode),
        prune=option.prune_empty_duration_rows,
        ops=frozenset(name.strip() for name in option.ops.split(",") if name.strip()),
        shard=option.shard,
        # What crashed on a device costs nothing to look up.
        # Nodes must run the same messages, whatever each of them remembers.
        retry_failed=option.retry_failed or option.prof_path is not None or (communicates and option.nnodes > 1),
        prof_path=option.prof_path.absolute() if option.prof_path is not None else None,
        measure=MeasureSettings(
            repeat_count=option.repeat_count or _repeat_count_of_environment(),
            cache=option.cache or ("warm" if communicates else "cold"),
            time_limit_s=option.time_limit,
            threads=option.threads,
            instrument=collectives.instrument_of(option, devices[0].kind) if communicates else option.instrument,
            aic_metrics=option.aic_metrics,
        ),
        case_timeout_s=option.case_timeout,
        wait_s=option.wait,
        msprof_rows=option.msprof_rows if MSPROF in instruments and not communicates else None,
        in_process=option.in_process,
        collect_only=option.collectonly,
        file_names=file_names,
        messages=collectives.wanted_of(option, devices) if communicates else None,
        note=note,
    )


def _of_this_machine(option: argparse.Namespace, versions: Versions) -> str:
    """Which of the versions that name a database of profiles are only those of the software that is installed here."""
    given = {VLLM: option.vllm_version, TORCH: option.torch_version, CANN: option.cann_version}
    here = [component for component, version in given.items() if not version]
    if not here:
        return ""
    names = ", ".join(f"{component.name} {getattr(versions, component.field)}" for component in here)
    return f"{names} as on this machine: where others were profiled, give {', '.join(c.option for c in here)}"


def _communication_database(option: argparse.Namespace, devices: Sequence[DeviceSpec]) -> Path:
    """Raises OpAtlasError where a version that names it is not known, or not the installed one."""
    if not option.collectonly:
        _expect_installed(detect(torch=option.torch_version, cann=option.cann_version))
    name = database_name(devices)
    return communication_path(name, collectives.communication_version(devices, name, option))


def _expect_ranks(option: argparse.Namespace) -> None:
    """Collectives run in the ranks of a group: what says how one process is to run rows has no meaning."""
    of_one_process = {"--in-process": False, "--prof-path": None, "--instrument": None, "--vllm-version": None}
    refuse(
        given(option, of_one_process),
        f"{collectives.MODULE} runs in groups of processes, and --bench-mode chooses the instrument",
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


def _expect_nothing_to_run(config: pytest.Config) -> None:
    """--prof-path takes samples as they are: what says how rows are to be run has no meaning."""
    workers = ["-n"] if is_distributed(config) else []
    refuse(workers + given(config.option, _OF_RUNNING), "--prof-path runs no row")


def _profiled_devices(name: str | None, database: str | None) -> list[DeviceSpec]:
    """The NPU whose profiles --prof-path names; it need not be at hand. msprof profiles nothing else."""
    if name not in (None, "npu"):
        if kind_of(name) != "npu":
            raise pytest.UsageError(f"--prof-path reads profiles of an NPU, and --device {name} is none")
        return [DeviceSpec("npu", name=name)]
    if npus_present():
        return devices_at_hand("npu")
    if not database:
        raise pytest.UsageError(
            f"--prof-path: name the NPU that was profiled with --device ({DEFAULT_NPU_DEVICE}, ...), "
            f"or its database with --database-path"
        )
    return [DeviceSpec("npu")]


def _expect_installed(versions: Versions) -> None:
    """What the installed software measures must not be filed under another version."""
    installed = detect()
    for component in (VLLM, TORCH, CANN):
        given, here = getattr(versions, component.field), getattr(installed, component.field)
        if given and here and version_key(given) != version_key(here):
            raise pytest.UsageError(
                f"{component.option} {given}: rows would be measured with the installed {component.name} {here}; "
                f"leave it out, or name a database with --database-path"
            )


def is_distributed(config: pytest.Config) -> bool:
    """Whether rows run in xdist's workers."""
    return hasattr(config, "workerinput") or bool(config.getoption("tx", None))


def _repeat_count_of_environment() -> int | None:
    text = os.environ.get(REPEAT_COUNT_VARIABLE, "")
    if not text:
        return None
    try:
        return at_least(1)(text)
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"{REPEAT_COUNT_VARIABLE}={error}, or unset it") from None


def _shard(text: str) -> Shard:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: give I/N with I from 1 to N, such as 2/8")
    return Shard(int(index), int(count))
