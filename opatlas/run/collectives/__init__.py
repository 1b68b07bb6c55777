"""Collectives over HCCL, NCCL and Gloo: messages between the devices of a group.

topology.py     messages as rows, and the grid of devices, without torch
options.py      the messages that options name, without torch
message.py      the tensors and expected results of a message in a rank, and its measurement on all ranks together
"""
