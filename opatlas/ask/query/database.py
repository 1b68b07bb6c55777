"""`opatlas.open`: the implementations of a device, and the questions that they answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.ask.query.implementation_answers import FASTEST, ImplementationAnswers, answer_collective, best_answer
from opatlas.ask.query.question import QueryResult, Shapes, Words, ask
from opatlas.errors import OpAtlasError, UsageError
from opatlas.row.communication import BY_NAME, is_communication
from opatlas.row.location import database_folder
from opatlas.row.slots import MATMUL_FAMILY
from opatlas.row.versions import kind_of
from opatlas.text import suggest

if TYPE_CHECKING:
    import pandas as pd

    from opatlas.ask.query.model_cost import ModelCost, PartCost
    from opatlas.ask.query.next_rows import NextRows
    from opatlas.theory.model_step import Step

#: The kernel types of `OpenDatabase.matmul`, in the order in which they are looked for.
_PRODUCT_TYPES = (*MATMUL_FAMILY, "MatMul")
_ATTENTION = "FusedInferAttentionScore"


def open(  # noqa: A001
    place: Path | str, *, same_machine: bool = False, compositions: bool = False
) -> OpenDatabase:
    """Opens a database, and the databases of implementations that were measured on its rows. Reads tables when needed.

    Args:
        place: a folder, or the name of a device: its newest default database.
        same_machine: whether the intervals are for the machine that measured the rows. For another one of the same
            type they are as wide as the machines of the row differ, and those of other rows of the kernel type.
        compositions: whether rows answer whose duration is that of a composition of torch operators.

    Raises:
        OpAtlasError: the folder or device does not exist, or the folder has no CSVs.
    """
    answers = ImplementationAnswers(database_folder(place), same_machine=same_machine, compositions=compositions)
    return OpenDatabase(answers)


class OpenDatabase:
    """A database that answers questions. `opatlas.open` makes it.

    Attributes:
        answers: the answers of each implementation.
        path: the folder.
        implementations: the databases of the implementations by name, the default one first.
    """

    def __init__(self, answers: ImplementationAnswers) -> None:
        self.answers = answers
        self.path = answers.path
        self.implementations: Mapping[str, ComparedDatabase] = answers.implementations
        self._costs: dict[Hashable, PartCost] = {}

    def kernel_types(self) -> list[str]:
        """Returns the kernel types that some implementation had rows of at the first question."""
        return list(self.answers.kernel_types)

    def query(
        self,
        kernel_type: str,
        input_shapes: Shapes,
        *,
        dtypes: Words = "",
        output_shapes: Shapes = "",
        implementation: str | Sequence[str] = FASTEST,
    ) -> QueryResult:
        """Returns the duration of a call.

        Args:
            input_shapes: `["48,18432", "7168,18432"]`, `[(48, 18432), (7168, 18432)]` or a cell of the CSV.
            dtypes: a word for each input, or one word: the dtype of the first input.
            implementation: a name or several, of which the fastest that was measured; default: of all. A prediction
                goes before a measured row only if its whole interval lies below the row's duration.

        Raises:
            NoAnswer: no row answers, or several do.
            OpAtlasError: the question is malformed, or the kernel type or implementation is unknown.
        """
        question = ask(kernel_type, input_shapes, dtypes=dtypes, output_shapes=output_shapes)
        self._expect(kernel_type)
        if is_communication(kernel_type):
            raise OpAtlasError(f"{kernel_type}: a message has no shapes: ask collective(NAME, bytes=..., devices=...)")
        return best_answer(self._chosen(implementation), lambda name: self.answers.answer(name, question))

    def matmul(
        self,
        *,
        m: int,
        n: int,
        k: int,
        dtype: str = "BF16",
        kernel_type: str = "",
        implementation: str | Sequence[str] = FASTEST,
    ) -> QueryResult:
        """Returns the duration of a matrix product by its sizes, with the weight in the layout that the rows have.

        Args:
            kernel_type: default: the first of MatMulV2, MatMulV3, MatMulCommon and MatMul that the database has.

        Raises:
            NoAnswer, OpAtlasError: as `query` does.
        """
        known = self.answers.kernel_types
        named = kernel_type or next((name for name in _PRODUCT_TYPES if name in known), _PRODUCT_TYPES[0])
        self._expect(named)
        first = self.answers.completion(named, next(iter(self._chosen(implementation))))
        weight = (n, k) if first.stores_weight_transposed else (k, n)
        return self.query(named, [(m, k), weight], dtypes=dtype, output_shapes=[(m, n)], implementation=implementation)

    def attention(
        self,
        *,
        sequences: int,
        keys: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        queries: int = 1,
        dtype: str = "BF16",
        implementation: str | Sequence[str] = FASTEST,
    ) -> QueryResult:
        """Returns the duration of attention of sequences of one length (FusedInferAttentionScore), causal for prompts.

        Args:
            sequences: the number of sequences.
            keys: of each sequence, the whole context. They lie in pages, unless the queries are a whole prompt.
            heads, kv_heads: of the queries, and of the keys; those of one device.
            queries: of each sequence; as many as keys for a whole prompt.

        Raises:
            NoAnswer: as `query` does.
            OpAtlasError: as `query` does, or heads are not a multiple of kv_heads.
        """
        from opatlas.theory.space import call_cells

        if kv_heads < 1 or heads % kv_heads:
            raise OpAtlasError(f"heads {heads}, kv_heads {kv_heads}: heads have to be a multiple of kv_heads")
        pattern = "packed_attention" if queries == keys > 1 else "paged_attention"
        sizes = {"s": sequences, "t": queries, "k": keys, "q": heads, "kv": kv_heads, "d": head_size}
        cells = call_cells(_ATTENTION, pattern, sizes, dtype=dtype)
        return self.query_row(_ATTENTION, cells, implementation=implementation)

    def query_row(
        self, kernel_type: str, cells: Mapping[str, str], *, implementation: str | Sequence[str] = FASTEST
    ) -> QueryResult:
        """Returns the duration of a whole row.

        Args:
            cells: the identity columns of the CSV contract, such as those of `opatlas.theory.model_calls`.

        Raises:
            NoAnswer: no row answers.
            OpAtlasError: the kernel type or implementation is unknown.
        """
        self._expect(kernel_type)
        return best_answer(self._chosen(implementation), lambda name: self.answers.answer_row(name, kernel_type, cells))

    def collective(
        self,
        name: str,
        *,
        bytes: int,  # noqa: A002
        devices: int,
        dtype: str = "BF16",
        tier: int | None = None,
    ) -> QueryResult:
        """Returns the duration of a collective, from the newest communication database of the device.

        More devices than any row has have the duration of the largest number, with as many bytes on the busiest link.

        Args:
            name: all_reduce, all_gather, reduce_scatter, all_to_all or broadcast.
            bytes: the bytes in `message_bytes` of the CSV.
            tier: the topology tier; default: that of the most rows with as many devices.

        Raises:
            NoAnswer: no communication database has these messages.
            OpAtlasError: the collective is unknown, or it has fewer than two devices.
        """
        return answer_collective(self.answers.messages, name, bytes, devices, dtype, tier)

    @property
    def messages(self) -> OpenDatabase | None:
        """The newest communication database of the same device; this one, if it has messages itself."""
        answers = self.answers.messages
        if answers is None:
            return None
        return self if answers is self.answers else OpenDatabase(answers)

    def frame(self, kernel_type: str, *, implementation: str = "") -> pd.DataFrame:
        """Returns the rows of a kernel type as typed columns (`AnsweringRows.typed`).

        Args:
            implementation: default: the rows of all implementations.

        Raises:
            OpAtlasError: the kernel type or implementation is unknown.
        """
        import pandas as pd

        self._expect(kernel_type)
        names = self._chosen(implementation or FASTEST)
        tables = [self.answers.stored_rows(kernel_type, name).typed() for name in names]
        return pd.concat(tables, ignore_index=True)

    def model(
        self,
        model: str,
        *,
        implementation: str | Sequence[str] = (),
        any_memory: bool = False,
        tell: Callable[[str], object] = str,
        **step: Any,
    ) -> ModelCost:
        """Returns the cost of a step of a model on one device, if no two kernels run at once.

        One stack of implementations answers: for each kernel type the first with rows of it, and of rows with the
        dtypes of the call before others.
        Rows whose duration is that of a composition of operators answer only where no others do. Collectives come from
        the newest communication database of the device, in the topology tier of the most rows with as many devices.
        Weights are in ND or in FRACTAL_NZ, as the rows have them.

        Args:
            model: a built-in model's name, a config.json or its folder.
            implementation: the stack, a name or several in their order; "fastest": for each call the answer of `query`.
                Default: the stack that the database names (`default_stack`).
            any_memory: whether a step is answered that does not fit into the memory of the device.
            tell: gets the kernel type of each call after its answer. The first question about one may fit a model.
            step: the fields of `opatlas.Step`: `batch=64, context=4096, tp=8` and so on.

        Raises:
            OpAtlasError: the model is unknown, it cannot be divided so, does not fit, or no row has the dtype of its
                weights.
        """
        from opatlas.ask.query.model_cost import ModelCost, default_stack, part_costs
        from opatlas.theory.model_calls import step_calls
        from opatlas.theory.model_step import Step, step_dtype, step_memory
        from opatlas.theory.sources import resolve_model

        facts, asked = resolve_model(model), Step(model, **step)
        # Of the known devices only NPUs store weights in FRACTAL_NZ.
        in_nz = not self.answers.device or kind_of(self.answers.device).is_native
        calls, in_layout = (step_calls(facts, asked, nz_weights=each) for each in (False, in_nz))
        memory = step_memory(facts, asked, self.answers.device_fact("memory_bytes"))
        if not (memory.fits or any_memory):
            raise UsageError(f"{asked}: does not fit the device: {memory}")
        names = [implementation] if isinstance(implementation, str) else implementation
        everything = FASTEST in names
        stack = (FASTEST,) if everything else tuple(self._chosen(names)) if names else default_stack(self.answers)
        dtype = step_dtype(facts, asked.dtype)
        return ModelCost(
            facts.name,
            self.path,
            part_costs(self.answers, stack, zip(calls, in_layout, strict=True), tell, self._costs),
            stack=stack if everything else tuple(self.implementations[name].label for name in stack),
            step=asked,
            dtype=dtype,
            layers=facts.layers,
            memory=memory,
            differs=facts.differences(dtype),
        )

    def next_rows(self, n: int, steps: Sequence[Step], tell: Callable[[str], object] = str) -> NextRows:
        """Returns the rows whose measurement lowers the error of steps of models most (`opatlas.ask.query.next_rows`).

        Args:
            n: the most rows.
            tell: gets the kernel type of each row before it is predicted, which may fit a model.

        Raises:
            OpAtlasError: a model is unknown or cannot be divided so, or a table cannot be read.
        """
        from opatlas.ask.query import next_rows

        # The durations of another machine do not matter.
        answers = ImplementationAnswers(self.path, same_machine=True, compositions=self.answers.compositions)
        found = next_rows.next_rows(answers, n, list(map(next_rows.calls_of, steps)), tell)
        return replace(found, differs=next_rows.differences(steps))

    def query_many(
        self, kernel_type: str, frame: pd.DataFrame, *, implementation: str | Sequence[str] = FASTEST
    ) -> pd.DataFrame:
        """Returns the durations of many rows.

        Args:
            frame: rows with the identity columns of the CSV contract, as text; other columns do not matter.

        Returns:
            A table with the same index and the columns ANSWER_COLUMNS; `How` is "" where there is no answer.

        Raises:
            OpAtlasError: the kernel type or implementation is unknown, or a column is missing.
        """
        self._expect(kernel_type)
        return self.answers.answer_frame(self._chosen(implementation), kernel_type, frame)

    def _chosen(self, implementation: str | Sequence[str]) -> Collection[str]:
        names = [implementation] if isinstance(implementation, str) else implementation
        if not names or FASTEST in names:
            return self.implementations
        missing = [name for name in names if name not in self.implementations]
        if missing:
            raise OpAtlasError(
                f"{missing[0]}: {self.path} does not have this implementation: name {FASTEST} or one of "
                f"{', '.join(self.implementations)}"
            )
        return names

    def _expect(self, kernel_type: str) -> None:
        known = self.answers.kernel_types
        if kernel_type not in known:
            raise OpAtlasError(
                f"{kernel_type}: {self.path} does not have this kernel type{suggest(kernel_type, [*known, *BY_NAME])}: "
                f"`opatlas show DB` lists them"
            )
