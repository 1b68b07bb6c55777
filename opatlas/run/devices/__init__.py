"""Devices that replay rows: a file for each kind, which names or has all that the rest of the program asks of it.

cpu.py, cuda.py, npu.py    the kinds: a `KIND` to ask without torch, and the opened device
device.py           what a kind and an opened device are, and which devices this machine has
fatal_errors.py     the errors after which a process cannot continue
nvml.py             the state of NVIDIA GPUs
npu_operators.py    the calls of NPU operators by name; custom operators
npu_smi.py          the chips and their state, from npu-smi
device_lock.py      locks a device while a row runs
system.py           cores, control groups and disturbances of this machine, output of vendors' tools
"""
