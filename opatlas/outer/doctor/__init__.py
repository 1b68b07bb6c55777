"""Probes of a machine: those of `opatlas doctor`, whether it can measure rows, and the shapes that a kernel accepts.

probe.py            a probe, its target and verdict, and the process that runs a probe
probes.py           all probes in their order
machine.py          probes of Python, packages, torch, CPU and GPUs
ascend.py           probes of an NPU: driver, CANN, torch_npu, operators
msprof_session.py   a session of msprof with three rows, and checks of its profile
replays.py          probes that measure rows, and an all_reduce
implementations.py  probes of libraries with kernels
surroundings.py     probes of cores, memory, load, database and disk
sample_rows.py      the rows that probes measure
shape_probe.py      finds the shapes that DispatchFFNCombine accepts, by trying
report.py           the zip file for the maintainers
"""
