"""Probes of a machine: those of `opatlas doctor`, whether it can measure rows, and the shapes that a kernel accepts.

stages.py       the device; an NPU: driver, CANN, operators; rows and an all_reduce, by the commands that a user runs
command.py      `opatlas doctor`: each stage in a process of its own, and the zip file for the maintainers
shape_probe.py  finds the shapes that DispatchFFNCombine accepts, by trying
"""

from opatlas.installation import Command

COMMAND = Command("Measure", "examine whether this machine can measure rows", "opatlas.outer.doctor.command:doctor")
