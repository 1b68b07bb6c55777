"""All targets, by name."""

from __future__ import annotations

import importlib

from . import (
    attention_records,
    catalogs,
    checks,
    diagnoses,
    exchanges,
    journals,
    operator_calls,
    profiles,
    tables,
    traces,
)
from .target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        profiles.CAPTURE,
        profiles.OP_SUMMARY,
        profiles.SAMPLES,
        tables.TABLE,
        tables.ROUND_TRIP,
        tables.SIGNATURE,
        journals.JOURNAL,
        journals.WRITE_BACK,
        journals.HISTORY,
        traces.TRACE,
        traces.PACKED_TRACE,
        attention_records.RECORDS,
        attention_records.PACKED_RECORDS,
        catalogs.CATALOG,
        catalogs.MAPPING_OF_OPERATORS,
        catalogs.MODEL,
        checks.KNOWN,
        checks.CHECKED,
        exchanges.EXCHANGES,
        exchanges.MODELS,
        exchanges.SCORED,
        diagnoses.DIAGNOSIS,
        operator_calls.OPERATOR_CALLS,
        diagnoses.TIMELINE,
        diagnoses.MODULE_MAP,
    )
}


def target_named(name: str) -> Target:
    """A target by its name, or one of another module as `module:NAME`. Raises KeyError, ImportError."""
    if ":" not in name:
        return TARGETS[name]
    module, _, attribute = name.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    assert isinstance(target, Target)
    return target
