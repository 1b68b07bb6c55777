"""The options of `pytest bench/test_collectives.py`, and the plan of groups and messages that they name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opatlas.errors import OpAtlasError
from opatlas.options import ListAction, Scope, at_least, between, declare, items_of, one_of
from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import BY_NAME, TIERS, Collective
from opatlas.row.slots import known_dtype
from opatlas.row.status import UpdateMode
from opatlas.row.versions import Versions, kind_of
from opatlas.run.collectives.topology import Grid, ImpossibleGroup, default_grid, message_group
from opatlas.run.devices.device import DeviceSpec, Islands
from opatlas.run.group import communication_variables, node_options_problem
from opatlas.run.groups.pool import GroupNodes
from opatlas.text import suggest

if TYPE_CHECKING:
    import pytest

MODULE = "test_collectives.py"
#: Names of dtypes in torch, and in the CSVs of HCCL.
DTYPES: Mapping[str, str] = {
    "bfloat16": "DT_BF16",
    "float16": "DT_FLOAT16",
    "float32": "DT_FLOAT",
    "int8": "DT_INT8",
}
_SMALLEST, _LARGEST, _LARGEST_ON_CPU = 1 << 10, 512 << 20, 16 << 20


def _usage_error(message: str) -> Exception:
    """Returns pytest's error; pytest is imported here, because `opatlas ingest` works without it."""
    import pytest

    return pytest.UsageError(message)


def _several(read: Callable[[str], Any], metavar: str) -> Mapping[str, Any]:
    """Returns the argparse keywords of an option that takes several values, separated by commas or blanks."""
    return {
        "nargs": "+",
        "action": ListAction,
        "type": items_of(read),
        "metavar": (f"{metavar}[,{metavar}...]", metavar),
    }


#: The options of the collectives alone.
OPTIONS = (
    declare(
        "--grid-shape",
        Scope.COLLECTIVES,
        **_several(at_least(1), "N"),
        help="the grid of the devices of all nodes: number of places in each dimension, outermost first "
        "(default: 48,8,2 on an A3, 128,8 on an A2, elsewhere by nodes and NVLink)",
    ),
    declare(
        "--num-devices",
        Scope.COLLECTIVES,
        **_several(at_least(2), "N"),
        help="sizes of the groups to measure (default: 16 on an A3, 2 on a CPU, all devices elsewhere)",
    ),
    declare(
        "--topology-tier",
        Scope.COLLECTIVES,
        type=between(min(TIERS), max(TIERS)),
        choices=list(TIERS),
        help="the outermost dimension of the grid in which the devices of a group differ: "
        f"{', '.join(f'{tier} {name}' for tier, name in TIERS.items())} "
        "(default: that of neighbours; with several nodes 0)",
    ),
    declare(
        "--comm-dtype",
        Scope.COLLECTIVES,
        **_several(one_of(DTYPES), "DTYPE"),
        default=["bfloat16"],
        help=f"dtypes of the messages: {', '.join(DTYPES)} (default: bfloat16)",
    ),
    declare(
        "--bytes-grid",
        Scope.COLLECTIVES,
        **_several(at_least(1), "BYTES"),
        help="sizes of the messages, rounded up to whole elements, as many for each device (default: powers of two "
        "from 1 KiB to 512 MiB, on a CPU to 16 MiB)",
    ),
)


@dataclass(frozen=True)
class CollectivePlan:
    """The messages that a session measures.

    Attributes:
        rows: cells of the messages, by kernel type, ordered by groups.
        options: the options of pytest, with the grid that is used.
        about: lines for the user on the grid, the environment and left out groups.
    """

    rows: Mapping[str, Sequence[Mapping[str, str]]]
    options: argparse.Namespace
    about: Sequence[str]


def are_named(config: pytest.Config) -> bool:
    """Returns whether the command line names the file of collectives, which is not collected otherwise.

    Raises:
        pytest.UsageError: the command line names other files too.
    """
    named = [Path(argument.partition("::")[0]).name == MODULE for argument in config.args]
    if any(named) and not all(named):
        raise _usage_error(f"{MODULE} has a database of its own: name it alone, and run the others after it")
    return any(named)


def named_collectives(ops: Sequence[str]) -> Sequence[Collective]:
    """Returns the collectives that --ops names by torch's name or by kernel type; all collectives without --ops.

    Raises:
        pytest.UsageError: no collective has a name.
    """
    known = {name: each for each in BY_NAME.values() for name in (each.name, each.kernel_type)}
    if unknown := [name for name in ops if name not in known]:
        raise _usage_error(
            f"--ops {','.join(unknown)}: unknown collective{suggest(unknown[0], known)}; give one or several of "
            f"{', '.join(BY_NAME)}"
        )
    return list(dict.fromkeys(known[name] for name in ops)) or list(BY_NAME.values())


def collective_plan(option: Any, nodes: GroupNodes, islands: Islands | None = None) -> CollectivePlan:
    """Returns the messages that the options name, for groups on some nodes.

    Args:
        option: the options of pytest.
        nodes: the nodes of the groups.
        islands: the NVLink islands of a node's GPUs; None: those of this machine are used.

    Raises:
        pytest.UsageError: options contradict each other, the grid has too many dimensions or holds no group, or, with
            --strict, not all groups.
    """
    _check_nodes(option)
    collectives = named_collectives(option.ops)
    guessed = default_grid(nodes.devices, len(nodes.places), nodes.hosts or option.nnodes, islands)
    sizes = list(dict.fromkeys(option.num_devices or guessed.num_devices))
    try:
        grid = Grid(tuple(option.grid_shape)) if option.grid_shape else guessed.grid_for(max(sizes))
    except ImpossibleGroup as error:
        raise _usage_error(f"--grid-shape {error}") from None
    about = [f"grid {grid}" if option.grid_shape else f"grid {Grid(guessed.shape)}: {guessed.why}"]
    variables = [f"{name}={value}" for name, value in communication_variables().items()]
    about += [f"environment: {' '.join(variables)}"] if variables else []
    options = argparse.Namespace(**{**vars(option), "grid_shape": list(grid.shape)})
    rows: dict[str, list[Mapping[str, str]]] = {each.kernel_type: [] for each in collectives}
    no_group: list[str] = []
    for size in sizes:
        try:
            members = grid.group(size, _tier(option))
        except ImpossibleGroup as error:
            no_group.append(f"--num-devices {size}: {error}")
            continue
        tier = grid.tier_of(members)
        spec = message_group({NUM_DEVICES: str(size), TOPOLOGY_TIER: str(tier)}, options)
        reason = nodes.placement_problem(nodes.placed(spec))
        if reason and option.strict:
            raise _usage_error(f"--strict: --num-devices {size} {reason}: name fewer, or leave out --strict")
        for collective in collectives:
            for dtype in dict.fromkeys(option.comm_dtype):
                sent = _round_up(collective, size, dtype, _sizes(option, nodes.devices))
                # Two sizes that are rounded up to the same size are one message.
                rows[collective.kernel_type] += [
                    {MESSAGE_BYTES: str(count), NUM_DEVICES: str(size), DTYPE: DTYPES[dtype], TOPOLOGY_TIER: str(tier)}
                    for count in dict.fromkeys(sent)
                ]
    if no_group and (option.strict or len(no_group) == len(sizes)):
        raise _usage_error(f"{'; '.join(no_group)}: change --num-devices, --topology-tier or --grid-shape")
    return CollectivePlan(rows, options, [*about, *(f"left out: {reason}" for reason in no_group)])


def _tier(option: Any) -> int | None:
    """Returns the requested tier; by default a group of several nodes spans the nodes."""
    tier: int | None = option.topology_tier
    return 0 if tier is None and option.nnodes > 1 else tier


def _sizes(option: Any, devices: Sequence[DeviceSpec]) -> Sequence[int]:
    """Returns the requested sizes of messages, in bytes."""
    if option.bytes_grid:
        return list(option.bytes_grid)
    largest = _LARGEST_ON_CPU if devices[0].kind == "cpu" else _LARGEST
    return [1 << power for power in range(_SMALLEST.bit_length() - 1, largest.bit_length())]


def _round_up(collective: Collective, size: int, dtype: str, wanted_bytes: Sequence[int]) -> list[int]:
    """Returns the size that is sent for each requested size, in bytes."""
    known = known_dtype(DTYPES[dtype])
    assert known is not None
    return [collective.message_bytes(wanted, size, known.bytes) for wanted in wanted_bytes]


def _check_nodes(option: Any) -> None:
    """Raises pytest.UsageError if the options of nodes contradict each other, or --update-mode."""
    if problem := node_options_problem(option):
        raise _usage_error(problem)
    if option.nnodes > 1 and option.update_mode != UpdateMode.ALL.value:
        raise _usage_error(
            f"--nnodes {option.nnodes}: all nodes must run the same messages, but their databases may lack different "
            "messages: leave out --update-mode"
        )


def communication_version(name: str, versions: Versions) -> str:
    """Returns the version of the library that carries messages between devices.

    Args:
        name: database name of the devices.

    Raises:
        OpAtlasError: the version is not detected.
    """
    component = kind_of(name).communication_named_by
    version: str | None = getattr(versions, component.field)
    if version is None:
        raise OpAtlasError(
            f"the version of {component.name} could not be detected: name the folder with --database-path"
        )
    return version
