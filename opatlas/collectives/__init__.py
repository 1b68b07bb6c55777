"""Collectives over HCCL, NCCL and Gloo: messages between the devices of a group.

Without torch: topology.py (the grid of devices), options.py (the messages that options name), rows.py (a message
as a row).
With torch, in the ranks of a group: message.py (the tensors and expected results), timing.py (the measurement).
"""
