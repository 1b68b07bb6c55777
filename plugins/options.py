"""The options of `pytest bench/`: each is declared once, with its scope, help and default."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from opatlas.options import Option, Scope, add_all, at_least, declare, given, names, one_of, positive, reset, versions
from opatlas.row.status import UpdateMode
from opatlas.row.versions import Versions
from opatlas.run import collective_plan as collectives
from opatlas.run.devices.device import DeviceSpec, available_devices, device_kinds
from opatlas.run.group import JOIN_TIMEOUT_S, NODE_OPTIONS, NODES_JOIN_TIMEOUT_S
from opatlas.run.inputs import experts
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.msprof_sessions import METRICS
from opatlas.text import parse_whole

from .choice import Shard, parse_where
from .steps import read_choice

#: The original tool's environment variable for --repeat-count.
REPEAT_COUNT_VARIABLE = "MSMODELING_OP_REPLAY_REPEAT_COUNT"

#: Deadline of a row that ran before. The largest rows of real captures take tens of seconds a call on a slow CPU.
CASE_TIMEOUT_S = 300.0
#: Deadline of a row that never ran. Its first call may compile the kernel; caches keep the result for later sessions.
FIRST_CASE_TIMEOUT_S = 900.0
#: The instruments of each kind of device, the best one first.
_INSTRUMENTS = "; ".join(f"{name}: {', '.join(kind.instruments)}" for name, kind in device_kinds().items())


def _shard(text: str) -> Shard:
    index, count = (parse_whole(part) or 0 for part in text.partition("/")[::2])
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(f"{text!r}: give I/N with I from 1 to N, such as 2/8")
    return Shard(index, count)


def _loads(text: str) -> tuple[str, ...]:
    if wrong := [word for word in names(text) if experts.load_shares(word, 2, 1) is None]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r}: give random, or a power law such as 'power law 1.2'")
    return names(text)


class InstrumentChoice(NamedTuple):
    """The instrument, None for the best one, and the group of hardware counters that it records on an NPU."""

    name: str | None = None
    metrics: str = MeasureSettings.aic_metrics


def _instrument(text: str) -> InstrumentChoice:
    name, colon, metrics = text.partition(":")
    if not colon:
        return InstrumentChoice(name)
    if name != MSPROF:
        raise argparse.ArgumentTypeError(f"{text!r}: only {MSPROF} records counters")
    return InstrumentChoice(name, one_of(METRICS)(metrics))


DATABASE = (
    declare(
        "--database-path",
        Scope.ANY,
        metavar="DIR",
        help="folder of the {KernelType}.csv files (default: that of the device and versions, under database/data)",
    ),
    declare(
        "--device",
        Scope.ANY,
        metavar="NAME",
        help="a device by the name of its database folder, or by its kind: npu, cuda or cpu "
        "(default: the device at hand: NPUs, else GPUs, else the CPU)",
    ),
    declare(
        "--mixed",
        Scope.REPLAYS,
        action="store_true",
        help="mix durations with those of another device, other versions, another cache state or another instrument "
        "(default: refused, before anything runs)",
    ),
    declare(
        "--read-only",
        Scope.ANY,
        action="store_true",
        help="write nothing into the database's folder: only measure and compare with its durations, or say which "
        "theory rows would be added (default: all this is written)",
    ),
    declare(
        "--versions",
        Scope.ANY,
        type=versions,
        default=Versions(),
        metavar="vllm=V,torch=V,cann=V",
        help="versions of vllm-ascend, torch and CANN that name the database, or some of them; on GPUs and CPUs torch "
        "alone (default: the installed ones)",
    ),
)
ROWS = (
    declare(
        "--implementation",
        Scope.KERNELS,
        type=names,
        metavar="NAME[,NAME...]",
        default=(),
        help="measure these implementations on the rows of the database, each with a database of its own: names as "
        "`opatlas implementations` lists them, folders or files of your own, or all (default: torch, and on an NPU "
        "torch_npu)",
    ),
    declare(
        "--tasks",
        Scope.KERNELS,
        type=names,
        metavar="PATH[,PATH...]",
        default=(),
        help="measure tasks in place of the rows of a database: files or folders with classes Model, as KernelBench "
        "and AKG have them; --implementation names folders with candidates for them (default: rows of the database)",
    ),
    declare(
        "--models",
        Scope.KERNELS,
        type=Path,
        metavar="FILE",
        help="YAML file of models that write the candidates for --tasks, each measured as an implementation of its "
        "name: their endpoints, prices, language, attempts (default: no model writes any)",
    ),
    declare(
        "--suite",
        Scope.KERNELS,
        metavar="NAME",
        help="measure operators of torch in place of the rows of a database: opinfo for the samples of torch's own "
        "tests, traces for calls of models, or a file or folder with traces of your own; --implementation names "
        "folders with kernels for them (default: rows of the database)",
    ),
    declare(
        "--step",
        Scope.KERNELS,
        type=read_choice,
        action="append",
        metavar="MODEL,batch=N,context=N",
        help="measure some layers of a step of a model in place of the rows of a database, also with tp=, ep=, phase=, "
        "dtype=, layers= and launch=eager; --implementation is its stack; may be repeated (default: rows of the "
        "database)",
    ),
    declare(
        "--ops",
        Scope.ANY,
        type=names,
        metavar="TYPE[,TYPE...]",
        default=(),
        help="run only these kernel types, in any case and without version (rms_norm, matmul, attention), or these "
        "collectives, such as all_reduce (default: all; -k selects by part of a name)",
    ),
    declare(
        "--shard",
        Scope.REPLAYS,
        type=_shard,
        metavar="I/N",
        help="run part I of N of the rows; the part of a row depends on the row alone, and opatlas combine puts the "
        "parts together (default: all rows)",
    ),
    declare(
        "--update-mode",
        Scope.REPLAYS,
        choices=[mode.value for mode in UpdateMode],
        default=UpdateMode.ALL.value,
        help="all: run every row; unreplayed: run only rows without a replayed duration; missing-only: run only rows "
        "without any duration, replayed or captured; stale: run only rows whose replayed duration was measured by "
        "other code, another driver or other versions (default: %(default)s)",
    ),
    declare(
        "--where",
        Scope.ROWS,
        type=parse_where,
        metavar="EXPRESSION",
        help="run only rows for which an expression is true, such as 'M <= 64 and dtype == BF16' or "
        "'status in (failed, oom)' (default: all rows)",
    ),
    declare(
        "--prune-empty-duration-rows",
        Scope.REPLAYS,
        action="store_true",
        help="move rows that were run and still have no valid duration to pruned/ "
        "(default: keep them, with their status)",
    ),
)
MEASURING = (
    declare(
        "--repeat-count",
        Scope.RUNNING,
        type=at_least(1),
        metavar="N",
        help=f"number of samples of each row (default: at least 10 within {MeasureSettings.time_limit_s:g} s, more for "
        f"a noisy row; or the value of {REPEAT_COUNT_VARIABLE})",
    ),
    declare(
        "--cache",
        Scope.RUNNING,
        choices=("cold", "warm"),
        help="cold: flush the last-level cache before each sample; warm: do not (default: cold; for collectives warm, "
        "since their data was just written)",
    ),
    declare(
        "--instrument",
        Scope.RUNNING,
        type=_instrument,
        default=InstrumentChoice(),
        metavar="NAME[:COUNTERS]",
        help=f"what measures the durations; {_INSTRUMENTS}; and the group of hardware counters that msprof records: "
        f"{', '.join(METRICS)} (default: the best that the device offers, and {MeasureSettings.aic_metrics})",
    ),
    declare(
        "--case-timeout",
        Scope.RUNNING,
        type=positive,
        metavar="SECONDS",
        help="kill a row that takes longer "
        f"(default: {CASE_TIMEOUT_S:g}, and {FIRST_CASE_TIMEOUT_S:g} for a row that was never run before). A group of "
        f"devices may take as long to start, and at least {JOIN_TIMEOUT_S:g}, or {NODES_JOIN_TIMEOUT_S:g} with several "
        "nodes",
    ),
    declare(
        "--ray",
        Scope.KERNELS,
        metavar="ADDRESS",
        help="run the rows on all devices of a Ray cluster: HOST:PORT of its head, auto for that of this node, or "
        "local for one of this machine alone; rows that need several devices at once are skipped (default: on the "
        "devices of this machine, without Ray)",
    ),
    declare(
        "--in-process",
        Scope.KERNELS,
        action="store_true",
        help="run rows in pytest's own process, for profilers; a crash ends the session (default: in a device "
        "process, and with --pdb in pytest's own)",
    ),
    declare(
        "--prof-path",
        Scope.ROWS,
        type=Path,
        metavar="PATH",
        help="run no row, and read the samples from existing profiles: an op_summary*.csv file, a PROF_* folder of "
        "msprof, or a folder of these (default: rows are run)",
    ),
)
_theory = partial(declare, scope=Scope.THEORY)
#: The options of theory rows alone.
THEORY_ROWS = (
    _theory(
        "--target-models",
        type=names,
        metavar="MODEL[,MODEL...]",
        default=(),
        help="take shapes of these models only: names of built-in models, config.json files "
        "(default: the built-in models, and shapes of no model in particular)",
    ),
    _theory(
        "--calls",
        type=Path,
        metavar="FILE",
        help="add the rows of these calls alone: a JSON list of operators with their arguments, such as a test list "
        "of OperatorX (default: rows of the catalog's patterns)",
    ),
    _theory(
        "--expert-load",
        type=_loads,
        metavar="LOAD[,LOAD...]",
        default=("",),
        help="the rows of each expert in grouped products and expert parallelism: random, or a power law such as "
        "'power law 1.2', in turn (default: equally many)",
    ),
    _theory(
        "--rows",
        type=at_least(0),
        metavar="N",
        default=1000,
        help="the most theory rows of a kernel type; 0: the whole grid (default: %(default)s)",
    ),
    _theory(
        "--seed",
        type=at_least(0),
        metavar="N",
        default=0,
        help="the same seed draws the same rows, for a given version of hypothesis (default: %(default)s)",
    ),
    _theory(
        "--max-hbm-gb",
        type=positive,
        metavar="GB",
        default=32.0,
        help="leave out rows whose tensors, with the buffer that flushes the cache, need more memory, "
        "in 10^9 bytes (default: %(default)g)",
    ),
)
#: What takes the place of the original tool's options; those with the same name and meaning are not here.
ORIGINAL = {
    **dict.fromkeys(("--data-dir", "--output-dir", "--output-csv"), "--database-path"),
    **dict.fromkeys(("--kernel-list", "--op"), "--ops, with commas"),
    **{f"--{name}-version": f"--versions {name}=..." for name in ("vllm", "torch", "cann")},
    **{
        f"--dispatch-ffn-combine-{name}": f"--{name}"
        for name in ("ep-size", "nproc-per-node", "nnodes", "node-rank", "master-addr", "master-port")
    },
    **dict.fromkeys(("--do-run", "--execution-mode"), "nothing, since `pytest bench/` runs rows (--co lists them)"),
    "--bench-mode": "--instrument: msprof for kernel, npu-events for event",
    "--dtype": "--comm-dtype",
}


class _Original(argparse.Action):
    """Refuses an option of the original tool with what takes its place."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, name: str | None = None
    ) -> None:
        parser.error(f"{name} is the original tool's, here: {ORIGINAL[name or '']} (docs/bench.md)")


#: The original's name of -x.
FAIL_FAST = declare("--fail-fast", Scope.ANY, action="store_const", const=1, dest="maxfail", help=argparse.SUPPRESS)
#: The groups of pytest's help, by their titles.
_GROUPS = {
    "OpAtlas: the database, and the device": DATABASE,
    "OpAtlas: which rows are run, and what happens to them": ROWS,
    "OpAtlas: how a row is measured": MEASURING,
    "Nodes: where the groups of several devices run": NODE_OPTIONS,
    "Expert parallelism: kernels that several devices run together": experts.OPTIONS,
    "Collectives: the messages and groups that bench/test_collectives.py measures": collectives.OPTIONS,
}
_THEORY_TITLE = "OpAtlas theory rows: what `pytest shapes/` adds to a database"
#: All options of a session of replays, those of groups and of collectives included.
OPTIONS = tuple(chain(*_GROUPS.values()))


class DeviceHook:
    """The hook that OpAtlas adds to pytest's, for a conftest.py or another plugin to implement."""

    @pytest.hookspec(firstresult=True)
    def pytest_opatlas_devices(self, config: pytest.Config) -> Sequence[DeviceSpec] | None:
        """Returns the devices that rows are replayed on, one process each; None leaves the choice to OpAtlas.

        The `opener` of a spec opens a device of your own (opatlas/run/devices/device.py has the Protocol). Where
        `config.option.device` is not None, it must be the kind or the name of each spec. pytest calls the hook before
        and after it is configured, in every process of a session, and the result must be the same each time. Do not
        import torch here.
        """


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(DeviceHook)


@pytest.hookimpl(trylast=True)
def pytest_opatlas_devices(config: pytest.Config) -> list[DeviceSpec]:
    """Returns the devices of this machine. A conftest.py with other devices is asked first (trylast)."""
    if config.option.ray is not None:
        # The hosts of the cluster have the devices, and this machine may have none.
        return []
    return available_devices(config.option.device)


def pytest_addoption(parser: pytest.Parser) -> None:
    for title, options in _GROUPS.items():
        add_all(parser.getgroup(title, title), options)
    add_all(parser.getgroup(_THEORY_TITLE, _THEORY_TITLE), THEORY_ROWS)
    add_all(parser.getgroup("general", "General"), [FAIL_FAST])
    for name in ORIGINAL:
        hidden = {"action": _Original, "nargs": "*", "help": argparse.SUPPRESS, "dest": "original"}
        parser.getgroup("general", "General").addoption(name, **hidden)


def refuse(config: pytest.Config, options: Sequence[Option], why: str, also: Sequence[str] = ()) -> None:
    """Refuses options that have no effect in a session, where its command line has them.

    pytest.ini (`addopts`) and PYTEST_ADDOPTS give options to sessions of all kinds: there they get their defaults.

    Args:
        also: further words of the command line without an effect.

    Raises:
        pytest.UsageError: the command line has such options.
    """
    if useless := [*also, *given(config.invocation_params.args, options)]:
        raise pytest.UsageError(f"{why}: leave out {', '.join(useless)}")
    reset(config.option, options)


def outside(options: Sequence[Option], scope: Scope) -> list[Option]:
    """Returns the options that have no effect in a session of a kind."""
    return [each for each in options if scope not in each.scope]


def named(*names: str) -> list[Option]:
    """Returns options of a session of replays by name."""
    return [each for each in OPTIONS if each.name in names]


def refuse_useless_versions(config: pytest.Config) -> None:
    """Refuses --versions beside --database-path. Raises pytest.UsageError."""
    if config.option.database_path:
        refuse(config, named("--versions"), "--database-path names the folder, whatever the versions")


#: The kinds of session that each command starts; options without an effect in them are not shown.
SCOPES = {"bench": Scope.ROWS, "collectives": Scope.COLLECTIVES, "shapes": Scope.THEORY}


def help_of(command: str, about: str) -> str:
    """Returns the help of `opatlas bench`, `opatlas collectives` or `opatlas shapes`."""
    parser = argparse.ArgumentParser(
        add_help=False,
        prog=f"opatlas {command}",
        usage=f"opatlas {command} [OPTION ...] [OPTION OF PYTEST ...]",
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="pytest's own options hold, too, such as -k, -x, -v, --lf and --junitxml: `pytest --help` lists them. "
        "--strict, one of them, also fails rows that an earlier session ran and failed to measure.",
    )
    for title, options in {**_GROUPS, _THEORY_TITLE: THEORY_ROWS}.items():
        group: Any = parser.add_argument_group(title)
        group.addoption = group.add_argument
        add_all(group, [each for each in options if each.scope & SCOPES[command]])
    return parser.format_help()
