"""Collectives over HCCL, NCCL and Gloo: messages between the devices of a group.

plan.py      messages as rows, the grid of devices, and the options that name messages, without torch
message.py   the tensors and expected results of a message in a rank, and its measurement on all ranks together
"""
