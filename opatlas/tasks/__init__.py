"""Tasks: files with `Model`, `get_inputs` and `get_init_inputs`, which become rows of a database."""
