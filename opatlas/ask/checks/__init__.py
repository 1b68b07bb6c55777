"""Data tests of a database: the table of all checks. A check finds rows or runs that a user should look at."""

from __future__ import annotations

from opatlas.ask.checks.check import Check, CheckedDatabase
from opatlas.ask.checks.duration_checks import bimodal_captures, noisy_rows, not_monotone, spikes, too_short
from opatlas.ask.checks.op_mapping_checks import missing_rows, without_mapping, wrong_operators
from opatlas.ask.checks.row_checks import (
    impossible_numbers,
    mixed_runs,
    repeated_rows,
    unknown_origins,
    unreadable_files,
    wrong_statuses,
)


def _without_peak(database: CheckedDatabase) -> str:
    return "" if database.peak is not None else f"the peaks of {database.device or 'an unknown device'} are not known"


def _without_samples(database: CheckedDatabase) -> str:
    return "" if database.pooled else "no samples of captures are kept"


#: All checks, in the order in which they run: name, what is found, and what to do about it.
CHECKS = (
    Check(
        "unreadable",
        "files that cannot be read",
        "restore them, or move them out of the database",
        of_database=unreadable_files,
    ),
    Check(
        "impossible",
        "cells that are not numbers, or numbers that contradict each other",
        "measure the rows again: the cells were edited, or written by another tool",
        impossible_numbers,
    ),
    Check(
        "duplicates",
        "rows that are in the table twice",
        "remove one of the two; a replay fills the first one only",
        repeated_rows,
    ),
    Check(
        "statuses",
        "statuses that are unknown, lack a reason or contradict their row",
        "replay the rows again (opatlas bench --database-path DB --runxfail)",
        wrong_statuses,
    ),
    Check(
        "origins",
        "durations without a manifest of their run",
        "copy runs/ from where the database was measured, or measure the rows again",
        unknown_origins,
    ),
    Check(
        "mixed",
        "durations that are not comparable with the others",
        "keep them in a separate database (docs/compare.md)",
        of_database=mixed_runs,
    ),
    Check(
        "below-roofline",
        "durations shorter than the peaks of the device allow",
        "see what ran (opatlas history DB ...): the kernel may do less work than its row says, or ran elsewhere",
        too_short,
        why_skipped=_without_peak,
    ),
    Check(
        "monotone",
        "rows that take longer than a row with a larger M",
        "measure both again; if the finding stays, add the row and its cause to known_findings.yaml",
        not_monotone,
    ),
    Check(
        "spikes",
        "rows far above both of their neighbours in M",
        "measure the row again; if the finding stays, add it and its cause to known_findings.yaml",
        spikes,
    ),
    Check(
        "noisy",
        "durations whose samples do not agree",
        "measure the rows again on an idle machine: opatlas bench --database-path DB --where 'quality != quiet'",
        noisy_rows,
    ),
    Check(
        "captures",
        "captured signatures with two populations",
        "find what distinguishes the two (--attention-records for attention), or use the replayed duration",
        bimodal_captures,
        why_skipped=_without_samples,
    ),
    Check(
        "op-mapping",
        "operators for which a simulator finds no rows",
        "correct the line (docs/tutorials/op-mapping.md)",
        of_database=wrong_operators,
        why_skipped=without_mapping,
    ),
    Check(
        "op-mapping-rows",
        "operators without rows, and rows without an operator",
        "measure the rows (opatlas ingest, opatlas shapes, opatlas bench), or name the kernel type in op_mapping.yaml",
        of_database=missing_rows,
        advisory=True,
        why_skipped=without_mapping,
    ),
)
