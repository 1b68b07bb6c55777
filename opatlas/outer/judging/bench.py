"""What the process of a candidate asks of a court: the inputs of calls, for which it gives back bytes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch

from opatlas.outer.judging.memory import Leaf, SharedMemory, TensorForm, is_dense
from opatlas.outer.judging.results import FlatResults
from opatlas.row.errors import ReplayError

if TYPE_CHECKING:
    from opatlas.outer.judging.court import Court

#: Each call, and the reference, starts from this state of torch's generators, for tasks with dropout.
CALL_SEED = 0


class Purpose(Enum):
    """What a call is for.

    REHEARSAL is the call of nothing before the candidate is imported. AGAIN repeats the inputs of the call before, NEAR
    changes them in 0.2 percent of the elements.
    """

    REHEARSAL = "rehearsal"
    WHOLE = "whole"
    AGAIN = "again"
    NEAR = "near"
    TIMED = "timed"


class ReferenceFailed(ReplayError):
    """The reference cannot be run, whatever the candidate."""


class Inputs(msgspec.Struct, frozen=True, tag=True):
    """The inputs of a call, whose tensors are in the memory; `results` are the forms of a rehearsal's results."""

    leaves: tuple[Leaf, ...]
    weights: dict[str, TensorForm]
    results: tuple[Leaf, ...] = ()


class Bench(Protocol):
    """What the candidate's process asks of a court."""

    weights_seed: int

    def ask(self, purpose: Purpose) -> tuple[Inputs, SharedMemory]:
        """Returns the inputs of the next call, and their memory. Raises ReferenceFailed."""

    def start(self) -> None:
        """Says that the call begins now."""

    def returned(self, results: FlatResults, inputs: Sequence[Any] | None, claimed_us: float | None) -> None:
        """Takes the results of the call, the inputs as they are after it, and the duration that was measured."""

    def share_weights(self) -> None:
        """Says that the candidate has the weights of the reference, which change with each call from now on."""

    def end(self) -> None:
        """Says that no call follows, and waits until all results have been compared."""


class OwnCourt:
    """A court in this process, for a row of which nobody is judged: the baseline, and tests."""

    def __init__(self, court: Court, weights_seed: int) -> None:
        self.court, self.weights_seed = court, weights_seed
        court.memory = SharedMemory(court.memory_bytes)

    def ask(self, purpose: Purpose) -> tuple[Inputs, SharedMemory]:
        return self.court.ask(purpose), self.court.memory

    def start(self) -> None:
        self.court.start()

    def returned(self, results: FlatResults, inputs: Sequence[Any] | None, claimed_us: float | None) -> None:
        self.court.returned(*write_results(self.court.memory, self.court.results_start, results, inputs), claimed_us)

    def share_weights(self) -> None:
        self.court.share_weights()

    def end(self) -> None:
        pass


def write_results(
    memory: SharedMemory, start: int, results: FlatResults, inputs: Sequence[Any] | None
) -> tuple[list[Leaf], list[Leaf] | None]:
    """Writes results, and inputs as they are after a call, into the memory. Returns their leaves."""
    dense = [each.to_dense() if isinstance(each, torch.Tensor) and not is_dense(each) else each for each in results]
    found = memory.write([each.contiguous() if isinstance(each, torch.Tensor) else each for each in dense], start)
    if inputs is None:
        return found, None
    last = [each for each in found if isinstance(each, TensorForm)]
    end = max((each.offset + each.nbytes for each in last), default=start)
    return found, memory.write(inputs, -(-end // 64) * 64)
