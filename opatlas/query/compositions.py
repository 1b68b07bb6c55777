"""Which durations are those of compositions of torch operators, as far as rows tell.

A kernel type is one kernel on an NPU. Elsewhere torch may run several operators in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from opatlas.engine.kernel_facts import read_calls
from opatlas.instruments.instrument import INSTRUMENTS
from opatlas.model.communication import is_communication
from opatlas.model.quality import is_composition
from opatlas.model.schema import INSTRUMENT, MICROBENCH_DEVICE_KERNELS, QUALITY, STAND_IN

#: What a note says of rows of which `composition_of` knows nothing.
NOT_TOLD = "the rows do not tell whether a composition of operators ran"


def composition_of(kernel_type: str, row: Mapping[str, str]) -> bool | None:
    """Returns whether the replayed duration of a row is that of a composition; None if the row does not tell.

    Rows of an older OpAtlas have neither Quality nor Stand-In. Such a row of torch on a GPU or CPU tells only if one
    device kernel ran, or if torch has an operator for this kernel type.
    """
    quality, stand_in = row.get(QUALITY, "").strip(), row.get(STAND_IN, "").strip()
    if quality or stand_in:
        return is_composition(quality, stand_in)
    instrument = row.get(INSTRUMENT, "").strip()
    if not instrument or instrument in INSTRUMENTS["npu"] or is_communication(kernel_type):
        return False
    if row.get(MICROBENCH_DEVICE_KERNELS, "").strip() == "1":
        return False
    calls = _gpu_calls().get(kernel_type, [])
    # torch has no fused operators on CPUs.
    fused_elsewhere = instrument in INSTRUMENTS["cpu"] and any("_fused" in call for call in calls)
    return False if len(calls) == 1 and not fused_elsewhere else None


@cache
def _gpu_calls() -> Mapping[str, list[str]]:
    return read_calls()
