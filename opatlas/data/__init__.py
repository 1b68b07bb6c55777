"""The files of a database: CSVs, journals, histories, manifests, locks, op_mapping.yaml.

database.py     the folders and locks of a database
csv_files.py    reads and writes CSVs
header.py       the header of a CSV
cells.py        the cells that a record fills; edits by column
update_mode.py  --update-mode: which rows a session runs, and whether it appends rows
write_back.py   writes records back to the CSVs
row_update.py   how records change the rows of one table
journal.py      the records of a session, before any CSV is changed
history.py      the records of all runs
row_history.py  the durations of rows in each run
manifest.py     the manifest of a run, and the order of runs
pruned.py       rows without a duration, moved to pruned/
op_mapping.py   op_mapping.yaml, for simulators
"""
