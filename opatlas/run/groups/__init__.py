"""Rows that need several devices at once: groups of processes, one for each device, that all run the same jobs.

pytest starts the ranks of a node (ranks.py), combines their answers into the outcome of a row (process.py), and chooses
the group of each row (pool.py). Only the process of a rank (opatlas/run/process/device_main.py) imports torch.
"""
