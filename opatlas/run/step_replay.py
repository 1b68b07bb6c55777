"""Measures a step of a model: its layers as a whole, each call in place, and each call alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from statistics import fmean, median
from time import perf_counter_ns, sleep
from typing import Any, NamedTuple

import torch

from opatlas.grouping import grouped
from opatlas.row.columns import STEP, STEP_LAUNCH, STEP_LAYERS, STEP_STACK
from opatlas.row.errors import Unsupported, WrongResult
from opatlas.row.quality import typical_mean
from opatlas.row.record import Execution, Measurement
from opatlas.row.status import Status
from opatlas.run.devices.device import Device, kind_named
from opatlas.run.group import Group
from opatlas.run.implementation import KernelSource
from opatlas.run.implementation_catalog import find_implementations
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, StopRule
from opatlas.run.instruments.kernel_records import MARK, KernelRecords, readable_name
from opatlas.run.job import Job, RowOutcome, outcome_of
from opatlas.run.kernel_call import KernelCall
from opatlas.run.registry import ReplaySpec, RowReplay
from opatlas.run.step_layer import BuiltLayers
from opatlas.text import exception_line
from opatlas.theory.model_calls import step_calls
from opatlas.theory.model_step import Step, calls_of_layers
from opatlas.theory.sources import resolve_model

#: The replayed steps: stretches and their time together, those after a pause, those that are recorded, those alone.
_STRETCHES, _SUSTAINED_S, _PAUSE_S, _BURST, _RECORDED, _ALONE = 20, 0.6, 0.15, 10, 6, 10
#: How far an element may be off after the measurement, and the share that may be farther off.
_OFF, _SHARE_OFF = 0.05, 0.01
#: Kernels in place that take longer than this multiple of the step were disturbed by other work.
_LONGER = 1.1


class _HostEvent:
    """A moment of the host's clock, with the interface of an event of a device."""

    def record(self) -> None:
        self.at = perf_counter_ns()

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: _HostEvent) -> float:
        return (other.at - self.at) / 1e6


class _InPlace(NamedTuple):
    """Microseconds of each call in place, by part: of its kernels, and of the gaps before them; names of the kernels.

    The first one, and those of the part "", are copies that no step has.
    """

    parts: list[str]
    kernels: list[float]
    gaps: list[float]
    names: Sequence[str] = ()

    def of_step(self, values: Sequence[float]) -> list[float]:
        """Returns the values of calls that a step has."""
        return [value for part, value in zip(self.parts, values, strict=True) if part]

    @property
    def copies_us(self) -> float:
        both = zip(self.parts, self.kernels, self.gaps, strict=True)
        return sum(kernels + gap for part, kernels, gap in both if not part)


def bind_step(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[None, StepReplay]:
    """Makes the `replay` of a step."""
    return None, StepReplay(job, device, instrument, settings, group)


class StepReplay(RowReplay):
    """Builds and measures a step when it is called, and leaves the result in `outcome`."""

    def __init__(
        self, job: Job, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
    ) -> None:
        super().__init__(device)
        self._cells, self._instrument, self._settings, self._group = job.cells, instrument, settings, group
        self._module: Any = torch.get_device_module(device.torch_device)
        self._has_graph = job.cells.get(STEP_LAUNCH) == "graph"
        self._step = Step.read(job.cells[STEP])
        stack = read_stack(job.cells.get(STEP_STACK, ""), device.torch_device.type)
        self._layers = BuiltLayers(device, stack, self._measured_alone, self._step.routing == "random")

    def __call__(self) -> None:
        """Builds the layers, measures them, and compares their results with those of the first pass.

        Raises:
            Unsupported: a call has no replay, or the device no graph.
            WrongResult: a result is wrong, in the first pass or after the measurement.
        """
        # What an earlier step held refers to itself.
        self._device.release_memory()
        calls = step_calls(resolve_model(self._step.model), self._step)
        for layer in calls_of_layers(calls, self._cells[STEP_LAYERS], with_collectives=self._group.size > 1):
            self._layers.add(layer)
        for each in self._layers.calls:
            each.reference = each.sample()
        counts = self._kernels_of_calls()
        replay = self._captured(self._layers.run)
        in_place = self._recorded(replay, counts) if counts else self._timed_on_host()
        measurement = self._measured(replay, in_place)
        replay()
        self._compare()
        assumptions = tuple(self._layers.notes)
        self.outcome = RowOutcome(Status.MEASURED, measurement=replace(measurement, assumptions=assumptions))

    def _measured_alone(self, own: KernelCall) -> float:
        """Returns the microseconds of a call as the row of a kernel is measured: cold, one sample after the other."""

        def before_each() -> None:
            own.restore()
            self._device.flush_cache()

        rule = StopRule(repeat_count=self._settings.repeat_count or _ALONE, time_limit_s=self._settings.time_limit_s)
        samples = self._instrument.sample(own.launch, before_each, rule).durations_us
        return typical_mean(samples) if samples else math.nan

    def _captured(self, run: Callable[[], None]) -> Callable[[], None]:
        """Returns a replay of a graph of the step, or `run` where each call is launched. Raises Unsupported."""
        if not self._has_graph:
            run()
            return run
        module = self._module
        graph_type = getattr(module, "CUDAGraph", None) or getattr(module, "NPUGraph", None)
        if graph_type is None:
            raise Unsupported(f"torch.{self._device.torch_device.type} has no graph here: give launch=eager")
        stream = module.Stream()
        stream.wait_stream(module.current_stream())
        with module.stream(stream):
            run()
            run()
        module.current_stream().wait_stream(stream)
        self._device.synchronize()
        graph = graph_type()
        try:
            with module.graph(graph):
                run()
        except RuntimeError as error:
            # Exhausted memory and a lost device are told as such.
            if outcome_of(error).status is not Status.FAILED:
                raise
            raise Unsupported(f"no graph holds this step: give launch=eager ({exception_line(error)})") from error
        replay: Callable[[], None] = graph.replay
        replay()
        self._device.synchronize()
        return replay

    @property
    def _parts(self) -> list[str]:
        """The parts of a replay's calls, behind the copies that it begins with."""
        return ["", *(each.part for each in self._layers.calls)]

    @property
    def _recorder(self) -> KernelRecords | None:
        """What records the kernels of the device; None where nothing does."""
        recorder: Any = self._instrument
        while recorder is not None and not isinstance(recorder, KernelRecords):
            recorder = getattr(recorder, "wrapped", None)
        return recorder

    def _kernels_of_calls(self) -> list[int]:
        """Returns the number of kernels that begin a replay anew, and of each call; [] where nothing records kernels.

        A twin of the step, with a mark before each call, tells it.
        """
        recorder, counts = self._recorder, [0]
        if recorder is None:
            return []
        for record in recorder.launches(self._captured(partial(self._layers.run, recorder.mark)), 1):
            if MARK in record.name:
                counts.append(0)
            else:
                counts[-1] += 1
        return counts[:-1]

    def _recorded(self, replay: Callable[[], None], counts: Sequence[int]) -> _InPlace | None:
        """Returns the durations of the calls within the replayed step; None if the records do not fit the twin's."""
        recorder, total = self._recorder, sum(counts)
        assert recorder is not None
        found = recorder.launches(replay, _RECORDED)
        if len(counts) != len(self._layers.calls) + 1 or len(found) != _RECORDED * total:
            self._layers.notes[
                f"{len(found)} kernels in {_RECORDED} replays, and {total} with marks: not told by call"
            ] = None
            return None
        durations, gaps = [], []
        for start in range(total, len(found), total):
            kernels = found[start : start + total]
            ends = [kernels[0].start_us, *(each.start_us + each.duration_us for each in kernels)]
            waits = [each.start_us - end for each, end in zip(kernels, ends, strict=False)]
            durations.append(_sums([each.duration_us for each in kernels], counts))
            gaps.append(_sums(waits, counts))
        spent, waited = (list(map(median, zip(*each, strict=True))) for each in (durations, gaps))
        return _InPlace(self._parts, spent, waited, [readable_name(each.name) for each in kernels[counts[0] :]])

    def _timed_on_host(self) -> _InPlace | None:
        """Returns the durations of the calls on the host's clock; None where calls return before they have ended."""
        if kind_named(self._device.torch_device.type).events is not None:
            return None
        moments: list[int] = []
        times = []
        for _ in range(_RECORDED):
            moments[:] = [perf_counter_ns()]
            self._layers.run(lambda: moments.append(perf_counter_ns()))
            times.append([(end - start) / 1000 for start, end in pairwise(moments)])
        medians = list(map(median, zip(*times, strict=True)))
        return _InPlace(self._parts, medians, [0.0] * len(medians))

    def _measured(self, replay: Callable[[], None], in_place: _InPlace | None) -> Measurement:
        """Replays the step after a pause, and then for as long as clocks take to settle."""
        is_host = kind_named(self._device.torch_device.type).events is None

        def stretches(count: int, replays: int) -> list[float]:
            events = [_HostEvent() if is_host else self._module.Event(enable_timing=True) for _ in range(count + 1)]
            events[0].record()
            for number, event in enumerate(events[1:]):
                for _ in range(replays):
                    replay()
                event.record()
                # The device has work for one stretch more.
                events[number].synchronize()
                for name, value in self._device.readings().items():
                    readings[name].append(value)
            events[-1].synchronize()
            return [start.elapsed_time(end) * 1000 / replays - copies for start, end in pairwise(events)]

        readings: dict[str, list[float]] = defaultdict(list)
        copies = in_place.copies_us if in_place is not None else 0.0
        self._device.synchronize()
        sleep(_PAUSE_S)
        (burst,) = stretches(1, _BURST)
        readings.clear()
        count = self._settings.repeat_count or _STRETCHES
        # All ranks make equally many.
        longest = max(us for (us,) in self._group.gather([burst + copies]))
        samples = stretches(count, max(1, int(_SUSTAINED_S * 1e6 / longest / _STRETCHES)))
        # Clocks settle in the first half.
        counters = {name: fmean(values[len(values) // 2 :]) for name, values in readings.items()}
        parts = list(filter(None, self._parts))
        alone = [each.alone_us for each in self._layers.calls if each.part]
        counters |= {"burst(us)": burst, "alone(us)": sum(alone)}
        columns = {" alone": alone}
        if in_place is not None and sum(in_place.of_step(in_place.kernels)) > _LONGER * fmean(samples):
            self._layers.notes["a recorded step took longer than the measured ones: not told by call"] = None
        elif in_place is not None:
            columns |= {"": in_place.of_step(in_place.kernels), " gap": in_place.of_step(in_place.gaps)}
            kernels, gaps = sum(columns[""]), sum(columns[" gap"])
            counters |= {"kernels(us)": kernels, "gaps(us)": gaps or max(fmean(samples) - kernels, 0.0)}
        for suffix, values in columns.items():
            of_parts = grouped(zip(parts, values, strict=True))
            counters |= {f"{part}{suffix}(us)": fmean(own) for part, own in of_parts.items()}
        errors = [each.error for each in self._layers.checked if each.error is not None]
        names = in_place.names if in_place is not None else ()
        return Measurement(
            tuple(samples),
            self._instrument.name,
            "warm",
            device_kernels=len(names) or None,
            checked_elements=sum(each.elements for each in self._layers.checked),
            total_elements=sum(each.total for each in self._layers.checked),
            counters={name: round(value, 4) for name, value in counters.items() if math.isfinite(value)},
            execution=Execution(", ".join(self._layers.ran), tuple(names), max_error=max(errors, default=None)),
        )

    def _compare(self) -> None:
        """Raises WrongResult if a result is not that of the first pass, which its formula has checked.

        Behind a gating one rounded logit may choose another expert, which is noted.
        """
        self._device.synchronize()
        is_routed = False
        for number, each in enumerate(self._layers.calls):
            is_routed |= each.part == "gating"
            for now, before in zip(each.sample(), each.reference, strict=True):
                reach = _OFF * (before.abs() + before.square().mean().sqrt())
                off = float((~((now - before).abs() <= reach)).float().mean())
                if off > _SHARE_OFF:
                    found = f"call {number} ({each.part}): {off:.0%} of its results are not those of the first pass"
                    if not is_routed:
                        raise WrongResult(found)
                    self._layers.notes[f"{found}, since tokens chose other experts"] = None
                    return


def _sums(values: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Returns the sums of consecutive values, of so many each."""
    each = iter(values)
    return [sum(islice(each, count)) for count in counts]


def read_stack(text: str, kind: str) -> Mapping[str, Sequence[KernelSource]]:
    """Returns the functions of a cell of Step Stack by kernel type: `flashinfer AddRmsNorm SwiGlu; liger RmsNorm`."""
    found: dict[str, list[KernelSource]] = defaultdict(list)
    for name, *kernel_types in filter(None, map(str.split, text.split(";"))):
        (implementation,) = find_implementations([name], kind)
        for each in kernel_types:
            if (source := implementation.source(each)) is not None:
                found[each].append(source)
    return found
