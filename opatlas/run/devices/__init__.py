"""Devices that replay rows: one file for each kind, with the Protocol in device.py.

device.py           a device: specification, description, operations
discovery.py        finds the devices of this machine, without torch
fatal_errors.py     the errors after which a process cannot continue
cpu.py              the CPU
cpu_flush.py        flushes the caches of the CPU
cuda.py             an NVIDIA GPU
nvidia.py           the state of NVIDIA GPUs, from NVML and nvidia-smi
npu.py              an Ascend NPU
npu_operators.py    the calls of NPU operators by name; custom operators
npu_smi.py          the chips and their state, from npu-smi
torch_npu.py        imports torch_npu, or names the missing package
device_lock.py      locks a device while a row runs
machine_state.py    disturbances of a measurement: load, steal, governor, quotas
cgroups.py          CPU and memory limits of control groups
system.py           files of the system, and output of vendors' tools
"""
