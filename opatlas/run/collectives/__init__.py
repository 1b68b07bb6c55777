"""Collectives over HCCL, NCCL and Gloo: messages between the devices of a group.

topology.py     the grid of devices, without torch
options.py      the messages that options name, without torch
rows.py         a message as a row, without torch
message.py      the tensors and expected results of a message, in a rank
timing.py       the measurement of a message, on all ranks together
"""
