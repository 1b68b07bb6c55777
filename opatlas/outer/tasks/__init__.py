"""Tasks: files with `Model`, `get_inputs` and `get_init_inputs`, which become rows of a database.

task.py              reads task files without running them
candidate_files.py   finds candidates for tasks by the names of files
task_rows.py         the rows of tasks, read by a process
modules.py           imports task files and candidates
inputs.py            makes the inputs of a task
read_inputs.py       the process that reads the shapes of inputs before a session
reference.py         the results of a task's Model in float64
task_replay.py       `row` and `replay` of a task: the steps of a judgement, in order
"""
