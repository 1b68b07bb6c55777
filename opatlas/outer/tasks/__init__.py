"""Tasks: files with `Model`, `get_inputs` and `get_init_inputs`, which become rows of a database.

task.py              reads task files without running them
candidate_files.py   finds candidates for tasks by the names of files
task_rows.py         `--tasks`: the rows of tasks, which a process of its own reads
model.py             a task file as a module: inputs, Model, its results in float64
task_replay.py       `row` and `replay` of a task: the steps of a judgement, in order
"""
