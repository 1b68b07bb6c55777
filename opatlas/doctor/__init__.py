"""What a machine offers for measuring, found out one thing at a time; the command `opatlas doctor`.

probe.py            what a probe is, and the process in which it runs
probes.py           all probes in their order
machine.py          probes of Python, packages, torch, CPU and GPUs
ascend.py           probes of an NPU: driver, CANN, torch_npu, operators
msprof_session.py   a session of msprof with three rows, and checks of its profile
replays.py          probes that measure rows, and an all_reduce
surroundings.py     probes of cores, memory, load, database and disk
sample_rows.py      the rows that probes measure
report.py           the zip file to send us
"""
