"""Probes of a machine: those of `opatlas doctor`, whether it can measure rows, and the shapes that a kernel accepts.

probe.py        a probe, its target and verdict, and the process that runs a probe
stages.py       the device, packages, GPUs; an NPU: driver, CANN, torch_npu, operators; rows and an all_reduce
command.py      `opatlas doctor`: all probes in their order, and the zip file for the maintainers
shape_probe.py  finds the shapes that DispatchFFNCombine accepts, by trying
"""

from opatlas.installation import Command

COMMAND = Command("Measure", "examine whether this machine can measure rows", "opatlas.outer.doctor.command:doctor")
