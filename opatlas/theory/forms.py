"""Dtypes and formats of theory rows: those of the rows that are there, else those of the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from opatlas.model.slots import known_dtype
from opatlas.store.database import Table
from opatlas.theory.built_in import BUILT_IN
from opatlas.theory.catalog import Kernel
from opatlas.theory.match import (
    KnownRow,
    Matcher,
    is_blocked,
    paired,
    read_rows,
)
from opatlas.theory.patterns import NZ, Form, Pattern
from opatlas.theory.sources import Targets, shapes_of


class KnownRows:
    """The rows of a kernel type that are there, and whose shapes they have."""

    def __init__(self, kernel: Kernel, table: Table, targets: Targets) -> None:
        """
        Args:
            targets: whose shapes are known besides those of the built-in models.

        Raises:
            TableError: a dimension that is no number; the message names the line.
        """
        self.rows = list(read_rows(table))
        everybody = replace(targets, models=(*BUILT_IN, *targets.models), generic=True)
        #: For each pattern the rows that have its slots and axes, captured ones and others.
        self._captured: dict[str, list[KnownRow]] = {pattern.name: [] for pattern in kernel.patterns}
        self._others: dict[str, list[KnownRow]] = {pattern.name: [] for pattern in kernel.patterns}
        matchers = [Matcher(pattern, shapes_of(pattern, everybody)) for pattern in kernel.patterns]
        for row in self.rows:
            matches = {matcher.pattern.name: match for matcher in matchers if (match := matcher.match(row)) is not None}
            # Where patterns are alike, a row belongs to those one of whose shapes it has.
            owners = [name for name, match in matches.items() if match.shapes and match.on_axes]
            for name in owners or matches:
                (self._captured if row.captured else self._others)[name].append(row)

    def forms(self, pattern: Pattern) -> tuple[Form, ...]:
        """The forms that a pattern's theory rows take.

        Those of captured rows that have its slots and axes; where there are none, those of captured rows
        that have as many slots of the same kinds, whatever their axes are. Without such rows, those of
        others that have its slots and axes, unless they could be theory rows of the catalog: then, and
        where there is nothing, all of the catalog's. So theory rows that were added add no forms.
        """
        captured = self._forms(pattern, self._captured[pattern.name])
        if captured:
            return captured
        loose = self._forms(pattern, (row for row in self.rows if row.captured))
        if loose:
            return loose
        others = self._forms(pattern, self._others[pattern.name])
        if {_bare(form) for form in others} - {_bare(form) for form in pattern.forms}:
            return others
        op_state, core = _most((row.op_state, row.core) for row in self.rows if row.captured)
        return tuple(replace(form, op_state=op_state, core=core or form.core) for form in in_order(pattern.forms))

    def unknown_dtypes(self) -> list[str]:
        """Dtypes of rows that nothing is taken from, because their size is not known."""
        names = {word[1] for row in self.rows for word in (*row.inputs, *row.outputs) if word[1]}
        return sorted(name for name in names if known_dtype(name) is None)

    def _forms(self, pattern: Pattern, rows: Iterable[KnownRow]) -> tuple[Form, ...]:
        found: dict[Form, list[tuple[str, str]]] = {}
        kinds = _kinds(pattern)
        for row in rows:
            form = _form(pattern, row, kinds)
            if form is not None:
                found.setdefault(form, []).append((row.op_state, row.core))
        usual = {form: _most(pairs) for form, pairs in found.items()}
        return tuple(replace(form, op_state=usual[form][0], core=usual[form][1]) for form in in_order(found))


def in_order(forms: Iterable[Form]) -> list[Form]:
    """Wherever forms come from, their order is the same, and so is what a seed draws."""
    return sorted(forms, key=lambda form: (str(form), form.input_formats, form.output_formats))


def _bare(form: Form) -> Form:
    return replace(form, op_state="", core="")


def _most(pairs: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """What most rows have, that is, of those which have anything."""
    counts = Counter(pair for pair in pairs if any(pair))
    return min(counts, key=lambda pair: (-counts[pair], pair)) if counts else ("", "")


def _kind(dtype: str) -> str:
    known = known_dtype(dtype)
    if known is None:
        return "unknown"
    return "float" if known.is_float else "bool" if known.name == "BOOL" else "integer"


def _kinds(pattern: Pattern) -> list[list[set[str]]]:
    """For each slot of inputs and of outputs the kinds of numbers that the catalog has there; none: any."""
    halves = []
    for dtypes, templates in (
        ([form.input_dtypes for form in pattern.forms], pattern.inputs),
        ([form.output_dtypes for form in pattern.forms], pattern.outputs),
    ):
        halves.append([{_kind(names[i]) for names in dtypes} for i in range(len(templates))])
    return halves


def _form(pattern: Pattern, row: KnownRow, kinds: Sequence[Sequence[set[str]]]) -> Form | None:
    """The form of a row that has the pattern's slots; None where it has others, or other kinds of numbers."""
    halves: list[tuple[str, ...]] = []
    for number, (templates, words) in enumerate(((pattern.inputs, row.inputs), (pattern.outputs, row.outputs))):
        dtypes, formats = [], []
        for i, (template, word) in enumerate(paired(templates, words)):
            shape, dtype, _ = word
            if template is None:
                if shape:
                    return None
                dtype, name = "", ""
            else:
                allowed = kinds[number][i]
                if (
                    bool(shape) != bool(template)
                    or known_dtype(dtype) is None
                    or (allowed and _kind(dtype) not in allowed)
                ):
                    return None
                # A format of images tells how many axes there are; here there may be others.
                name = NZ if is_blocked(template, word) else "ND"
            if i < len(templates):
                dtypes.append(dtype)
                formats.append(name)
        halves += [tuple(dtypes), tuple(formats)]
    return Form(halves[0], halves[1], halves[2], halves[3])
