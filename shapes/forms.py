"""Dtypes and formats of theory rows: those of the rows that are there, else those of the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from database.dtypes import known_dtype
from database.store import Table
from shapes.catalog import Kernel
from shapes.match import KnownRow, Matcher, is_blocked, paired, read_rows
from shapes.models import BUILT_IN
from shapes.patterns import NZ, Form, Pattern
from shapes.sources import Targets, shapes_of


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
        self._kernel = kernel
        #: For each pattern the rows that have one of its shapes, and those that could have one of another model.
        self._own: dict[str, list[KnownRow]] = {pattern.name: [] for pattern in kernel.patterns}
        self._alike: dict[str, list[KnownRow]] = {pattern.name: [] for pattern in kernel.patterns}
        #: Rows that have no pattern's shapes.
        self._others: list[KnownRow] = []
        matchers = [Matcher(pattern, shapes_of(pattern, everybody)) for pattern in kernel.patterns]
        for row in self.rows:
            matches = {matcher.pattern.name: match for matcher in matchers if (match := matcher.match(row)) is not None}
            owners = [name for name, match in matches.items() if match.shapes]
            for name in owners:
                self._own[name].append(row)
            if not owners:
                self._others.append(row)
                for name in matches:
                    self._alike[name].append(row)

    def forms(self, pattern: Pattern) -> tuple[Form, ...]:
        """The forms that a pattern's theory rows take.

        Those of the rows that have its shapes, and of rows of other models that have shapes like them;
        where there are none, those of rows that have as many slots of the same kinds, whatever their
        axes are; else the catalog's, on the core of the rows that are there. Theory rows that were
        added earlier have a pattern's shapes, and so add no forms to another one.
        """
        exact = self._forms(pattern, [*self._own[pattern.name], *self._alike[pattern.name]])
        if exact:
            return exact
        loose = self._forms(pattern, self._others)
        if loose:
            return loose
        op_state, core = self._usual
        return tuple(replace(form, op_state=op_state, core=core or form.core) for form in pattern.forms)

    def unknown_dtypes(self) -> list[str]:
        """Dtypes of rows that nothing is taken from, because their size is not known."""
        names = {word[1] for row in self.rows for word in (*row.inputs, *row.outputs) if word[1]}
        return sorted(name for name in names if known_dtype(name) is None)

    @cached_property
    def _usual(self) -> tuple[str, str]:
        return _most((row.op_state, row.core) for row in self.rows if row.captured)

    def _forms(self, pattern: Pattern, rows: Iterable[KnownRow]) -> tuple[Form, ...]:
        found: dict[Form, list[tuple[str, str]]] = {}
        kinds = _kinds(pattern)
        for row in rows:
            form = _form(pattern, row, kinds)
            if form is not None:
                found.setdefault(form, []).append((row.op_state, row.core))
        forms = []
        for form in sorted(found, key=lambda form: (str(form), form.input_formats)):
            op_state, core = _most(found[form])
            forms.append(replace(form, op_state=op_state, core=core))
        return tuple(forms)


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
