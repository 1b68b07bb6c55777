"""The files of a database, and what joins and compares databases.

database.py          the folders and locks of a database
csv_files.py         reads and writes CSVs
header.py            the header of a CSV
cells.py             the cells that a record fills
journal.py           the records of a session, before any CSV is changed
log.py               the records of all runs, and what else happened to the rows
candidates.py        what runs and other tables have of a row
fold.py              which candidates a row gets; the only writer of CSVs
write_back.py        folds the records of sessions into the CSVs
update_mode.py       --update-mode: which rows a session runs, and whether it appends rows
edited.py            rows that were changed after their run
pruned.py            rows without a duration, moved to pruned/
row_copy.py          copies rows without their durations
row_history.py       the durations of rows in each run
restore.py           folds all runs into the CSVs again, and moves pruned rows back
manifest.py          the manifest of a run, and the order of runs
ingests.py           the ingests of captures: their manifests and files
origin.py            the device and software of durations
comparable.py        which durations compare
pace.py              how long rows take
combine.py           combines databases into one
combine_sources.py   opens the sources of a combination
combine_table.py     combines two tables: cells and conflicts
combine_reports.py   the CSVs of a combination
pool.py              pools the runs of each row
op_mapping.py        op_mapping.yaml, for simulators
"""
