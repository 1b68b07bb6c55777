"""Data tests of a database: the table of all checks. A check finds rows or runs that a user should look at."""

from __future__ import annotations

from opatlas.ask.checks import duration_checks, row_checks
from opatlas.ask.checks.check import Check
from opatlas.ask.checks.op_mapping_checks import op_mapping, op_mapping_rows, without_mapping

#: All checks, in the order in which they run, with what to do about their findings.
CHECKS = (
    Check(row_checks.unreadable, "restore them, or move them out of the database", of="database"),
    Check(row_checks.impossible, "measure the rows again: the cells were edited, or written by another tool"),
    Check(row_checks.duplicates, "remove one of the two; a replay fills the first one only"),
    Check(row_checks.statuses, "replay the rows again (opatlas bench --database-path DB --runxfail)"),
    Check(row_checks.origins, "copy runs/ from where the database was measured, or measure the rows again"),
    Check(row_checks.mixed, "keep them in a separate database (docs/compare.md)", of="database"),
    Check(
        duration_checks.below_roofline,
        "see what ran (opatlas history DB ...): the kernel may do less work than its row says, or ran elsewhere",
        of="kernels",
        why_skipped=duration_checks.without_peak,
    ),
    Check(
        duration_checks.links,
        "measure the message again: its bytes, its devices or its tier are not those of its row",
        of="messages",
        why_skipped=duration_checks.without_links,
    ),
    Check(
        duration_checks.link_model,
        "see whether the links, or the algorithm that the library chose, are what they should be",
        of="messages",
        advisory=True,
        why_skipped=duration_checks.without_links,
    ),
    Check(
        duration_checks.monotone,
        "measure both again; if the finding stays, add the row and its cause to known_findings.yaml",
    ),
    Check(
        duration_checks.noisy,
        "measure the rows again on an idle machine: opatlas bench --database-path DB --where 'quality != quiet'",
    ),
    Check(
        duration_checks.captures,
        "find what distinguishes the two (--attention-records for attention), or use the replayed duration",
    ),
    Check(op_mapping, "correct the line (docs/tutorials/op-mapping.md)", of="database", why_skipped=without_mapping),
    Check(
        op_mapping_rows,
        "measure the rows (opatlas ingest, opatlas shapes, opatlas bench), or name the kernel type in op_mapping.yaml",
        of="database",
        advisory=True,
        why_skipped=without_mapping,
    ),
)
