"""Sums of counts that are kept as dataclasses."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Counts = TypeVar("Counts", bound="DataclassInstance")


def add_counts(total: Counts, part: Counts) -> None:
    """Adds the fields of `part` (numbers, lists, Counters) to those of `total`."""
    for field in fields(total):
        setattr(total, field.name, getattr(total, field.name) + getattr(part, field.name))
