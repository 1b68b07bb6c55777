"""Collectives over HCCL, NCCL and Gloo: which groups and messages are measured, and how.

Without torch: topology.py (the grid), options.py (what the options ask for), analytic.py and validate.py (whether
durations are plausible). With torch, in the ranks of a group: message.py (the tensors, and what they must hold).
"""
