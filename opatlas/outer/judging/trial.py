"""The candidate's side of its calls: buffers that get new inputs, calls, and copies of the results.

Nothing here decides: what the process of a candidate says of a result is its bytes, and of a duration a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from opatlas.outer.judging.court import Court
from opatlas.outer.judging.court_process import RemoteCourt
from opatlas.outer.judging.judgement import ReferenceFailed
from opatlas.outer.judging.memory import (
    CALL_SEED,
    Inputs,
    PoisonedAllocations,
    Purpose,
    SharedMemory,
    TensorForm,
    expect_margins,
    is_dense,
    live_tensor,
)
from opatlas.outer.judging.process_guard import ProcessGuard
from opatlas.outer.judging.results import FlatResults, flat_results
from opatlas.run.devices.device import Device
from opatlas.run.instruments.instrument import MeasureSettings, StopRule

#: Calls of nothing, whose time is the court's own share of a bracket.
_REHEARSALS = 8


class LiveInputs:
    """The arguments with which a candidate is called: at the same addresses in all calls, without a new version.

    Attributes:
        arguments: the arguments of the next call.
    """

    def __init__(self, arguments: list[Any], device: torch.device, margins: bool) -> None:
        """`arguments` are some of the row's, which say what is a tensor, and give what is no number."""
        self._own, self._structure = tree_flatten(arguments)
        self._device, self._margins = device, margins
        self._forms: list[TensorForm | None] = [None] * len(self._own)
        self.leaves: list[Any] = list(self._own)
        self.arguments = arguments

    def write(self, inputs: Inputs, memory: SharedMemory, weights: Mapping[str, torch.Tensor]) -> None:
        """Gives the arguments and the weights the values of a call. Raises ReferenceFailed for other arguments."""
        if len(inputs.leaves) != len(self._own):
            raise ReferenceFailed("the number of inputs is another one in each call: return a list of one length")
        for place, leaf in enumerate(inputs.leaves):
            if isinstance(leaf, TensorForm):
                known = self._forms[place]
                if known is None or (known.dtype, known.shape, known.stride) != (leaf.dtype, leaf.shape, leaf.stride):
                    self.leaves[place], self._forms[place] = live_tensor(leaf, self._device, self._margins), leaf
                memory.assign(self.leaves[place], leaf)
            elif leaf.has_value:
                self.leaves[place] = leaf.object
        for name, form in inputs.weights.items():
            memory.assign(weights[name], form)
        self.arguments = tree_unflatten(self.leaves, self._structure)

    def tensors(self) -> list[torch.Tensor]:
        """Returns the tensors among the arguments, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]


@dataclass
class Constructed:
    """A candidate that can be called.

    Attributes:
        call: called with the arguments of a call, and returns its results.
        weights: its parameters by name, where they are the reference's; else none.
        bind: called with the arguments before each call; this is not timed.
    """

    call: Callable[..., Any] = lambda *_: ()
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    bind: Callable[..., object] = lambda *_: None


class CandidateTrial:
    """The calls of one candidate on the inputs of one row.

    Attributes:
        made: the candidate, once it is constructed.
        guard: examined after each timed call; None where nobody is judged.
        claimed_us: the duration of the last call, in microseconds; None where it is not known yet.
    """

    def __init__(
        self,
        court: Court | RemoteCourt,
        device: Device,
        arguments: list[Any],
        *,
        is_cold: bool = False,
        margins: bool = True,
    ) -> None:
        """
        Args:
            court: gives inputs and takes results.
            device: where the candidate runs.
            arguments: some arguments of the row.
            is_cold: whether caches are flushed before each timed call.
            margins: whether tensors lie between margins, and so not at the beginning of their storage.
        """
        self.made = Constructed()
        self.guard: ProcessGuard | None = None
        self.claimed_us: float | None = None
        self.inputs = LiveInputs(arguments, device.torch_device, margins)
        self._court, self._device, self._is_cold = court, device, is_cold
        self._latest: FlatResults | None = None
        #: Whether the inputs are those of a timed call whose results have not been handed in.
        self._is_pending = False
        self._arguments: Sequence[Any] = ()

    def rehearse(self) -> None:
        """Makes calls of nothing, before the candidate is imported: without and with the weights of the reference."""
        device = self._device.torch_device
        results: FlatResults = ()
        for has_weights in (False, True):
            for _ in range(_REHEARSALS):
                inputs = self._prepare(Purpose.REHEARSAL, has_weights)
                results = results or tuple(
                    torch.zeros(leaf.shape, dtype=leaf.torch_dtype, device=device)
                    if isinstance(leaf, TensorForm)
                    else leaf.object
                    for leaf in inputs.results
                )
                self.made = Constructed(lambda *_, found=results: found, self.made.weights)
                self.launch()
                self._hand_in()
                if has_weights and not inputs.weights:
                    break
        self.made = Constructed()

    def further_calls(self) -> None:
        """Calls the candidate with inputs near the first ones and with others, each once more in poisoned memory."""
        for purpose in (Purpose.NEAR, Purpose.WHOLE):
            self.call(purpose)
            with PoisonedAllocations():
                self.call(Purpose.AGAIN)

    def call(self, purpose: Purpose) -> FlatResults:
        """Makes a call that is not timed. Raises what the candidate raises, and CandidateRejected."""
        self._prepare(purpose)
        self.launch()
        self._device.synchronize()
        return self._hand_in(self.inputs.leaves)

    def next_sample(self) -> None:
        """Hands in the results of the last timed call, and gives the next one its inputs."""
        self.finish()
        self._prepare(Purpose.TIMED)
        self._is_pending = True

    def finish(self) -> None:
        """Hands in the results of the last timed call, if there is one."""
        if self._is_pending and self._latest is not None:
            self._is_pending = False
            self._hand_in()
            if self.guard is not None:
                self.guard.expect_same_hooks("its timed calls")

    def end(self) -> None:
        """Waits for the comparison of all results."""
        expect_margins(self.inputs.tensors())
        self._court.end()

    def launch(self) -> None:
        """Calls the candidate, and has all of its results computed. This method is timed: after a flush of the caches
        each step costs microseconds."""
        returned = self.made.call(*self._arguments)
        is_plain = type(returned) is torch.Tensor and not returned.is_conj() and not returned.is_neg()
        self._latest = (returned,) if is_plain else flat_results(returned)

    def _prepare(self, purpose: Purpose, has_weights: bool | None = None) -> Inputs:
        self._latest = None
        inputs = self._court.ask(purpose, bool(self.made.weights) if has_weights is None else has_weights)
        if purpose is Purpose.REHEARSAL and not self.made.weights:
            weights = {
                name: live_tensor(form, self._device.torch_device, False) for name, form in inputs.weights.items()
            }
            self.made = Constructed(weights=weights)
        self.inputs.write(inputs, self._court.memory, self.made.weights)
        self._arguments = self.inputs.arguments
        self.made.bind(*self._arguments)
        torch.manual_seed(CALL_SEED)
        if self._is_cold and purpose in (Purpose.TIMED, Purpose.REHEARSAL):
            self._device.flush_cache()
        self._device.synchronize()
        return inputs

    def _hand_in(self, inputs: Sequence[Any] | None = None) -> FlatResults:
        """Writes the results of the call, and inputs as they are after it, for the court. Returns the results."""
        results, self._latest = self._latest or (), None
        values = [_contiguous(each) if isinstance(each, torch.Tensor) else each for each in results]
        found = self._court.memory.write([*values, *(inputs or ())], self._court.results_start)
        count = len(results)
        self._court.returned(found[:count], None if inputs is None else found[count:], self.claimed_us)
        self.claimed_us = None
        return results


def _contiguous(result: torch.Tensor) -> torch.Tensor:
    return (result if is_dense(result) else result.to_dense()).contiguous()


class ClaimingRule(StopRule):
    """Hands each duration in before the candidate runs again, so that nothing changes it later."""

    def __init__(self, trial: CandidateTrial, settings: MeasureSettings) -> None:
        super().__init__(repeat_count=settings.repeat_count, time_limit_s=settings.time_limit_s)
        self._trial = trial

    def enough(self, samples_us: Sequence[float]) -> bool:
        self._trial.claimed_us = samples_us[-1] if samples_us else None
        return super().enough(samples_us)
