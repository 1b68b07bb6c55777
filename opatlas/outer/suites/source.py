"""--suite: operators of torch with the samples of a suite, which fill a database (docs/candidates.md)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from opatlas.data.database import Database
from opatlas.data.row_copy import add_rows
from opatlas.outer.suites.listing import suite_name, suite_rows
from opatlas.outer.suites.score import read_score
from opatlas.outer.suites.texts import folder_of
from opatlas.row.location import default_database_of, suite_path
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.implementations.implementation import Implementation
from opatlas.run.row_source import RowSource
from opatlas.show.result import Fields


def suite_source(option: argparse.Namespace, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns the cases of the suite that --suite names; the kind of the device decides their dtypes."""
    name, kind = suite_name(option.suite), devices[0].kind
    return RowSource(
        option,
        lambda device_kind: kind_named(device_kind).tasks_named_by,
        lambda device, versions: suite_path(device, name, versions),
        unit="case",
        starter=lambda database: add_rows(database, suite_rows(option.suite, kind)),
        starter_unlisted="without --co the session first lists the cases of the suite, which takes minutes",
        is_listed=True,
        counts_missing=True,
        ops=_kernel_types,
        scores=lambda targets: _scores(targets, _kernel_types(option.ops)),
    )


def _kernel_types(names: Sequence[str]) -> frozenset[str]:
    """Returns the kernel types of operators, which may be named as torch names them (`add.Tensor`)."""
    return frozenset(folder_of(name) if "." in name else name for name in names)


def _scores(targets: Sequence[tuple[Implementation, Path]], ops: frozenset[str]) -> list[Fields]:
    """Returns the score of each implementation against torch."""
    found = []
    for implementation, path in targets:
        baseline = default_database_of(path)
        if not implementation.is_default and baseline is not None:
            score = read_score(Database(path), Database(baseline), ops or None)
            found.append(Fields(score.figures(), implementation.name))
    return found
