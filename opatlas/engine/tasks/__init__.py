"""Runs tasks and their candidates on a device.

modules.py       imports task files and candidates
inputs.py        makes the inputs of a task
read_inputs.py   the process that reads the shapes of inputs before a session
reference.py     the results of a task's Model in float64
task_replay.py   `row` and `replay` of a task: the steps of a judgement, in order
"""
