"""Tasks: files with `Model`, `get_inputs` and `get_init_inputs`, which become rows of a database.

task.py              reads task files without running them
candidate_files.py   finds candidates for tasks by the names of files

Imports no torch.
"""
