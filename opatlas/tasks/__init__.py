"""Tasks: files with `Model`, `get_inputs` and `get_init_inputs`, which become rows of a database.

task.py     reads task files without running them

Imports no torch.
"""
