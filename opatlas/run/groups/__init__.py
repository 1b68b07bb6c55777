"""Rows that need several devices at once: groups of processes, one for each device.

torchrun's elastic launcher (agent.py) starts the ranks (rank_main.py), and all ranks run the same jobs. pytest launches
a group and talks to its ranks (running.py), combines their answers into the outcome of a row (process.py), and chooses
the group of each row (pool.py). Only agent.py and rank_main.py import torch.
"""
