"""Tasks: files with `Model`, `get_inputs` and `get_init_inputs`, which become rows of a database.

task.py         reads task files without running them; the classes C1 to C4
definitions.py  definitions and workloads of flashinfer-bench and SOL-ExecBench as the text of a task
traces.py       `opatlas export --output FILE.jsonl`: what was measured of them, in their schema
exported.py     `opatlas export --output FOLDER`: measured kernel types in that schema
task_rows.py    `--tasks`: the rows of tasks, which a process of their own reads, and the candidates in a folder
task_replay.py  a task file as a module; `row` and `replay` of a task: what is called, and what is right
"""
